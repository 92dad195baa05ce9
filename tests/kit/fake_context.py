"""A run context without an engine and a database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from agentctl.agents import Memories
from agentctl.config.settings import Agent, Database, Limits, Model, Settings, Team, Workflow
from agentctl.records import times
from agentctl.records.kinds import ComponentKind
from agentctl.runtime.component import Component
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.components.execute import execute_component
from agentctl.runtime.context import EarlierRun, MemberResult
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.pauses import Journal, Leg
from agentctl.runtime.transcript.events import Content, RunEvent
from agentctl.runtime.transcript.history import SessionState
from agentctl.runtime.transcript.recorder import RunRecorder
from agentctl.runtime.transcript.transcript import Transcript
from tests.kit import clock
from tests.kit.conditions import PATIENCE
from tests.kit.model import ModelEndpoint
from tests.kit.run_specs import a_spec

T = TypeVar("T")

UNREACHED_SECONDS = 4 * PATIENCE
"""A time limit that no test reaches: work that hangs fails its test and does not end by itself."""

MEMBER_SECONDS: dict[str, float] = {}
"""The maximum seconds of the runs of a member, by its id. A test of one that hangs adds it."""


class FakeContext:
    """A `RunEnvironment` that keeps its events.

    Args:
        transcript: the results of earlier legs; None in the first leg.

    Attributes:
        left: names of the work that still executed when the run ended.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        tool_timeout: float = UNREACHED_SECONDS,
        transcript: Transcript | None = None,
    ) -> None:
        self.spec = a_spec("run", "session", user_id=None, input="x", tool_timeout=tool_timeout)
        self.state = SessionState(None, 65_536)
        self.earlier_runs: list[EarlierRun] = []
        self.summary: str | None = None
        self.memories: Memories | None = None
        self.is_stopping = False
        self.has_ended = False
        self.transcript = transcript or Transcript()
        self.journal: Journal | None = None
        self.leg: Leg | None = None
        self.files = None
        self.limits: Limits = catalog.settings.limits
        self.catalog = catalog
        self.events: list[RunEvent] = []
        self.children: list[FakeContext] = []
        self.reported: list[FakeContext] = []
        self.is_reported = self.has_failed = False
        self.checkpoints = 0
        self.cancel_at_checkpoint: int | None = None
        self.cancels_members = False
        self.left: list[str] = []
        self.has_messages = False
        self.recorder = RunRecorder(self)

    def change_spec(self, **values: Any) -> None:
        """Replace values of the specification of the run."""
        self.spec = replace(self.spec, **values)

    @property
    def joined_deltas(self) -> str:
        """The joined deltas."""
        return "".join(event.delta for event in self.events if isinstance(event, Content))

    @property
    def history(self) -> list[Mapping[str, Any]]:
        return [message for run in self.earlier_runs for message in run.messages]

    def emit(self, event: RunEvent) -> None:
        self.events.append(event)

    async def is_first_of_session(self) -> bool:
        return not self.history

    def open_store(self, *, is_shared: bool) -> Any:
        """Return no store: there is no database."""

    def keep_cause(self, error: BaseException, tool: str | None = None) -> None:
        """Keep nothing."""

    async def begin_model_call(self, *, may_ask: bool = False) -> None:
        """Check nothing: there are no budgets."""

    async def take_messages(self, *, for_code: bool = False) -> Sequence[Any]:
        """Return nothing: nobody sends a message."""
        return ()

    async def name_model_call(self, message_id: str, call_id: str | None) -> None:
        """Store nothing: nobody sends a message."""

    async def report_model_failure(self, model_id: str, code: str) -> None:
        """Count nothing: there are no breakers."""

    def find_halt(self, *, tool: str | None = None, models: Sequence[str] = ()) -> None:
        """Return None: nothing is halted."""

    async def wait_while_halted(
        self, *, tool: str | None = None, models: Sequence[str] = ()
    ) -> None:
        """Wait for nothing: nothing is halted."""

    def starting(self, seconds: float) -> AbstractContextManager[None]:
        """Enclose steps that no halt waits for."""
        return nullcontext()

    def add_usage(self, usage: Mapping[str, int], model: str | None = None) -> None:
        """Add tokens; there are no budgets to check."""
        if not self.has_ended:
            self.transcript.add_usage(usage, model)

    def checkpoint(self) -> None:
        self.checkpoints += 1
        if self.checkpoints == self.cancel_at_checkpoint:
            raise asyncio.CancelledError

    async def begin_call(self, approval_id: str) -> None:
        """Store nothing: there is no database."""

    async def end_call(self, approval_id: str, result: str, *, failed: bool) -> None:
        """Store nothing: there is no database."""

    async def begin_effect(self, tool: str | None = None) -> None:
        """Store nothing: there is no database."""

    async def run_member(
        self,
        component: Component,
        message: str,
        *,
        run_id: str | None = None,
        keeps_input: bool = False,
    ) -> MemberResult:
        child = FakeContext(self.catalog)
        child.change_spec(
            parent_run_id="run",
            component_type=component.kind,
            component_id=component.id,
            input=message,
            input_object=self.spec.input_object if keeps_input else None,
        )
        child.state = self.state
        self.children.append(child)
        if self.cancels_members:
            return child.ended("CANCELLED")
        try:
            async with asyncio.timeout(MEMBER_SECONDS.get(component.id, UNREACHED_SECONDS)):
                await execute_component(component, child, self.catalog)
        except TimeoutError:
            return child.ended("ERROR", "The run exceeded its time limit", "RUN_TIMEOUT")
        except ExecutionError as failure:
            return child.ended("ERROR", failure.detail, failure.code)
        return child.ended("COMPLETED")

    def report_member(
        self, kind: ComponentKind, name: str, task: str, *, call_id: str | None = None
    ) -> FakeContext:
        member = FakeContext(self.catalog)
        member.change_spec(
            run_id=f"{self.spec.run_id}-{len(self.reported)}",
            parent_run_id=self.spec.run_id,
            component_type=kind,
            component_id=name,
            input=task,
        )
        self.reported.append(member)
        self.transcript.spans.start_member(member.spec.run_id, name, parent_id=call_id)
        return member

    async def continue_reported(
        self, kind: ComponentKind, name: str, run_id: str
    ) -> FakeContext | None:
        return None

    def end_report(self, failure: BaseException | None = None) -> None:
        self.is_reported = True

    async def wait_until_stored(self) -> None:
        """Store nothing: there is no database."""

    def ended(
        self, status: Any, detail: str | None = None, code: str | None = None
    ) -> MemberResult:
        return MemberResult(status, self.transcript.content, detail, code)

    async def execute(
        self, kind: ComponentKind, component_id: str, message: str, history: list[dict[str, Any]]
    ) -> None:
        """Run a component; like the engine, close the open calls of a run that fails."""
        component = self.catalog.get(kind, component_id)
        assert component is not None
        self.change_spec(component_type=kind, component_id=component_id, input=message)
        self.earlier_runs = [EarlierRun(history)]
        try:
            await execute_component(component, self, self.catalog)
        except (asyncio.CancelledError, ExecutionError):
            self.transcript.close_open_calls(times.now())
            raise
        finally:
            self.left = self.transcript.unstopped.names


