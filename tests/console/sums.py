"""The sums of the overview in the database of a test server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager

import apsw

from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.threaded_server import ThreadedServer

__all__ = ["HOUR", "open_sums", "repeat_sums"]

HOUR = 3_600_000_000
"""Microseconds."""

_COUNTERS = (
    "completed", "failed", "cancelled", "member_runs", "model_calls", "input_tokens",
    "output_tokens", "total_tokens", "unpriced_tokens", "cost",
)  # fmt: skip


@contextmanager
def open_sums(server: ThreadedServer) -> Iterator[apsw.Connection]:
    """Open the database in a transaction, once the sums include every run that has ended.

    The library is that of the server, which is in the same process: if another one closes the file,
    the locks of the server are gone.
    """
    with closing(apsw.Connection(str(server.deployment.folder / "main.db"))) as store:
        store.set_busy_timeout(int(PATIENCE * 1000))
        waiting = "SELECT count(*) FROM usage_ends"
        wait_for(lambda: store.execute(waiting).fetchone() == (0,))
        with store:
            yield store


def repeat_sums(server: ThreadedServer, hours: int) -> None:
    """Copy the sums of all users to the hours before, each hour with other numbers and times."""
    with open_sums(server) as store:
        found = store.execute("SELECT * FROM usage_hourly WHERE everyone = 1")
        names = [column[0] for column in found.description]
        rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
        for hour in range(1, hours + 1):
            for number, row in enumerate(rows):
                factor = (hour * (number + 5)) % 17 * (24 - abs(hour - 12))
                copy = {**row, "start": row["start"] - hour * HOUR}
                if row["failed"]:
                    factor //= 12
                copy |= {name: row[name] * factor for name in _COUNTERS}
                copy["failures"] = _scale(row["failures"], factor)
                for name in ("first_token", "duration"):
                    copy[name] = _scale(row[name], factor, 35 + number % 4 * 5 + hour % 5)
                places = ", ".join(f":{name}" for name in names)
                store.execute(f"INSERT INTO usage_hourly VALUES ({places})", copy)


def _scale(counts: str, factor: int, shift: int = 0) -> str:
    """Multiply the counts of a JSON object, and move those of times by some buckets."""
    scaled = {
        str(int(name) + shift) if shift else name: count * factor
        for name, count in json.loads(counts or "{}").items()
    }
    return json.dumps({name: count for name, count in scaled.items() if count})
