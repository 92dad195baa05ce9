"""Remembered totals: the long lists of a database, of which a page shows no exact total."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

MAXIMUM_LISTS = 4_096
"""Lists of a database that are remembered: those that were read last."""

MAXIMUM_SECONDS = 10.0
"""Maximum age of a remembered total of a short list, or of a list whose removed rows nothing counts
(docs/contract.md "Lists")."""


class _KnownTotal(NamedTuple):
    """A total, and what must not have happened since it was counted."""

    total: int

    removed: int
    """Number of rows that had ever been removed from the table."""

    surplus: int
    """Number of further removals with which the total is wrong."""

    until: float
    """Time of the monotonic clock from which the list is counted again."""


class ListTotals:
    """The totals of the long lists of one database (decision 36).

    Added rows do not shorten a list that is longer than the largest total, and each row that is
    removed from some tables is counted in the table `removals`. So such a list stays above the
    limit until as many rows were removed as it had above the limit. Other totals are remembered for
    `MAXIMUM_SECONDS`.

    Several threads may use an object. It is not stored: each process counts for itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, _KnownTotal] = OrderedDict()

    def has(self, key: Hashable) -> bool:
        """Return True if the total of a list may still be right."""
        known_total = self._known.get(key)
        return known_total is not None and time.monotonic() < known_total.until

    def find(self, key: Hashable, removed: int = 0) -> int | None:
        """Return the total of a list; None if the list has to be counted.

        Args:
            removed: number of rows of its table that have ever been removed, read before the call;
                0 if nothing counts them.
        """
        with self._lock:
            known_total = self._known.get(key)
            if known_total is None or time.monotonic() >= known_total.until:
                return None
            if not 0 <= removed - known_total.removed < known_total.surplus:
                return None

            self._known.move_to_end(key)
            return known_total.total

    def learn(
        self,
        key: Hashable,
        total: int,
        *,
        removed: int = 0,
        surplus: int = 1,
        seconds: float = math.inf,
    ) -> None:
        """Remember the total of a list.

        Args:
            removed: as for `find`, read before the list was counted.
            surplus: number of further removals with which the total is wrong.
            seconds: age from which the list is counted again.
        """
        with self._lock:
            until = time.monotonic() + seconds
            self._known[key] = _KnownTotal(total, removed, surplus, until)
            self._known.move_to_end(key)
            if len(self._known) > MAXIMUM_LISTS:
                self._known.popitem(last=False)
