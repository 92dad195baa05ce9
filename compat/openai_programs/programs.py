"""Operations of a coding program on the command line, in new folders of its user."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from operations import expect, operation, wait_for_live_run, wait_for_status

NODE = Path(os.environ["PROGRAMS"]) / "node-programs" / "node_modules" / ".bin"

Build = Callable[[Path, str, str], list[str]]
"""Returns the command line for a folder, a model and a message; it writes what it needs there."""


def add_operations(
    build: Build, tool: str, arguments: Mapping[str, object], environment: Mapping[str, str] = {}
) -> None:
    """Define the operations of a program.

    Args:
        tool: its tool that executes a command.
        arguments: of that tool; the command is added as `command`.
        environment: further variables.
    """

    def start(model: str, message: str, folder: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            build(folder, model, message),
            env={**os.environ, **environment, "HOME": str(folder), "OPENAI_MODEL": model},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def ask(model: str, message: str, folder: Path) -> str:
        program = start(model, message, folder)
        try:
            return program.communicate(timeout=55)[0]
        finally:
            stop(program)

    @operation
    def first_message() -> None:
        output = ask("echo", "hi there", create_folder())
        expect("hi there" in output, output[-600:])

    @operation
    def tools() -> None:
        folder = create_folder()
        given = {**arguments, "command": "echo 5 > sum.txt && cat sum.txt"}
        function = {"name": tool, "arguments": json.dumps(given)}
        call = {"tool_calls": [{"id": "c", "type": "function", "function": function}]}
        output = ask("plan", f"Do it\n{json.dumps([call, {'content': 'written'}])}", folder)
        expect("written" in output and (folder / "sum.txt").exists(), output[-600:])

    @operation
    def cancel() -> None:
        program = start("trickle", "x", create_folder())
        try:
            session_id = wait_for_live_run("trickle")
            stop(program)
            wait_for_status(session_id, "CANCELLED")
        finally:
            stop(program)


def stop(program: subprocess.Popen[str]) -> None:
    """End a program with the processes that it has started, as a closed terminal does."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    program.wait()


def create_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="program-"))
