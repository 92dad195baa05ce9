"""Checks of the invariants of a database, at any time.

Triggers record every status change of a run in its transaction, so that a second final status is
detected even if a third one replaces it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import orjson

from agentctl.config.settings import Database
from agentctl.records.runs import RunRow
from agentctl.records.sessions import TOKEN_COUNTERS, SessionRow
from agentctl.runs.states import is_final
from agentctl.store.database import Sql, Statement, Steps, unit
from agentctl.store.databases import open_database
from agentctl.store.repositories import run_reads
from agentctl.store.repositories.run_reads import RUN_COLUMNS
from agentctl.store.repositories.sessions import Cost, parse_cost
from agentctl.store.visibility import EVERYONE

__all__ = ["InvariantChecker", "Seen", "tokens_of"]

_LATE = {"stopped_at", "late_result"}
"""Columns that may be set after the final status."""

_LEFT = {"history", "messages"}
"""Columns that a run that never started gets after its final status, in the same transaction."""

_FIXED = [field.name for field in fields(RunRow) if field.name not in _LATE | _LEFT]

_CHANGED = " OR ".join(
    [f"old.{name} IS NOT new.{name}" for name in _FIXED]
    + [f"(old.{name} IS NOT NULL AND old.{name} IS NOT new.{name})" for name in sorted(_LEFT)]
)

_TRIGGERS = f"""
CREATE TABLE witnessed (
    number INTEGER PRIMARY KEY, run_id TEXT, session_id TEXT, was TEXT, became TEXT, spoiled INTEGER
);
CREATE TRIGGER witness_birth AFTER INSERT ON runs BEGIN
    INSERT INTO witnessed (run_id, session_id, became)
    VALUES (new.run_id, new.session_id, new.status);
END;
CREATE TRIGGER witness_change AFTER UPDATE ON runs
WHEN old.status <> new.status OR old.finished_at IS NOT NULL BEGIN
    INSERT INTO witnessed (run_id, session_id, was, became, spoiled)
    VALUES (new.run_id, new.session_id, old.status, new.status,
        old.finished_at IS NOT NULL AND ({_CHANGED}));
END;
CREATE TRIGGER witness_end AFTER DELETE ON runs BEGIN
    INSERT INTO witnessed (run_id, session_id, was) VALUES (old.run_id, old.session_id, old.status);
