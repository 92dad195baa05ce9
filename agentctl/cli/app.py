"""The entry of the command line, light enough to answer `--version` before Typer is loaded."""

from __future__ import annotations

import sys

from agentctl import __version__

__all__ = ["main"]


def main() -> None:
    """Run `agentctl` with the arguments of this process; ends the process (contract.md 8)."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"agentctl {__version__}\n")
        return
    try:
        from agentctl.cli.root import app

        app(prog_name="agentctl")
    except KeyboardInterrupt:
        sys.exit(130)
