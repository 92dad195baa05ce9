"""The program Qwen Code."""

from __future__ import annotations

from pathlib import Path

from operations import report
from programs import NODE, add_operations


def build(folder: Path, model: str, message: str) -> list[str]:
    return [str(NODE / "qwen"), "--auth-type", "openai", "--yolo", "-p", message]


if __name__ == "__main__":
    add_operations(build, "run_shell_command", {"description": "x", "is_background": False})
    report()
