"""Generated rows of the tables besides sessions and runs: the same rows for the same sessions.

Each table has its share: one approval for 20 runs, one webhook delivery for 5 runs, one audit entry
and one searched text for a session, one memory for ten sessions with an owner, and the sums of
usage of all runs.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from agentctl.records.approvals import ApprovalRow
from agentctl.records.times import DAY, HOUR
from agentctl.store.repositories.accounts import AccountRow
from agentctl.store.repositories.audit import APPENDED_COLUMNS
from agentctl.store.repositories.memories import MemoryRow
from agentctl.store.repositories.usage import STORED
from agentctl.store.search import build_owner_key
from tests.generated.population import RUN_COLUMNS, SESSION_COLUMNS, START, YEAR, Batch

__all__ = ["RELATED", "WEBHOOKS", "Related"]

Row = tuple[Any, ...]

WEBHOOKS = ("orders", "people", "archive")
TOOLS = ("pay", "mail", "deploy")
TOPICS = ("travel", "food", "work")
OPERATIONS = ("create_run", "cancel_run", "delete_session", "rename_session")

_DELIVERY = (
    "delivery_id", "event_id", "webhook_id", "type", "run_id", "body", "state", "attempts",
    "next_at", "created_at", "delivered_at",
)  # fmt: skip
_TERM = ("memory_id", "term", "user_id", "updated_at")
_TEXT = ("place", "session_id", "owner", "tokenizer", "text")
_ACCOUNTS = 2_000
"""Service accounts of a database."""

_HOURS = START + YEAR - 32 * DAY
"""The first hour of the sums by hour."""


def _names(record: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(record))


RELATED: dict[str, tuple[str, ...]] = {
    "approvals": _names(ApprovalRow),
    "webhook_deliveries": _DELIVERY,
    "audit_log": APPENDED_COLUMNS,
    "memories": _names(MemoryRow),
    "memory_terms": _TERM,
    "search_texts": _TEXT,
    "service_accounts": _names(AccountRow),
    "usage_daily": STORED,
    "usage_hourly": STORED,
}
"""The columns of the generated rows by table; others are NULL, or have their default."""


class Related:
    """The rows that belong to batches of sessions.

    Args:
        runs: the number of all runs. A database keeps at most 100,000 deliveries.
    """

    def __init__(self, runs: int) -> None:
        self._delivered = min(0.2, 100_000 / max(1, runs))
        self._random = random.Random(5)
        self._sums: dict[tuple[int, str, str, int, str, str], list[int]] = {}
        self._place = 0

    def build(self, batch: Batch) -> Iterator[tuple[str, Row]]:
        """Yield the rows of a batch with the names of their tables."""
        sessions = [dict(zip(SESSION_COLUMNS, row, strict=True)) for row in batch.sessions]
        for session in sessions:
            yield from self._build_of_session(session)
        for row in batch.runs:
            run = dict(zip(RUN_COLUMNS, row, strict=True))
            yield from self._build_of_run(run)
            self._count(run)
        yield from self._take_sums(sessions[-1]["created_at"] - 2 * DAY)

    def build_rest(self) -> Iterator[tuple[str, Row]]:
        """Yield the rows that belong to no batch, after the last one."""
        yield from self._take_sums(START + 2 * YEAR)
        for number in range(_ACCOUNTS):
            account = AccountRow(
                f"account-{number:04}",
                f"robot-{number}",
                f"hash-{number}",
                "hint",
                "[]",
                "admin",
                START + number * HOUR,
                None,
                None,
                START + number * DAY if number % 3 else None,
            )
            yield "service_accounts", _values(account)

    def _build_of_session(self, session: dict[str, Any]) -> Iterator[tuple[str, Row]]:
        at = session["created_at"]
        user = session["user_id"]
        outcome = self._random.choices(("allowed", "failed", "denied"), (96, 3, 1))[0]
        entry = {
            "at": at,
            "principal": user,
            "via": "api",
            "operation": self._random.choice(OPERATIONS),
            "resource": f"session:{session['session_id']}",
            "outcome": outcome,
            "count": 1,
        }
        yield "audit_log", tuple(entry.get(name) for name in APPENDED_COLUMNS)
        if session["session_name"]:
            self._place = max(self._place + 1, at // 1000 * 2**20)
            yield (
                "search_texts",
                (
                    self._place,
                    session["session_id"],
                    build_owner_key(user),
                    "words",
                    session["session_name"],
                ),
            )
        if user is not None and self._random.random() < 0.1:
            topic = self._random.choice(TOPICS)
            memory = MemoryRow(
                self._random.randbytes(16).hex(),
                user,
                session["component_id"],
                None,
                None,
                at,
                at,
                f'["{topic}"]',
                f"Likes {topic}",
            )
            yield "memories", _values(memory)
            for term in (f"topic:{topic}", topic, "likes"):
                yield "memory_terms", (memory.memory_id, term, user, at)

    def _build_of_run(self, run: dict[str, Any]) -> Iterator[tuple[str, Row]]:
        at = run["created_at"]
        run_id = run["run_id"]
        is_live = run["finished_at"] is None
        if self._random.random() < 0.05:
            status = "pending" if is_live else self._random.choice(("approved", "rejected"))
            approval = {
                **run,
                "approval_id": self._random.randbytes(16).hex(),
                "kind": self._random.choices(("approval", "input"), (9, 1))[0],
                "status": status,
                "execution": "done" if status == "approved" else None,
                "policy": self._random.choices(("user", "other"), (9, 1))[0],
                "root_run_id": run_id,
                "tool_call_id": "call",
                "tool_name": self._random.choices(TOOLS, (8, 3, 1))[0],
                "idempotent": 0,
                "arguments_hash": "hash",
                "arguments": "{}",
                "decided_at": None if is_live else at + 1,
                "decided_by": None if is_live else "user-2",
            }
            yield "approvals", tuple(approval.get(name) for name in RELATED["approvals"])
        if self._random.random() < self._delivered:
            webhook = self._random.choices(WEBHOOKS, (6, 3, 1))[0]
            state = self._random.choices(("delivered", "dead"), (97, 3))[0]
            yield (
                "webhook_deliveries",
                (
                    self._random.randbytes(16).hex(),
                    self._random.randbytes(16).hex(),
                    webhook,
                    "run.completed",
                    run_id,
                    f'{{"data":{{"user_id":"{run["user_id"]}"}}}}',
                    "waiting" if is_live else state,
                    1,
                    at,
                    at,
                    at + 1,
                ),
            )

    def _count(self, run: dict[str, Any]) -> None:
        finished = run["finished_at"]
        if finished is None:
            return
        ends = {"COMPLETED": (1, 0, 0), "ERROR": (0, 1, 0), "CANCELLED": (0, 0, 1)}[run["status"]]
        added = (*ends, 0, 0, 1, 40, 20, 60, 0, 0, 0, 60, 0)
        starts = [("usage_daily", finished - finished % DAY)]
        if finished >= _HOURS:
            starts.append(("usage_hourly", finished - finished % HOUR))
        for table, start in starts:
            for everyone, user in ((0, run["user_id"] or ""), (1, "")):
                key = (start, table, everyone, user, run["component_type"], run["component_id"])
                sums = self._sums.setdefault(key, [0] * len(added))  # type: ignore[arg-type]
                for index, value in enumerate(added):
                    sums[index] += value

    def _take_sums(self, before: int) -> Iterator[tuple[str, Row]]:
        """Yield the sums of the hours and days before a time, in their order."""
        for key in sorted(key for key in self._sums if key[0] < before):
            start, table, everyone, user, kind, component = key
            model = "model-" + hashlib.sha256(str(component).encode()).hexdigest()[:1]
            sums = (*self._sums.pop(key), "{}", "{}", '{"7":1}')
            yield str(table), (everyone, user, start, kind, component, model, *sums)


def group_rows(rows: Iterable[tuple[str, Row]]) -> dict[str, list[Row]]:
    """Return rows by table, in the order of `RELATED`."""
    found = defaultdict[str, list[Row]](list)
    for table, row in rows:
        found[table].append(row)
    return {table: found[table] for table in RELATED if table in found}


def _values(row: Any) -> Row:
    return tuple(getattr(row, name) for name in _names(type(row)))
