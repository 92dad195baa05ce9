"""The program aider, in a repository of its user."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from operations import KEY, URL, due, expect, operation, report

AIDER = str(Path(sys.executable).with_name("aider"))


def aider(*words: str, model: str = "echo", folder: Path | None = None) -> str:
    """Return the output of aider in a folder that is a repository."""
    place = folder or Path(tempfile.mkdtemp(prefix="aider-"))
    line = [AIDER, "--model", f"openai/{model}", "--openai-api-base", URL]
    line += ["--openai-api-key", KEY, "--no-check-update", "--no-show-model-warnings"]
    line += ["--no-git", "--yes-always", "--no-pretty", "--analytics-disable", "--map-tokens", "0"]
    line += ["--no-detect-urls", *words]
    ended = subprocess.run(
        line,
        cwd=place,
        env=os.environ | {"HOME": str(place), "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=55,
    )
    return ended.stdout + ended.stderr


def check(output: str, text: str) -> None:
    if "invalid_request_error" in output:
        raise RuntimeError(f"Error code: 400 - {output[-500:]}")
    expect(text in output, output[-500:])


@operation
def first_message() -> None:
    check(aider("--message", "hi there"), "hi there")


@operation
def first_message_without_stream() -> None:
    check(aider("--no-stream", "--message", "hi there"), "hi there")


@operation
def edit_of_a_file() -> None:
    folder = Path(tempfile.mkdtemp(prefix="aider-"))
    (folder / "hello.py").write_text("print(1)\n")
    edit = "hello.py\n```\nprint(2)\n```"
    words = ("--edit-format", "whole", "--message", edit, "hello.py")
    output = aider(*words, folder=folder)
    check(output, "Applied edit to hello.py")
    expect((folder / "hello.py").read_text() == "print(2)\n", output)


@due
def unknown_model() -> None:
    expect("model does not exist" in aider("--message", "hi", model="gone"))


if __name__ == "__main__":
    report()
