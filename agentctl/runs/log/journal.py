"""The journal of a live durable run: writes its steps (`runtime.pauses.Journal`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import orjson

from agentctl.records.approvals import hash_call
from agentctl.records.times import now
from agentctl.runs.log.results import to_json
from agentctl.runs.states import ExecutedRun
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.pauses import ApprovedEnd, CallOutcome, JournaledCall, dump_outcome
from agentctl.runtime.transcript.history import StateChanges
from agentctl.store.database import Steps, Work, unit
from agentctl.store.repositories import approvals, steps
from agentctl.store.repositories.steps import StepRow
from agentctl.work.event_loop import retry_while_unavailable


class RunJournal:
    """The journal of one run in this process, a `runtime.pauses.Journal`.

    Args:
        stored_rows: the steps of earlier attempts, in their order.
        first_step: number of the first step after the checkpoint; earlier steps are part of it.
    """

    def __init__(self, run: ExecutedRun, stored_rows: Sequence[StepRow], first_step: int) -> None:
        self.is_parking = False
        """True once the run is to be handed over to another process."""

        self.next_step = stored_rows[-1].seq + 1 if stored_rows else 0
        """Number of the next step."""

        self._run = run

        new_rows = [row for row in stored_rows if row.seq >= first_step]
        # The newest step of each call after the last answer.
        self._begun = {row.call_id: row for row in new_rows if row.call_id is not None}
        # The only answer of a graph, which each superstep replaces.
        self._replaced = next((row for row in new_rows if row.kind == "answer"), None)
        # The first step of a run has what the component was given.
        self._has_begin = any(row.kind in ("answer", "step") for row in stored_rows)

    async def add_answer(
        self, body: Mapping[str, Any], calls: Sequence[JournaledCall] = ()
    ) -> None:
        body = {**body, **self._describe_begin()}
        at = now()
        # All calls before it have ended, and some models use their ids again.
        self._begun.clear()
        answer_row = self._build_row("answer", None, "done", at, to_json(body))
        call_rows = [self._begin(call, at) for call in calls]
        await self._keep([answer_row, *call_rows])

    async def replace_answer(self, body: Mapping[str, Any]) -> None:
        if self._replaced is None:
            self._replaced = self._build_row("answer", None, "done", now(), None)
        row = self._replaced
        self._begun.clear()

        # The steps before this number are part of the answer; see `log.fold`.
        row.body = to_json({**body, "after": self.next_step})
        row.attempt = self._run.attempt
        row.root_attempt = self._run.root_attempt
        row.ended_at = now()
        await self._keep([row])

    def _describe_begin(self) -> dict[str, Any]:
        """Return what the first step of a run stores: what the component was given."""
        if self._has_begin:
            return {}

        self._has_begin = True
        run = self._run
        begin = {
            "earlier_runs": [asdict(earlier) for earlier in run.earlier_runs],
            "summary": run.summary,
            "previous_instructions": run.previous_instructions,
            "is_first": run.is_first,
            "runner_kind": run.transcript.runner_kind,
        }
        return {"begin": begin}

    def begin_member(self, call_id: str, name: str, member_id: str, run_id: str) -> Work[bool]:
        """Build the write that the run of a member begins, for the transaction of its row.

        Args:
            call_id: the call or the step that starts it.
            name: the name of this call or step.
            member_id: the component of the member.
            run_id: the run of the member.
        """
        call = JournaledCall(call_id, name, {}, idempotent=True, kind="member")
        row = self._begin(call, now())
        row.body = to_json({"run_id": run_id, "member": member_id})
        run = self._run
        return steps.keep(run.run_id, run.attempt, [row])

    def find_member(self, call_id: str) -> str | None:
        """Return the run of the member that a call or a step has started; None if there is none."""
        row = self._begun.get(call_id)
        if row is None or row.kind != "member":
            return None
        run_id: str = orjson.loads(row.body or "{}")["run_id"]
        return run_id

    def end_member(self, run_id: str) -> Work[bool] | None:
        """Build the write of the end of a member and of the changed session state.

        It belongs to the transaction of the end of the member, whose journal ends with it.

        Returns:
            None for a member without a step here.
        """
        changes: StateChanges | None = None
        # A state that cannot be stored fails the run at its own end.
        with suppress(ExecutionError):
            changes = self._run.state.find_changes()

        for row in self._begun.values():
            body = orjson.loads(row.body or "{}")
            if row.kind != "member" or body["run_id"] != run_id:
                continue

            if changes is not None:
                row.body = to_json({**body, "session_state": asdict(changes)})
            row.ended_at = now()
            row.root_attempt = self._run.root_attempt
            return steps.keep(self._run.run_id, self._run.attempt, [row])

        return None

    async def begin_call(self, call: JournaledCall, more: Mapping[str, Any] | None = None) -> None:
        begun_row = self._begun.get(call.call_id)
        if begun_row is not None and self._is_working(begun_row):
            # `add_answer` has stored its begin.
            return

        begin = self._describe_begin()
        row = self._begin(call, now())
        if more is not None:
            earlier_body = begin if begun_row is None else orjson.loads(begun_row.body or "{}")
            row.body = to_json({**earlier_body, **more, "arguments": call.arguments})
        await self._keep([row])

    async def end_call(
        self,
        call: JournaledCall,
        outcome: CallOutcome,
        more: Mapping[str, Any] | None = None,
        approved: ApprovedEnd | None = None,
    ) -> None:
        begun_row = self._begun.get(call.call_id)
        at = now()

        # The run of a member, or what `begin_call` has stored, belongs to the end as well.
        body: dict[str, Any] | None = None
        if begun_row is not None and (more is not None or begun_row.kind == "member"):
            body = orjson.loads(begun_row.body or "{}")

        if outcome.pause is not None:
            state = "waiting"
        else:
            state = "failed" if outcome.failed else "done"
            body = {**(body or {}), **dump_outcome(outcome), **(more or {})}

            # A function makes its changes again when it runs again.
            if call.kind != "step":
                changes = self._run.state.find_changes()
                if changes is not None:
                    body["session_state"] = asdict(changes)

        if begun_row is not None and self._is_working(begun_row):
            begun_row.state = state
            begun_row.ended_at = at
            begun_row.body = None if body is None else to_json(body)
            step_end = steps.end(begun_row)
        else:
            # Its begin is stored elsewhere, or it has no effects.
            stored_body: str | None = None
            if body is not None:
                stored_body = to_json({**body, "arguments": call.arguments})

            new_row = self._build_row(call.kind, call, state, at, stored_body)
            if begun_row is not None:
                new_row.seq = begun_row.seq
                new_row.started_at = begun_row.started_at
            new_row.ended_at = at

            self._begun[call.call_id] = new_row
            step_end = steps.keep(self._run.run_id, self._run.attempt, [new_row])

        end = step_end
        if approved is not None and outcome.pause is None:
            text = orjson.dumps(approved.text).decode()
            approval_end = approvals.end_execution(
                approved.approval_id, self._run.run_id, state, text, at
            )
            end = _end_both(approval_end, step_end)

        await self._write(lambda: end)

    def _is_working(self, row: StepRow) -> bool:
        """Return True if a call has begun in this attempt and not ended."""
        return row.state == "started" and row.attempt == self._run.attempt

    def _begin(self, call: JournaledCall, at: int) -> StepRow:
        """Build the row of a call that begins, and keep it as the newest step of the call."""
        earlier_row = self._begun.get(call.call_id)
        row = self._build_row(call.kind, call, "started", at, None)
        if earlier_row is not None:
            # A call that is made again replaces its step.
            row.seq = earlier_row.seq
        self._begun[call.call_id] = row
        return row

    def _build_row(
        self, kind: str, call: JournaledCall | None, state: str, at: int, body: str | None
    ) -> StepRow:
        run_id = self._run.run_id
        seq = self.next_step
        self.next_step += 1

        arguments_hash: str | None = None
        if call is not None:
            arguments_hash = hash_call(run_id, call.call_id, call.name, call.arguments)

        return StepRow(
            run_id=run_id,
            seq=seq,
            attempt=self._run.attempt,
            kind=kind,
            call_id=None if call is None else call.call_id,
            name=None if call is None else call.name,
            arguments_hash=arguments_hash,
            state=state,
            idempotent=int(call is not None and call.idempotent),
            started_at=at,
            ended_at=at if call is None else None,
            body=body,
            root_attempt=self._run.root_attempt,
        )

    async def _keep(self, rows: Sequence[StepRow]) -> None:
        run = self._run
        await self._write(lambda: steps.keep(run.run_id, run.attempt, rows))

    async def _write(self, build: Callable[[], Work[bool]]) -> None:
        run = self._run
        # A step that is stored twice after an unknown outcome is the same step.
        stored = await retry_while_unavailable(
            lambda: run.database.write(build()), stopped=run.stop_requested
        )
        if not stored:
            await run.stop_as_stored()


@unit
def _end_both(approval: Work[bool], step: Work[bool]) -> Steps[bool]:
    """Store the end of an approved call in its approval, and in the journal."""
    yield from approval
    return (yield from step)
