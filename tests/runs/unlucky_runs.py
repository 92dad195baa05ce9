"""Runs of every kind of agent, in which one call of the database fails, and what must hold then."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentctl import errors
from agentctl.config.budgets import Budget
from agentctl.config.files import Files
from agentctl.config.settings import (
    Agent,
    Database,
    Memory,
    Model,
    Settings,
    Step,
    Summary,
    Team,
    Workflow,
)
from agentctl.interface.requests import ResumeRequest, RunRequest
from agentctl.interface.requests.approvals import Ruling
from agentctl.interface.requests.files import FileUpload
from agentctl.records.approvals import ApprovalRow
from agentctl.records.kinds import ComponentKind
from agentctl.records.text import new_id
from agentctl.records.times import now
from agentctl.runs.engine import engine
from agentctl.runs.life import finish
from agentctl.runs.log import stream
from agentctl.runs.states import Ending
from agentctl.runtime.components.execute import prepare_components
from agentctl.service.service import Service
from agentctl.store.database import Sql
from agentctl.store.repositories import approvals, integrity
from agentctl.work.event_loop import retry_while_unavailable
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.service import admin, user
from tests.kit.site import answer, call
from tests.runs import unlucky_agents
from tests.runs.failing_calls import MOMENTS, FailingCalls, Failure

LIBRARIES = {
    "pydantic-ai": "pydantic_payer",
    "langgraph": "graph_payer",
    "langgraph-memory": "graph_with_memory",
    "agno": "agno_payer",
    "agno-team": "agno_team",
    "agno-workflow": "agno_workflow",
    "openai-agents": "openai_payer",
}
"""The agents of libraries by kind: their names in `unlucky_libraries`."""

CODE = {
    "function": "tests.runs.unlucky_agents:function",
    "generator": "tests.runs.unlucky_agents:generator",
    **{kind: f"tests.runs.unlucky_libraries:{name}" for kind, name in LIBRARIES.items()},
}
"""The agents in code by kind."""

DURABLE_CODE = ("function", "pydantic-ai", "langgraph")

KINDS: dict[str, ComponentKind] = {
    "configured": "agent",
    "configured-durable": "agent",
    "summarized": "agent",
    "team": "team",
    "team-durable": "team",
    "workflow": "workflow",
    "workflow-durable": "workflow",
    **dict.fromkeys(CODE, "agent"),
    **{f"{kind}-durable": "agent" for kind in DURABLE_CODE},
}
"""The components of the runs, by their ids."""

FOLLOWING = ("configured", "langgraph-memory")
"""The kinds whose sessions have an earlier run, which the run reads."""

PLAN = json.dumps(
    [
        answer(call("note", "first")),
        answer(call("pay", amount=1)),
        answer(call("note", "second")),
        answer(text="done"),
    ]
)
"""The message of each run: a note at once, a payment after an approval, a note, and an answer."""

EFFECTS = {"note": 2, "pay": 1}

FINAL = ("COMPLETED", "ERROR", "CANCELLED")

_SAMPLE_STEP = 73
"""Of that many calls, a sample lets one fail; the calls differ between the kinds."""


def is_of_library(kind: str) -> bool:
    """Return True if the agents of a kind need a library, whose import takes seconds."""
    return kind.removesuffix("-durable") in LIBRARIES


def build_settings(folder: Path, model_url: str, code: str) -> Settings:
    """Build a configuration in one database.

    Args:
        code: the kind of the only agent in code, if it is one.
    """
    tools = ("tests.runs.unlucky_agents:note", "tests.runs.unlucky_agents:pay")
    agents = [
        Agent("configured", "plan", tools=tools, database="main"),
        Agent("configured-durable", "plan", tools=tools, durable=True, database="main"),
        Agent(
            "summarized",
            "plan",
            tools=tools,
            summary=Summary(every_runs=1, model="facts"),
            memory=Memory(mode="after_run", model="facts"),
            database="main",
        ),
    ]
    if (place := CODE.get(code.removesuffix("-durable"))) is not None:
        is_durable = code.endswith("-durable")
        agents.append(Agent(code, object=place, durable=is_durable, database="main"))
    members = ("configured",)
    durable_members = ("configured-durable",)
    return Settings(
        databases=(Database("main", f"sqlite:///{folder / 'main.db'}"),),
        models=tuple(
            Model(name, "openai", name, model_url, retries=0)
            for name in ("plan", "delegate", "facts")
        ),
        agents=tuple(agents),
        teams=(
            Team("team", "delegate", members, database="main"),
            Team("team-durable", "delegate", durable_members, durable=True, database="main"),
        ),
        workflows=(
            Workflow("workflow", (Step("pay", agent="configured"),), database="main"),
            Workflow(
                "workflow-durable",
                (Step("pay", agent="configured-durable"),),
                durable=True,
                database="main",
            ),
        ),
        files=Files(folder=folder / "files"),
        # A run reports what it has used before each call of a model.
        budgets=(Budget("all", "server", tokens=1_000_000_000, on_exceed="stop"),),
    )


class UnluckyRuns:
    """A service whose runs lose one call of the database each."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.database = service.hosting.databases.system
        self.failing = FailingCalls(service.hosting.databases.get_open().values())
        self._earlier: Sequence[RunFacts] = ()
        self._is_done = False

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, folder: Path, model_url: str, kind: str) -> AsyncIterator[UnluckyRuns]:
        """Open a service for runs of a kind as a server does, without its repeated jobs."""
        settings = build_settings(folder, model_url, kind)
        async with Service.open(settings, create=True) as service:
            await service.hosting.databases.open_all()
            prepare_components(service.hosting.catalog)
            await service._worker.register()
            service.hosting.engine.claims.is_serving = True
            yield cls(service)

    async def execute(
        self, kind: str, *, streamed: bool, failure: Failure | None = None
    ) -> list[str]:
        """Run a component, approve what it asks, and return the rules that do not hold.

        A failure that lasts ends when the run was cancelled, and its work has stopped.
        """
        session_id = new_id()
        request = await self._build_request(kind, session_id)
        self._earlier = await self.list_runs(session_id)
        self.failing.begin(failure)
        try:
            async with asyncio.timeout(PATIENCE):
                work = [self._start(kind, request, streamed=streamed), self._go_on(session_id)]
                if failure is not None and failure.lasts:
                    work.append(self._cancel_when_failing())
                await asyncio.gather(*work)
        finally:
            self.failing.end()
        is_cancelled = failure is not None and failure.lasts
        return await self._find_problems(
            kind, session_id, streamed=streamed, is_cancelled=is_cancelled
        )

    async def _build_request(self, kind: str, session_id: str) -> RunRequest:
        operations = user(self.service)
        if kind in FOLLOWING:
            first = RunRequest("[]", session_id=session_id)
            await operations.runs.create(KINDS[kind], kind, first)

        async def content() -> AsyncIterator[bytes]:
            yield b"a text"

        file = (await operations.files.upload(FileUpload("given.txt"), content())).value
        return RunRequest(
            PLAN,
            session_id=session_id,
            # A client may repeat the request after a 503 then.
            idempotency_key=session_id,
            files=(file["file_id"],),
        )

    async def _start(self, kind: str, request: RunRequest, *, streamed: bool) -> None:
        """Start a run as a client does, which repeats the request until it is not a 503."""
        operations = user(self.service)
        while True:
            try:
                if not streamed:
                    await operations.runs.create(KINDS[kind], kind, request)
                    return
                async with aclosing(operations.runs.stream(KINDS[kind], kind, request)) as events:
                    async for _ in events:
                        pass
                return
            except errors.Unavailable:
                await asyncio.sleep(0.001)

    async def _cancel_when_failing(self) -> None:
        """Cancel the run in its process while the database is away, and let it come back."""
        await wait_until(lambda: self.failing.has_failed or self._is_done)
        live = self.service.hosting.engine.root_runs()
        for run in live:
            run.stop(Ending.cancelled("boss", None))
        # The database comes back only when the work has stopped: the cancel ends each wait for it.
        await wait_until(lambda: all(run.has_ended for run in live))
        self.failing.repair()

    async def _go_on(self, session_id: str) -> None:
        """Approve what the runs of a session ask for, until all of them have ended."""
        claims = self.service.hosting.engine.claims
        self._is_done = False
        while True:
            rows = await self.list_runs(session_id)
            if rows and all(row.status in FINAL for row in rows) and not self._is_busy():
                self._is_done = True
                return
            for row in rows:
                if row.parent_run_id is None and row.status == "PAUSED":
                    await self._approve_all(row.run_id)
            if not self._is_busy():
                # The sweep of a server does this: a claim that has failed is made by it.
                with contextlib.suppress(errors.Unavailable):
                    await claims.claim_waiting(self.database)
            await asyncio.sleep(0.005)

    def _is_busy(self) -> bool:
        engine = self.service.hosting.engine
        return engine.has_live_runs() or bool(engine._run_tasks._tasks)

    async def list_runs(self, session_id: str) -> list[RunFacts]:
        rows = await self._look(_LIST_RUNS.rows(RunFacts, session_id=session_id))
        earlier = {row.run_id for row in self._earlier}
        return [row for row in rows if row.run_id not in earlier]

    async def _look(self, work: Any) -> Any:
        """Read what the test wants to know; this call does not count, and does not fail."""
        with self.failing.paused():
            return await self.database.read(work)

    async def _approve_all(self, run_id: str) -> None:
        operations = admin(self.service)
        for row in await self._look(approvals.list_of_root(run_id)):
            if row.status == "pending":
                ruling = Ruling("approve", row.arguments_hash)
                with contextlib.suppress(errors.Unavailable, errors.Conflict):
                    await operations.approvals.decide(
                        row.component_type, row.component_id, row.approval_id, ruling
                    )

    async def _find_problems(
        self, kind: str, session_id: str, *, streamed: bool, is_cancelled: bool
    ) -> list[str]:
        rows = await self.list_runs(session_id)
        asked = [
            row
            for run in rows
            for row in await self.database.read(approvals.list_of_run(run.run_id))
        ]
        made = {
            name: count for (of, name), count in unlucky_agents.ledger.items() if of == session_id
        }
        found = await self.database.read(integrity.find_inconsistent(10, now()))
        problems = [f"inconsistent: {row}" for row in found]
        if [row.parent_run_id for row in rows].count(None) != 1:
            problems.append(f"there are other runs than one root run: {rows}")
        if kind == "summarized" and not is_cancelled and len(rows) != 3:
            problems.append(f"the session has no summary, or no memories: {rows}")
        if is_cancelled and any(row.status == "CANCELLED" for row in rows):
            return problems + _check_cancelled(rows, asked, made)

        problems += [f"a run ended in another way: {row}" for row in rows if not row.is_complete]
        if made != EFFECTS:
            problems.append(f"the effects are {made}")
        if [(row.kind, row.status, row.execution) for row in asked] != [
            ("approval", "approved", "done")
        ]:
            problems.append(f"the approvals are {asked}")
        for row in rows:
            for entry in json.loads(row.tools or "[]"):
                if entry["tool_call_error"] or not entry["result"]:
                    problems.append(f"the record of {entry['tool_name']} is {entry}")
            if row.parent_run_id is None:
                problems += await self._check_events(kind, row, has_all=streamed)
        return problems

    async def _check_events(self, kind: str, root: RunFacts, *, has_all: bool) -> list[str]:
        """Check that a reader of the stored events gets them all: they end with the end."""
        events = user(self.service).runs.resume(
            KINDS[kind], kind, root.run_id, ResumeRequest(session_id=root.session_id)
        )
        names = [event.name async for event in events]
        problems = list[str]()
        if not names or not names[-1].endswith("Completed"):
            problems.append(f"the events end with {names[-3:]}")
        starts = sum(name.endswith("ToolCallStarted") for name in names)
        ends = sum(name.endswith("ToolCallCompleted") for name in names)
        if has_all and starts != ends:
            problems.append(f"there are events of {starts} calls that begin, and {ends} that end")
        return problems


