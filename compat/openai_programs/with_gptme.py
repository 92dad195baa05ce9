"""The program gptme."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from operations import KEY, URL, expect, operation, report, wait_for_live_run, wait_for_status

GPTME = str(Path(sys.executable).with_name("gptme"))


def build_line(model: str, *words: str) -> list[str]:
    return [GPTME, "--non-interactive", "--no-confirm", "-m", f"local/{model}", *words]


def build_environment() -> dict[str, str]:
    place = {"HOME": tempfile.mkdtemp(prefix="gptme-"), "OPENAI_BASE_URL": URL}
    return {**os.environ, **place, "OPENAI_API_KEY": KEY, "LOCAL_API_KEY": KEY}


def gptme(model: str, *words: str) -> str:
    ended = subprocess.run(
        build_line(model, *words),
        env=build_environment(),
        cwd=tempfile.mkdtemp(prefix="gptme-"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=55,
    )
    return ended.stdout + ended.stderr


@operation
def streaming() -> None:
    output = gptme("echo", "hi there")
    expect(output.count("hi there") >= 2, output[-600:])


@operation
def first_message() -> None:
    output = gptme("echo", "--no-stream", "hi there")
    expect(output.count("hi there") >= 2, output[-600:])


@operation
def cancel() -> None:
    program = subprocess.Popen(
        build_line("trickle", "x"),
        env=build_environment(),
        cwd=tempfile.mkdtemp(prefix="gptme-"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        session_id = wait_for_live_run("trickle")
        program.send_signal(signal.SIGINT)
        wait_for_status(session_id, "CANCELLED")
    finally:
        program.kill()
        program.wait()


if __name__ == "__main__":
    report()
