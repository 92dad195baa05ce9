"""The log of work that is done locally: lines on stderr, never a traceback."""

from __future__ import annotations

import logging

from agentctl.cli.terminal import note

__all__ = ["log_to_stderr"]


class _Notes(logging.Handler):
    """What is logged becomes a note: `warning: the model failed: ...`."""

    def emit(self, record: logging.LogRecord) -> None:
        note(f"{record.levelname.lower()}: {record.getMessage()}")


def log_to_stderr() -> None:
    """Show warnings and worse, unless something else takes the log already."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_Notes(logging.WARNING))
