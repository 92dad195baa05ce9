"""What is known of long lists, so that they are not counted each time (docs/decisions/0025).

Up to a bound a list is counted whenever it is read, by an index. Of one that has more than the
bound it is enough to know so: rows are added all the time, which changes nothing, and whatever
takes rows out of lists counts them in `removals`. So what was found once is true until that number
has grown by as much as the list had beyond the bound.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from weakref import WeakKeyDictionary

from agentctl.store.database import Database

__all__ = ["REMEMBERED", "Totals", "totals_of"]

REMEMBERED = 4_096
"""Lists that are remembered of a database: those that were asked for last."""


class Totals:
    """The lists of one database that are known to have more rows than are counted.

    It may be asked from several threads. Nothing is written down: each process learns for itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()

    def is_beyond(self, key: Hashable, removed: int) -> bool:
        """Whether a list must still have more rows than are counted.

        Args:
            key: the list: its statement and values.
            removed: how many rows of its table have ever been removed, read before this.
        """
        with self._lock:
            at, spare = self._known.get(key, (0, 0))
            if not 0 <= removed - at < spare:
                return False
            self._known.move_to_end(key)
            return True

    def learn(self, key: Hashable, removed: int, spare: int) -> None:
        """Note that a list had `spare` rows beyond the bound, not before `removed` was read."""
        with self._lock:
            self._known[key] = removed, spare
            self._known.move_to_end(key)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)


_TOTALS: WeakKeyDictionary[Database, Totals] = WeakKeyDictionary()
_lock = threading.Lock()


def totals_of(database: Database) -> Totals:
    """What this process knows of a database; forgotten with the object."""
    with _lock:
        return _TOTALS.setdefault(database, Totals())
