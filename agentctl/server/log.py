"""Where the log of a server goes."""

from __future__ import annotations

import logging
import sys

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
    handler.setFormatter(logging.Formatter(_ONE_OF_MANY if one_of_many else _ALONE))
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
