"""Generated sessions and runs for measurements: the same rows for the same seed.

They are spread over a year as in a real service: users by Zipf's law and one user with a tenth of
all sessions, components and types of unequal use, some sessions without an owner, names with common
prefixes. The columns are those of `SessionRow` and `RunRow`, in their order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from agentctl.records.runs import RunRow
from agentctl.records.sessions import SessionRow

__all__ = [
    "BATCH",
    "COMPONENTS",
    "DENSE_USER",
    "FREQUENT_NAME",
    "OLD_NAME",
    "RARE_NAME",
    "RUN_COLUMNS",
    "SESSION_COLUMNS",
    "START",
    "YEAR",
    "Batch",
    "Population",
]

Row = tuple[str | int | None, ...]

SESSION_COLUMNS = tuple(field.name for field in fields(SessionRow))
RUN_COLUMNS = tuple(field.name for field in fields(RunRow))

START = 1_735_689_600_000_000
YEAR = 365 * 86_400_000_000
HOUR = 3_600_000_000

BATCH = 10_000
"""Sessions per batch; the runs of a batch are sorted by time."""

DENSE_USER = "user-dense"
NO_OWNER_SHARE = 0.05
"""Share of the sessions without an owner."""

COMPONENTS = tuple(
    (kind, f"{kind}-{number:02}")
    for kind, count in (("agent", 12), ("team", 5), ("workflow", 3))
    for number in range(count)
)
_SHARES = [1 / (rank + 1) for rank in range(len(COMPONENTS))]

FREQUENT_NAME = "Question about "
OLD_NAME = "Migrated from "
RARE_NAME = "Incident "
_TOPICS = (
    "invoices",
    "travel",
    "a contract",
    "the weather",
    "tests",
    "a recipe",
    "Berlin",
    "sales",
)

_LIVE = 60
"""Number of live runs among the newest, at most one in ten."""


class Batch(NamedTuple):
    """Some sessions with all their runs."""

    sessions: list[Row]
    runs: list[Row]


@dataclass
class Population:
    """The rows of a number of sessions.

    Args:
        runs_per_session: the average, exact for an even number of sessions.
        seed: another seed gives other rows.
    """

    sessions: int
    runs_per_session: int
    seed: int = 1
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    @property
    def users(self) -> int:
        """The number of users besides the dense one."""
        return max(10, self.sessions // 50)

    def batches(self) -> Iterator[Batch]:
        """Yield all rows, oldest sessions first."""
        for first in range(0, self.sessions, BATCH):
            batch = Batch([], [])
            for number in range(first, min(first + BATCH, self.sessions)):
                self._add(number, batch)
            batch.runs.sort(key=lambda run: str(run[_CREATED]))
            yield batch

    def _id(self) -> str:
        text = f"{self._random.getrandbits(128):032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def _user(self) -> str | None:
        at = self._random.random()
        if at < NO_OWNER_SHARE:
            return None
        if at < NO_OWNER_SHARE + 0.1:
            return DENSE_USER
        return f"user-{int(self.users ** self._random.random())}"

    def _name(self, number: int) -> str:
        at = self._random.random()
        if number < self.sessions // 20:
            return f"{OLD_NAME}{number}"
        if at < 0.1:
            return ""
        if at < 0.4:
            return f"{FREQUENT_NAME}{self._random.choice(_TOPICS)}"
        if at < 0.4 + max(0.0004, 30 / self.sessions):
            return f"{RARE_NAME}{number}"
        return f"{self._random.choice(_TOPICS).capitalize()}, {number}"

    def _count(self, number: int) -> int:
        """Return the number of runs of a session; two neighbours have the average together."""
        if not self.runs_per_session:
            return 0
        pair = random.Random(self.seed * 1_000_003 + number // 2)
        count = pair.randint(1, 2 * self.runs_per_session - 1)
        return count if number % 2 == 0 else 2 * self.runs_per_session - count

    def _add(self, number: int, batch: Batch) -> None:
        kind, component = self._random.choices(COMPONENTS, _SHARES)[0]
        session_id = self._id()
        user = self._user()
        created = START + number * YEAR // self.sessions
        at = created
        count = self._count(number)
        size = 0
        status: str | int | None = None
        for seq in range(1, count + 1):
            at += self._random.randint(1, HOUR)
            run = self._run(number, session_id, seq, kind, component, user, at)
            batch.runs.append(run)
            status = run[_STATUS]
            size = size + len(str(run[_HISTORY] or ""))
        tokens = 60 * count
        batch.sessions.append(
            (
                session_id,
                kind,
                component,
                component.capitalize(),
                user,
                self._name(number),
                tokens,
                count,
                size,
                status,
                created,
                at,
                None,
                f'{{"total_tokens":{tokens}}}',
                f'{{"{kind}_id":"{component}"}}',
                None,
                None,
                None,
            )
        )

    def _run(
        self,
        number: int,
        session_id: str,
        seq: int,
        kind: str,
        component: str,
        user: str | None,
        at: int,
    ) -> Row:
        newest = self.sessions - number <= min(_LIVE, self.sessions // 10)
        status = "RUNNING" if newest and seq == 1 else self._end()
        ended = status != "RUNNING"
        asked = at + 1 if status == "CANCELLED" else None
        said = f'[{{"role":"user","content":"Question {seq}"}}]'
        values = {
            "run_id": self._id(),
            "session_id": session_id,
            "seq": seq,
            "component_type": kind,
            "component_id": component,
            "user_id": user,
            "status": status,
            "background": 0,
            "attempt": 1,
            "owner": "worker",
            "cancel_requested_at": asked,
            "cancel_requested_by": user if asked else None,
            "created_at": at,
            "started_at": at + 1,
            "late_result": 0,
            "messages_sent": 0,
            "error_code": "MODEL_FAILED" if status == "ERROR" else None,
            "input": f"Question {seq}",
        }
        if ended:
            values |= {
                "finished_at": at + 2,
                "stopped_at": at + 2,
                "metrics": '{"input_tokens":40,"output_tokens":20,"total_tokens":60}',
                "history": said,
                "content": f"Answer {seq}",
                "tools": "[]",
                "messages": said,
                "spans": "[]",
            }
        return tuple(values.get(name) for name in RUN_COLUMNS)

    def _end(self) -> str:
        at = self._random.random()
        if at < 0.9:
            return "COMPLETED"
        return "ERROR" if at < 0.97 else "CANCELLED"


_CREATED = RUN_COLUMNS.index("created_at")
_STATUS = RUN_COLUMNS.index("status")
_HISTORY = RUN_COLUMNS.index("history")
