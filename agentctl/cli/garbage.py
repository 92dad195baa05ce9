"""Garbage collection in the process of a command, whose imports live as long as the process."""

from __future__ import annotations

import gc

COLLECTION_THRESHOLD = 100_000
"""Allocations that start a collection. With the default of 700 the collections of a start took an
eighth of its time, and found nothing."""


def collect_rarely() -> None:
    """Let collections begin after more allocations than a start needs.

    For a process that ends with its command.
    """
    gc.set_threshold(COLLECTION_THRESHOLD)


def spare_imports() -> None:
    """Exclude all objects that exist now from collections, in a process of `collect_rarely`.

    Python collects several times while it ends, which took a fifth of the time of a local list. It
    is called before the code of a user executes: what that leaves in cycles, such as a file that is
    open, is closed at the end of the process.
    """
    if gc.get_threshold()[0] == COLLECTION_THRESHOLD:
        gc.freeze()
