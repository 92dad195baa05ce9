"""Sessions of the benchmarks in the database of agentctl, written through its repositories."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from agentctl.records.text import new_id
from agentctl.service.service import Service
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import runs, sessions
from agentctl.store.visibility import EVERYONE
from bench.work import Session, Work
from tests.kit.deployment import Deployment
from tests.kit.rows import a_run

__all__ = ["append_run", "seed_database"]

RUNS_AT_ONCE = 200
"""Runs per transaction."""

SECOND = 1_000_000


def seed_database(work: Work) -> None:
    """Create the database of the configuration and fill it."""
    asyncio.run(_seed(work))


async def _seed(work: Work) -> None:
    async with Service.open(Deployment(work.folder).settings, create=True) as service:
        database = service.hosting.databases["main"]
        short = [session for session in work.sessions if session.runs == 1]
        for batch in _batch(short, RUNS_AT_ONCE):
            await database.write(_write_short_sessions(work, batch))
        for session in work.sessions:
            if session.runs != 1:
                await _write_session(database, work, session)


def _batch(sessions: Sequence[Session], size: int) -> Iterator[Sequence[Session]]:
    for first in range(0, len(sessions), size):
        yield sessions[first : first + size]


async def _write_session(database: Database, work: Work, session: Session) -> None:
    for first in range(0, max(session.runs, 1), RUNS_AT_ONCE):
        last = min(session.runs, first + RUNS_AT_ONCE)
        await database.write(_write_runs(work, session, first, last))


@unit
def _write_short_sessions(work: Work, batch: Iterable[Session]) -> Steps[None]:
    for session in batch:
        yield from _write_runs(work, session, 0, 1)


@unit
def _write_runs(work: Work, session: Session, first: int, last: int) -> Steps[None]:
    agent = work.agents[0]
    data = {"name": agent["name"], "agent_id": agent["id"]}
    data |= {"model": {"id": "paced", "provider": "openai"}}
    row = sessions.build_session(
        session.session_id,
        "agent",
        user_id=work.user,
        now=session.created_at * SECOND,
        component_id=agent["id"],
        component_name=agent["name"],
        component_data=json.dumps(data, separators=(",", ":")),
        session_name=session.session_id,
    )
    yield from sessions.get_or_create_for_run(row, EVERYONE)
    for number in range(first, last):
        yield from append_run(work, session, number)


@unit
def append_run(work: Work, session: Session, number: int) -> Steps[None]:
    """Write a run that has ended; `number` is 0 for the first one of the session."""
    run_id = new_id()
    now = (session.created_at + number) * SECOND
    new = a_run(
        run_id,
        session.session_id,
        component_id=work.agents[0]["id"],
        user_id=work.user,
        input=work.question,
        created_at=now,
    )
    yield from runs.create(new)
    yield from runs.claim(run_id, 1, "seed", now)
    shown = list(_build_messages(work, now // SECOND))
    system = {"role": "system", "content": work.agents[0]["instructions"]}
    compact = partial(json.dumps, separators=(",", ":"))
    end = runs.RunEnd(
        run_id,
        1,
        "COMPLETED",
        work.answer,
        history=compact(shown if number else [shown[0] | system, *shown]),
        messages=compact([system | {"created_at": now // SECOND}, *shown]),
        tools="[]",
        metrics=compact(USAGE),
        error_code=None,
        error_detail=None,
        finished_at=now,
        stopped_at=now,
    )
    yield from runs.finish(end)


USAGE = {"input_tokens": 20, "output_tokens": 40, "total_tokens": 60}


def _build_messages(work: Work, created_at: int) -> Iterator[dict[str, object]]:
    """Yield a question and its answer, as `chat_history` has them (docs/contract.md "Records")."""
    common = {"from_history": False, "stop_after_tool_call": False, "created_at": created_at}
    yield {"content": work.question, "role": "user", **common}
    yield {"content": work.answer, "role": "assistant", **common, "metrics": USAGE}