def settings(
    endpoint: ModelEndpoint | None = None,
    *,
    model: str = "echo",
    models: tuple[Model, ...] = (),
    instructions: str = "",
    tools: tuple[str, ...] = (),
    agents: tuple[Agent, ...] = (),
    teams: tuple[Team, ...] = (),
    workflows: tuple[Workflow, ...] = (),
    limits: Limits | None = None,
    path: Path | None = None,
) -> Settings:
    """Build a configuration with the agent `writer`, the model `m`, and the given components."""
    return Settings(
        databases=(Database("main", "sqlite:///nowhere"), Database("other", "sqlite:///else")),
        models=(_model("m", model, endpoint), *models),
        agents=(Agent("writer", "m", instructions=instructions, tools=tools), *agents),
        teams=teams,
        workflows=workflows,
        limits=limits or Limits(),
        path=path,
    )


def _model(model_id: str, name: str, endpoint: ModelEndpoint | None) -> Model:
    if endpoint is None:
        return Model(model_id, "demo", name)
    return Model(model_id, "openai", name, base_url=endpoint.base_url, retries=0)


def served(model_id: str, name: str, endpoint: ModelEndpoint) -> Model:
    """Build another model of the endpoint."""
    return _model(model_id, name, endpoint)


def with_catalog(configured: Settings, work: Callable[[Catalog], Awaitable[T]]) -> T:
    """Run `work` with the catalog of a configuration, and close the catalog."""

    async def main() -> T:
        catalog = Catalog.from_settings(configured)
        try:
            return await work(catalog)
        finally:
            await catalog.close()

    return clock.run(main())


def run(
    configured: Settings,
    message: str,
    *,
    kind: ComponentKind = "agent",
    component: str = "writer",
    history: list[dict[str, Any]] | None = None,
    tool_timeout: float = UNREACHED_SECONDS,
) -> FakeContext:
    """Run a component to its end and return its context; raise its failure."""
    ended, failure = attempt(
        configured,
        message,
        kind=kind,
        component=component,
        history=history,
        tool_timeout=tool_timeout,
    )
    if failure is not None:
        raise failure
    return ended


def attempt(
    configured: Settings,
    message: str,
    *,
    kind: ComponentKind = "agent",
    component: str = "writer",
    history: list[dict[str, Any]] | None = None,
    tool_timeout: float = UNREACHED_SECONDS,
    cancels_members: bool = False,
) -> tuple[FakeContext, ExecutionError | None]:
    """Run a component and return its context, and its failure or None."""

    async def work(catalog: Catalog) -> tuple[FakeContext, ExecutionError | None]:
        context = FakeContext(catalog, tool_timeout=tool_timeout)
        context.cancels_members = cancels_members
        try:
            await context.execute(kind, component, message, history or [])
        except ExecutionError as failure:
            return context, failure
        return context, None

    return with_catalog(configured, work)
