"""`help.txt`: the output of `--help` of the commands on a terminal of 80 columns.

Groups that share their commands, such as `agents` and `teams`, have them once.
"""

from __future__ import annotations

import io
import os

from pages.cli import commands_once

__all__ = ["page"]


def page() -> str:
    """Build `help.txt`."""
    os.environ["COLUMNS"] = "80"
    return "\n".join(f"$ {path} --help\n{_read_help(path)}" for path, _ in commands_once())


def _read_help(path: str) -> str:
    from agentctl.cli.app import main
    from agentctl.cli.io import IO

    out = io.StringIO()
    words = [*path.split()[1:], "--help"]
    if main(words, IO(io.StringIO(), out, io.StringIO())) != 0:
        raise RuntimeError(f"{path} --help failed")
    return out.getvalue()
