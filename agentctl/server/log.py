"""Where the log of a server goes."""

from __future__ import annotations

import logging
import sys

from agentctl.records.text import printable

__all__ = ["log_to_stderr"]

_ALONE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_ONE_OF_MANY = "%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s"


def log_to_stderr(*, one_of_many: bool = False) -> None:
    """Send the log to stderr, unless the program has already said where it goes.

    Args:
        one_of_many: other processes write there as well: each line has the process's id.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(_ONE_OF_MANY if one_of_many else _ALONE))
    root.addHandler(handler)
    root.setLevel(logging.WARNING)


class _Formatter(logging.Formatter):
    """Records that nothing in them can pass for, and that do nothing to a terminal.

    What tools and providers say is in them: it is written out, and lines behind the first of a
    record are set in.
    """

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), lines=True).replace("\n", "\n    ")
