"""The program sgpt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from operations import KEY, URL, expect, operation, report, wait_for_live_run, wait_for_status

SGPT = str(Path(sys.executable).with_name("sgpt"))


def build_environment(model: str) -> dict[str, str]:
    place = {"HOME": tempfile.mkdtemp(prefix="sgpt-"), "API_BASE_URL": URL, "OPENAI_API_KEY": KEY}
    return {**os.environ, **place, "DEFAULT_MODEL": model, "OPENAI_USE_FUNCTIONS": "false"}


def sgpt(*words: str) -> str:
    ended = subprocess.run(
        [SGPT, *words],
        env=build_environment("echo"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=55,
    )
    return ended.stdout + ended.stderr


@operation
def first_message() -> None:
    output = sgpt("--no-cache", "--no-md", "hi there")
    expect("hi there" in output, output)


@operation
def streaming() -> None:
    output = sgpt("--no-cache", "hi there")
    expect("hi there" in output, output)


@operation
def cancel() -> None:
    program = subprocess.Popen(
        [SGPT, "--no-cache", "x"],
        env=build_environment("trickle"),
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
