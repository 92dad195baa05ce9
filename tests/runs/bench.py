"""A durable root run and its members, as a process executes them, without their components."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentctl.config.quotas import Quotas
from agentctl.records.runs import NewRun, RunState
from agentctl.runs.life.admission import Admission, LegInput, admit_durable_member
from agentctl.runs.life.finish import store_end
from agentctl.runs.life.live import LiveRun, RunServices
from agentctl.runs.life.run_files import RunFiles
from agentctl.runs.log.fold import write_start_checkpoint
from agentctl.runs.log.journal import RunJournal
from agentctl.runs.log.stream import Stream
from agentctl.runs.states import Ending
from agentctl.runs.workers.recovery import recover_runs
from agentctl.runtime.component import Component
from agentctl.runtime.failures import CauseReader
from agentctl.runtime.pauses import CallOutcome, JournaledCall
from agentctl.service.service import Service
from agentctl.store.database import Database, Sql
from agentctl.store.repositories import run_reads, runs, sessions, steps
from agentctl.store.repositories.steps import StepRow
from tests.kit.deployment import Deployment
from tests.kit.rows import a_session
from tests.kit.run_specs import a_spec
from tests.kit.service import open_service

__all__ = ["NOTE", "OWNER", "SET_ATTEMPT", "Bench", "open_bench", "report_while_storing"]

OWNER = "gone"
NOTE = JournaledCall("c1", "note", {"text": "a"})
SET_ATTEMPT = Sql("UPDATE runs SET attempt = :attempt WHERE run_id = :run_id")


class Bench:
    """A durable root run in its attempt 4, whose worker has no row, and its members."""

    def __init__(self, service: Service, *, durable: bool, recorded: bool) -> None:
        self.service = service
        self.durable = durable
        self.recorded = recorded
        self.database: Database = service.hosting.databases.system
        component = service.hosting.catalog.get("agent", "echo")
        assert component is not None
        self.component: Component = component
        self.root = self.build_run("root", 4)

    def build_run(self, run_id: str, attempt: int, parent: LiveRun | None = None) -> LiveRun:
        spec = a_spec(
            run_id,
            durable=self.durable,
            recorded=self.recorded,
            parent_run_id=None if parent is None else parent.run_id,
        )
        run = LiveRun(
            spec,
            self.component,
            RunServices(
                databases=self.service.hosting.databases,
                limits=self.service.settings.limits,
                members=None,  # type: ignore[arg-type]  # no run here starts one
                cause_reader=CauseReader(self.service.settings),
                gate=self.service.hosting.gate,
                open_files=lambda run: RunFiles(run, self.service.hosting.uploads, Quotas()),
            ),
            parent,
            start=LegInput(attempt, has_checkpoint=True) if self.durable else None,
        )
        run.mark_stored(Admission(spec, OWNER, has_start=self.durable))
        return run

    async def store_root(self) -> None:
        spec = self.root.spec
        await self.database.write(sessions.create(a_session()))
        await self.database.write(runs.create(NewRun(spec, OWNER, 1)))
        if self.durable:
            await self.database.write(write_start_checkpoint(spec, "Echo", is_first=True))
            await self.database.write(SET_ATTEMPT.execute(run_id="root", attempt=4))

    async def start_member(self, run_id: str = "member") -> LiveRun:
        journal = self.journal_of(self.root)
        step = journal.begin_member(f"step-{run_id}", "walk", self.component.id, run_id)
        member = self.build_run(run_id, 1, self.root)
        await self.database.write(admit_durable_member(member.spec, "Echo", step, OWNER))
        return member

    async def end(self, run: LiveRun, ending: Ending | None = None) -> None:
        await store_end(
            run, ending or Ending.completed(), lambda late: None, lambda: None, lambda: None
        )

    def journal_of(self, run: LiveRun) -> RunJournal:
        assert run.journal is not None
        return run.journal

    async def answer_with_call(self, **state: object) -> None:
        """Store an answer of the durable root run that calls `NOTE`, and the result of the call.

        Args:
            state: the values that the call sets in the state of the session.
        """
        journal = self.journal_of(self.root)
        message: dict[str, Any] = {"role": "assistant", "content": "", "finish_reason": "tool_call"}
        message["tool_calls"] = [
            {"id": NOTE.call_id, "name": NOTE.name, "arguments": NOTE.arguments}
        ]
        added = self.root.transcript.since(self.root.transcript.mark()) | {"messages": [message]}
        body = {
            "transcript": added,
            "messages": [message],
            "conversation": {},
            "model": "m",
            "turns": 1,
            "corrected": False,
        }
        await journal.add_answer(body, [NOTE])
        self.root.state.values.update(state)
        await journal.end_call(NOTE, CallOutcome("noted"))

    async def list_steps(self, run_id: str = "root") -> list[StepRow]:
        return await self.database.read(steps.list_of_run(run_id))

    async def lose(self) -> str:
        """Recover the runs of the worker; return the status of the root run."""
        await recover_runs(self.database, OWNER)
        return (await self.read("root")).status

    async def read(self, run_id: str) -> RunState:
        state = await self.database.read(run_reads.get_state(run_id))
        assert state is not None
        return state


@asynccontextmanager
async def open_bench(
    deployment: Deployment, *, durable: bool = True, recorded: bool = False
) -> AsyncIterator[Bench]:
    """Open a bench.

    Args:
        recorded: the events of its runs are stored.
    """
    async with open_service(deployment) as service:
        bench = Bench(service, durable=durable, recorded=recorded)
        await bench.store_root()
        yield bench


def report_while_storing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Let the root run report an event now, and one more whenever something is stored.

    The second one is of a tool that ignores its stop. Return the events of the run.
    """
    stream = bench.root.stream
    stream.publish("RunContent", b'{"content":"a"}')
    write = bench.database.write

    async def report_and_write(work: Any) -> Any:
        stream.publish("RunContent", b'{"content":"b"}')
        return await write(work)

    monkeypatch.setattr(bench.database, "write", report_and_write)
    return stream