END;
"""

_SEEN = Sql("SELECT * FROM witnessed WHERE number > :after ORDER BY number")
_RUNS = Sql(f"SELECT {RUN_COLUMNS} FROM runs ORDER BY session_id, seq")
_SESSIONS = Sql(f"SELECT {', '.join(field.name for field in fields(SessionRow))} FROM sessions")
_KEYS = Sql("SELECT run_id FROM idempotency")
_ORPHANS = Sql(
    "SELECT run_id FROM run_events WHERE run_id NOT IN (SELECT run_id FROM runs)"
    " UNION ALL SELECT run_id FROM runs WHERE session_id NOT IN (SELECT session_id FROM sessions)"
)


class Seen(NamedTuple):
    """All stored data at one moment; `news` has the changes since the previous one."""

    news: list[tuple[Any, ...]]
    runs: list[RunRow]
    sessions: list[SessionRow]
    keys: list[str]
    orphans: list[str]


class InvariantChecker:
    """Checks a new database file.

    Attributes:
        runs: the existing runs by id.
        created: ids of all runs that were ever created.
        deleted: ids of the deleted runs; emptied: their sessions.
        final: the row of each run when its final status was first read.
    """

    def __init__(self, path: Path) -> None:
        open_database(Database("main", f"sqlite:///{path}"), create=True).close_blocking()
        connection = apsw.Connection(str(path))
        connection.execute(_TRIGGERS)
        connection.close()
        self._database = open_database(Database("main", f"sqlite:///{path}"), create=False)
        self._number = 0
        self.runs: dict[str, RunRow] = {}
        self.created: set[str] = set()
        self.deleted: set[str] = set()
        self.emptied: set[str] = set()
        self.final: dict[str, RunRow] = {}
        self._ended: set[str] = set()

    def close(self) -> None:
        self._database.close_blocking()

    def read_run(self, run_id: str) -> RunRow | None:
        """Return the stored row of a run without checks."""
        return self._database.read_blocking(run_reads.get(run_id, EVERYONE))

    def live_runs(self) -> list[RunRow]:
        """Return the runs that were live at the last check."""
        return [run for run in self.runs.values() if not is_final(run.status)]

    def check(self) -> None:
        """Read the stored data and check all invariants."""
        seen = self._database.read_blocking(_seen(self._number))
        for number, run_id, session_id, was, became, spoiled in seen.news:
            self._number = number
            if became is None:
                self.emptied.add(session_id)
            self._check_change(run_id, was, became, bool(spoiled))
        self.runs = {run.run_id: run for run in seen.runs}
        assert self.runs.keys() == self.created - self.deleted
        for run in seen.runs:
            self._check_run(run)
        by_session = defaultdict[str, list[RunRow]](list)
        for run in seen.runs:
            by_session[run.session_id].append(run)
        for session in seen.sessions:
            check_session(session, by_session[session.session_id])
        assert not seen.orphans
        assert set(seen.keys) <= self.created, (
            "an idempotency key refers to a run that was never created"
        )

    def _check_change(
        self, run_id: str, was: str | None, became: str | None, spoiled: bool
    ) -> None:
        step = (run_id, was, became)
        assert not spoiled, f"a run that had ended was changed: {step}"
        if was is None:
            assert became in ("PENDING", "RUNNING"), step
            assert run_id not in self.created, step
            self.created.add(run_id)
        elif became is None:
            assert is_final(was), f"a run was deleted that had not ended: {step}"
            self.deleted.add(run_id)
        elif not is_final(was):
            assert (was, became) == ("PENDING", "RUNNING") or is_final(became), step
            if is_final(became):
                assert run_id not in self._ended, f"a second end: {step}"
                self._ended.add(run_id)

    def _check_run(self, run: RunRow) -> None:
        final = is_final(run.status)
        assert final == (run.finished_at is not None) == (run.run_id in self._ended), run
        assert run.attempt in (1, 2), run
        assert run.status != "PENDING" or run.background, run
        assert run.status != "RUNNING" or run.started_at is not None, run
        if run.status == "CANCELLED":
            assert run.cancel_requested_at is not None, run
            assert run.cancel_requested_by is not None, run
        if run.parent_run_id is not None:
            assert run.parent_run_id in self.runs, run
        if final:
            before = self.final.setdefault(run.run_id, run)
            assert _lasting(before) == _lasting(run), (before, run)


def _lasting(run: RunRow) -> list[Any]:
    """Return the columns that never change after the final status."""
    names = [field.name for field in fields(RunRow)]
    return [value for name, value in zip(names, astuple(run), strict=True) if name not in _LATE]


def check_session(session: SessionRow, held: list[RunRow]) -> None:
    """Check that the counters of a session match its runs."""
    assert [run.seq for run in held] == list(range(1, session.run_count + 1)), session
    assert {run.user_id for run in held} <= {session.user_id}, session
    stored = orjson.loads(session.metrics)
    metrics = {name: count for name, count in stored.items() if name not in Cost._fields}
    spent = {name: sum(tokens_of(run)[name] for run in held) for name in TOKEN_COUNTERS}
    assert metrics == spent, (session, metrics, spent)
    assert session.total_tokens == spent["total_tokens"], session
    costs = [parse_cost(run.metrics) for run in held]
    known = parse_cost(session.metrics)
    assert known.priced_tokens == sum(cost.priced_tokens for cost in costs), session
    assert abs(known.cost - sum(cost.cost for cost in costs)) < 1e-6, session
    top = [run for run in held if run.parent_run_id is None]
    shown = sum(len((run.history or "").encode()) for run in top)
    assert session.history_bytes == shown, (session, shown)
    assert session.last_status == (top[-1].status if top else None), session


def tokens_of(run: RunRow) -> dict[str, int]:
    """Return the nine counters of a run without its members."""
    stored = orjson.loads(run.metrics) if run.metrics else {}
    return {name: stored.get(name, 0) for name in TOKEN_COUNTERS}


@unit
def _rows(sql: Sql, **parameters: Any) -> Steps[list[Any]]:
    rows: list[Any] = yield Statement(sql, parameters)
    return rows


@unit
def _seen(after: int) -> Steps[Seen]:
    news = yield from _rows(_SEEN, after=after)
    runs = yield from _rows(_RUNS)
    sessions = yield from _rows(_SESSIONS)
    keys = yield from _rows(_KEYS)
    orphans = yield from _rows(_ORPHANS)
    return Seen(
        news,
        [RunRow(*row) for row in runs],
        [SessionRow(*row) for row in sessions],
        [run_id for (run_id,) in keys],
        [run_id for (run_id,) in orphans],
    )
