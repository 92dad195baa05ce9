"""The journal of a live durable run: writes its steps (`runtime.journal.Journal`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import orjson

from agentctl.records.approvals import hash_call
from agentctl.records.times import now
from agentctl.runs.results import to_json
from agentctl.runs.tasks import retry_while_unavailable
from agentctl.runtime.context import EarlierRun
from agentctl.runtime.journal import JournaledCall, dump_outcome
from agentctl.runtime.pauses import CallOutcome
from agentctl.runtime.session_state import SessionState
from agentctl.store.database import Database, Work
from agentctl.store.repositories import steps
from agentctl.store.repositories.steps import StepRow


class JournaledRun(Protocol):
    """A live run, as its journal reads it."""

    attempt: int
    database: Database
    is_first: bool
    previous_instructions: str | None
    earlier_runs: Sequence[EarlierRun]
    summary: str | None
    stop_requested: asyncio.Future[None]
    state: SessionState

    @property
    def run_id(self) -> str: ...


class RunJournal:
    """The journal of one run in this process.

    Args:
        stored: the steps of earlier attempts.

    Attributes:
        is_parking: True once the run is to be handed over to another process.
        next_step: number of the next step.
    """

    def __init__(self, run: JournaledRun, stored: Sequence[StepRow] = ()) -> None:
        self.is_parking = False
        self.next_step = stored[-1].seq + 1 if stored else 0
        self._run = run
        self._begun = {row.call_id: row for row in stored if row.call_id is not None}

    async def add_answer(
        self, body: Mapping[str, Any], calls: Sequence[JournaledCall] = ()
    ) -> None:
        """Store an answer of the model, and that some of its calls begin, in one transaction."""
        body, at = {**body, **self._describe_begin()}, now()
        answer = self._build_row("answer", None, "done", at, to_json(body))
        await self._keep([answer, *(self._begin(call, at) for call in calls)])

    def _describe_begin(self) -> dict[str, Any]:
        """Return what the first step of a run stores: what the component was given."""
        run = self._run
        if self.next_step:
            return {}
        begin = {
            "earlier_runs": [asdict(earlier) for earlier in run.earlier_runs],
            "summary": run.summary,
            "previous_instructions": run.previous_instructions,
            "is_first": run.is_first,
        }
        return {"begin": begin}

    async def begin_call(self, call: JournaledCall, more: Mapping[str, Any] | None = None) -> None:
        """Store that a call begins, unless `add_answer` of this attempt did."""
        begun = self._begun.get(call.call_id)
        if begun is None or (begun.state, begun.attempt) != ("started", self._run.attempt):
            described = self._describe_begin()
            row = self._begin(call, now())
            if more is not None:
                kept = orjson.loads(begun.body or "{}") if begun is not None else described
                row.body = to_json({**kept, **more, "arguments": call.arguments})
            await self._keep([row])

    async def end_call(
        self, call: JournaledCall, outcome: CallOutcome, more: Mapping[str, Any] | None = None
    ) -> None:
        """Store the result of a call, or that it waits in the middle."""
        row, at = self._begun.get(call.call_id), now()
        if outcome.pause is not None:
            state, body = "waiting", None
        else:
            state = "failed" if outcome.failed else "done"
            kept = orjson.loads(row.body or "{}") if row is not None and more is not None else {}
            body = {**kept, **(dump_outcome(outcome) if more is None else more)}
            # A function makes its changes again when it runs again.
            if more is None and (changes := self._run.state.find_changes()) is not None:
                body["session_state"] = asdict(changes)
        if row is not None and (row.state, row.attempt) == ("started", self._run.attempt):
            row.state, row.ended_at = state, at
            row.body = None if body is None else to_json(body)
            await self._write(lambda: steps.end(row))
            return
        # Its begin is stored elsewhere, or it has no effects.
        if body is not None:
            body["arguments"] = call.arguments
        new = self._build_row(call.kind, call, state, at, None if body is None else to_json(body))
        if row is not None:
            new.seq, new.started_at = row.seq, row.started_at
        new.ended_at = at
        self._begun[call.call_id] = new
        await self._keep([new])

    def _begin(self, call: JournaledCall, at: int) -> StepRow:
        before = self._begun.get(call.call_id)
        row = self._build_row(call.kind, call, "started", at, None)
        if before is not None:
            row.seq = before.seq
        self._begun[call.call_id] = row
        return row

    def _build_row(
        self, kind: str, call: JournaledCall | None, state: str, at: int, body: str | None
    ) -> StepRow:
        run_id, seq = self._run.run_id, self.next_step
        self.next_step += 1
        return StepRow(
            run_id=run_id,
            seq=seq,
            attempt=self._run.attempt,
            kind=kind,
            call_id=None if call is None else call.call_id,
            name=None if call is None else call.name,
            arguments_hash=None
            if call is None
            else hash_call(run_id, call.call_id, call.name, call.arguments),
            state=state,
            idempotent=int(call is not None and call.idempotent),
            started_at=at,
            ended_at=at if call is None else None,
            body=body,
        )

    async def _keep(self, rows: Sequence[StepRow]) -> None:
        run = self._run
        await self._write(lambda: steps.keep(run.run_id, run.attempt, rows))

    async def _write(self, build: Callable[[], Work[bool]]) -> None:
        # A step that is stored twice after an unknown outcome is the same one.
        run = self._run
        stored = await retry_while_unavailable(
            lambda: run.database.write(build()), stopped=run.stop_requested
        )
        if not stored:
            raise asyncio.CancelledError
