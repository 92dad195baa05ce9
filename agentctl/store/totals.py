"""Remembered totals: the lists of a database that are longer than the limit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

MAXIMUM_LISTS = 4_096
"""Lists of a database that are remembered: those that were read last."""


class ListTotals:
    """The lists of one database that are known to be longer than the limit (docs/decisions/0036).

    Added rows do not shorten such a list, and each removed row is counted in the table `removals`.
    So it stays above the limit until as many rows were removed as it had above the limit.

    Several threads may use an object. It is not stored: each process counts for itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()

    def has(self, key: Hashable) -> bool:
        """Return True if a list was longer than the limit when it was counted last."""
        return key in self._known

    def is_beyond(self, key: Hashable, removed: int) -> bool:
        """Return True if a list must still be longer than the limit.

        Args:
            removed: number of rows of its table that have ever been removed, read before the call.
        """
        with self._lock:
            at, surplus = self._known.get(key, (0, 0))
            if not 0 <= removed - at < surplus:
                return False
            self._known.move_to_end(key)
            return True

    def learn(self, key: Hashable, removed: int, surplus: int) -> None:
        """Remember that a list had `surplus` rows above the limit after `removed` was read."""
        with self._lock:
            self._known[key] = removed, surplus
            self._known.move_to_end(key)
            if len(self._known) > MAXIMUM_LISTS:
                self._known.popitem(last=False)