def _check_cancelled(
    rows: Sequence[RunFacts], asked: Sequence[ApprovalRow], made: Mapping[str, int]
) -> list[str]:
    """Return what contradicts the ledger after a cancel during an outage."""
    problems = list[str]()
    for row in rows:
        if row.status == "ERROR":
            problems.append(f"a run ended in another way: {row}")
    if made.get("note", 0) > 2 or made.get("pay", 0) > 1:
        problems.append(f"the effects are {made}")
    if made.get("pay"):
        # The end of the call could not be stored any more; it may be unknown, never not made.
        if asked[0].execution not in ("done", "unknown"):
            problems.append(f"the payment was made, its record is {asked[0]}")
    elif any(row.execution in ("done", "failed", "executing") for row in asked):
        problems.append(f"no payment was made, its record is {asked[0]}")
    return problems


class RunFacts(NamedTuple):
    """The columns of a run that the checks need."""

    run_id: str
    session_id: str
    parent_run_id: str | None
    component_id: str
    status: str
    error_code: str | None
    error_detail: str | None
    cancel_reason: str | None
    tools: str | None

    @property
    def is_complete(self) -> bool:
        return self.status == "COMPLETED"


_LIST_RUNS = Sql(
    f"SELECT {', '.join(RunFacts._fields)} FROM runs WHERE session_id = :session_id"
    " ORDER BY created_at"
)


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything that waits for the database try again at once."""
    # The pauses are a default of the function, which a module attribute would not change.
    defaults: Any = retry_while_unavailable.__kwdefaults__
    monkeypatch.setitem(defaults, "pauses", (0.001,))
    monkeypatch.setattr(finish, "RETRY_SECONDS", (0.001,))
    monkeypatch.setattr(stream, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(engine, "SEARCH_SECONDS", 0.001)


class Search:
    """Lets each call of the runs of a kind fail in turn.

    Attributes:
        runs: number of runs in which a call failed.
        problems: what did not hold, with the call that failed.
    """

    def __init__(self, unlucky: UnluckyRuns, kind: str, *, streamed: bool) -> None:
        self.runs = 0
        self.problems = list[str]()
        self._unlucky = unlucky
        self._kind = kind
        self._streamed = streamed
        self._method = ""

    async def run(self, *, step: int = 1, first: int = 0) -> None:
        """Fail every `step`-th call, from a number on, at each moment and until a cancel.

        The last run makes fewer calls, and none of them fails.
        """
        for number in itertools.count(first, step):
            if not await self._try(Failure(number)):
                return
            await self._try(Failure(number, lasts=True))
            for moment in MOMENTS[1:]:
                # A read has no outcome that could be unknown.
                if self._method == "write":
                    await self._try(Failure(number, moment))

    async def _try(self, failure: Failure) -> bool:
        """Let a call fail; return False if the run has made fewer calls."""
        unlucky = self._unlucky
        found = await unlucky.execute(self._kind, streamed=self._streamed, failure=failure)
        if not unlucky.failing.has_failed:
            assert not found, found
            return False
        self.runs += 1
        failed = unlucky.failing.calls[failure.number]
        self._method = failed.method
        self.problems += [f"{failure} {failed}: {problem}" for problem in found]
        return True


async def fail_every_call(folder: Path, model_url: str, kind: str) -> None:
    """Let every call of the runs of a kind fail in turn. Every other kind is streamed."""
    async with UnluckyRuns.open(folder, model_url, kind) as unlucky:
        search = Search(unlucky, kind, streamed=_has_odd_number(kind))
        await search.run()

    assert not search.problems
    # Each kind makes more calls than that.
    assert search.runs > 60


async def fail_some_calls(folder: Path, model_url: str, kind: str) -> None:
    """Let some calls of a kind fail, other ones than those of the kind before it.

    The kinds that `fail_every_call` streams are not streamed here, and the other way around.
    """
    first = 2 * [*KINDS].index(kind) % _SAMPLE_STEP
    async with UnluckyRuns.open(folder, model_url, kind) as unlucky:
        search = Search(unlucky, kind, streamed=not _has_odd_number(kind))
        await search.run(step=_SAMPLE_STEP, first=first)

    assert not search.problems
    assert search.runs


def _has_odd_number(kind: str) -> bool:
    return [*KINDS].index(kind) % 2 == 1
