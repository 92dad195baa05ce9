"""Reports of the events of agno: of a run, and of the runs of its members as runs of members.

Its events have the text of an exception, but not the status of the provider, so the exceptions of
model calls are kept while a run is executed.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import Any

from agno.agent import Agent
from agno.exceptions import ContextWindowExceededError
from agno.metrics import RunMetrics
from agno.models.base import Model
from agno.run.team import BaseTeamRunEvent
from agno.team import Team

from agentctl.runtime.failures import MODEL_FAILURES, ExecutionError, is_context_exceeded
from agentctl.runtime.runners import agno_gate
from agentctl.runtime.runners.agno_pauses import AgnoCall, walk_members, walk_paused
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.library_members import LibraryMembers
from agentctl.runtime.runners.library_runner import (
    DecidedCalls,
    build_status_failure,
    find_client_failure,
    find_failure,
    is_unreadable,
    to_public_failure,
)
from agentctl.runtime.runners.repeat_gate import RepeatGate
from agentctl.runtime.tracing import Span

_SERVER_STATE = frozenset(
    {
        "current_run_id",
        "current_session_id",
        "current_user_id",
        "run_id",
        "session_id",
        "workflow_id",
        "workflow_name",
    }
)
"""Keys that agno adds to the session state of a run."""

_COUNTERS = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
)

_DELEGATIONS = frozenset(
    {
        "delegate_task_to_member",
        "delegate_task_to_members",
        "execute_task",
        "execute_tasks_parallel",
    }
)
"""Tools with which the leader of a team starts members."""

_PROVIDER = frozenset({"model_provider_error", "model_authentication_error"})
"""The types of the errors of model calls."""

_failed: ContextVar[dict[str, BaseException] | None] = ContextVar("agno_failures", default=None)


class RunReport:
    """Reports one run of agno: the run itself, or the run of a member.

    Attributes:
        call_id: the call of its parent that started it, if any.
        is_paused: True if it waits for decisions, or a member of it.
        waiting: its open calls whose members wait.
    """

    def __init__(self, run: HostedRun, call_id: str | None = None) -> None:
        self.run = run
        self.call_id = call_id
        self.is_paused = False
        self.waiting: set[str] = set()
        self._delegated: dict[str, Mapping[str, Any]] = {}
        self._resumed: list[Any] = []
        self._usage: Counter[str] = Counter()
        self._earlier: Counter[str] = Counter()
        self._model_call: Span | None = None

    def add(self, name: str, event: Any) -> None:
        """Report one event about the work of the run."""
        if name == "ModelRequestStarted":
            while self._resumed:
                self.end_call(self._resumed.pop(0))
            self.run.begin_answer()
            self._model_call = self.run.start_model_call(event.model)
        elif name == "ModelRequestCompleted":
            self._add_usage(event)
        elif name in ("ReasoningContentDelta", "RunContent"):
            if self._model_call is not None:
                self._model_call.mark_first_token()
            if event.reasoning_content:
                self.run.add_thinking(event.reasoning_content)
            if name == "RunContent" and isinstance(event.content, str):
                self.run.add_text(event.content)
        elif name == "ToolCallStarted":
            self.start_call(event.tool)
        elif name == "ToolCallCompleted":
            self.end_call(event.tool)

    def _add_usage(self, event: Any) -> None:
        counts = {counter: getattr(event, counter) or 0 for counter in _COUNTERS}
        # The library reports zeros for a model that reports nothing.
        if any(counts.values()):
            self._usage.update(counts)
            self.run.set_usage(self._usage)
        if self._model_call is not None:
            self.run.end_model_call(self._model_call, counts, is_counted=True)
        self.run.complete_answer()

    def fail_model_call(self, code: str) -> None:
        """Report that the open call of a model has failed, with the code of the failure."""
        if self._model_call is not None and self._model_call.finished_at is None:
            self.run.fail_model_call(self._model_call)
            self.run.explain_failed_call(code)

    def count_rest(self, metrics: RunMetrics | None) -> None:
        """Count the tokens of parser models and others, whose calls have no events.

        Args:
            metrics: the metrics of the whole run, which has ended.
        """
        rest = _sum_counters(metrics) - self._earlier - self._usage
        if rest:
            self._usage += rest
            self.run.set_usage(self._usage)

    def start_call(self, tool: Any) -> None:
        """Report the start of a call, unless the leg before this one has reported it."""
        call_id = tool.tool_call_id or ""
        name = tool.tool_name or ""
        arguments = tool.tool_args or {}
        if name in _DELEGATIONS:
            self._delegated[call_id] = arguments
        if not self.run.transcript.is_open(call_id):
            self.run.start_call(call_id, name, arguments)

    def end_call(self, tool: Any) -> None:
        """Report the end of a call, unless its member waits."""
        call_id = tool.tool_call_id or ""
        if call_id not in self.waiting:
            self._delegated.pop(call_id, None)
            text, failed = read_result(tool)
            if self.run.repeats.is_refusal(tool.result):
                text = tool.result
            self.run.end_call(call_id, text, failed=failed)

    def resume(self, output: Any) -> None:
        """Continue with the calls whose members wait: their results come without an event.

        Args:
            output: the run of agno, which gets the results when its model is asked again.
        """
        self._earlier = _sum_counters(output.metrics)
        tools = {tool.tool_call_id: tool for tool in output.tools or ()}
        self._resumed = [
            tools[call_id]
            for call_id, name in self.run.transcript.open_calls.items()
            if name in _DELEGATIONS and call_id in tools
        ]

    def find_failed_call(self, error: BaseException | None) -> ExecutionError | None:
        """End the call in which the library has failed; return its failure, None for no such call.

        The library reports what a tool has raised, but not a result whose text it cannot make: the
        tool has had its effect then.
        """
        calls = [*self.run.transcript.open_calls.items()]
        if not isinstance(error, Exception) or len(calls) != 1 or calls[0][1] in _DELEGATIONS:
            return None
        if find_failure(error) is not None:
            return None
        failure = to_public_failure(error, self.run, calls[0][0])
        return failure if isinstance(failure, ExecutionError) else None

    def find_delegation(self, member: str) -> tuple[str | None, str]:
        """Return the open call that started a member, and its task."""
        calls = self._delegated.items()
        delegations = [entry for entry in calls if entry[1].get("member_id") == member]
        for call_id, arguments in delegations or calls:
            return call_id, str(arguments.get("task") or self.run.environment.spec.input)
        return None, self.run.environment.spec.input


class AgnoReport:
    """Reports the events of a run and of its members.

    Args:
        failed: the exceptions of model calls, by the ids of runs (`keep_failures`).
        inputs: the inputs of members, by the ids of their runs (`watch_inputs`).
        decided: the calls that a person has decided about.

    Attributes:
        failure: the last failure of a member, if any.
    """

    def __init__(
        self,
        run: HostedRun,
        failed: dict[str, BaseException],
        inputs: Mapping[str, str],
        decided: DecidedCalls,
    ) -> None:
        self.root = RunReport(run)
        self.failure: ExecutionError | None = None
        self._failed = failed
        self._inputs = inputs
        self._members = LibraryMembers(run)
        self._root_id = run.context.run_id
        self._reports = {self._root_id: self.root}
        self._gate = RepeatGate(run, self._root_id, lambda *place: place in decided.approved)
        agno_gate.use(self._gate)

    async def add(self, event: Any, *, call_id: str | None = None) -> None:
        """Report one event. Those of runs that have ended, or have no start, are dropped.

        Args:
            call_id: the open call or step that started the run of the event, if that is known.
        """
        name = event.event.removeprefix("Team")
        report = self._reports.get(event.run_id)
        if report is None and name == "RunStarted":
            report = self._start(event, call_id)
        if report is None:
            return

        if name == "RunCompleted":
            report.count_rest(event.metrics)
            # As far as it was not streamed.
            text = await report.run.set_result(event.content)
            if text and not report.run.transcript.content:
                report.run.add_text(text)

            if report is self.root:
                self.keep_state(event.session_state)
            self._end(event.run_id)
        elif name == "RunError":
            failure = report.find_failed_call(self._failed.get(event.run_id))
            failure = failure or _to_failure(event, self._failed)
            if failure.code in MODEL_FAILURES:
                report.fail_model_call(failure.code)

            # Without the exception only its text is known.
            cause = self._failed.get(event.run_id) or AgnoError(event.content)
            report.run.environment.keep_cause(cause)

            # The library gives this text to the next step of a workflow.
            event.content = failure.detail
            self._end(event.run_id, failure)
        elif name == "RunCancelled":
            cancelled = ExecutionError("AGENT_FAILED", "The agent cancelled its run")
            self._end(event.run_id, cancelled)
        elif name == "RunPaused":
            self._pause(report, event.parent_run_id)
        else:
            report.add(name, event)
            self._gate.check()

    def _start(self, event: Any, call_id: str | None) -> RunReport:
        is_team = isinstance(event, BaseTeamRunEvent)
        member_id, name = (
            (event.team_id, event.team_name) if is_team else (event.agent_id, event.agent_name)
        )

        parent_id = event.parent_run_id if event.parent_run_id in self._reports else self._root_id
        parent = self._reports.get(parent_id, self.root)

        delegating_call, task = parent.find_delegation(member_id)

        member = self._members.start(
            event.run_id,
            name or member_id,
            self._inputs.get(event.run_id) or task,
            kind="team" if is_team else "agent",
            parent=parent_id if parent is not self.root else None,
            call_id=call_id or delegating_call,
        )

        self._gate.adopt(event.run_id, member.run)
        report = RunReport(member.run, delegating_call)
        self._reports[event.run_id] = report
        return report

    def _pause(self, report: RunReport, parent_id: str | None) -> None:
        report.is_paused = True
        if report is not self.root and report.call_id is not None:
            self._reports.get(parent_id or "", self.root).waiting.add(report.call_id)

    def _end(self, run_id: str, failure: ExecutionError | None = None) -> None:
        if run_id == self._root_id:
            if failure is not None:
                raise failure
            return
        del self._reports[run_id]
        self.failure = failure or self.failure
        self._members.end(run_id, failure)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the members that wait, for the state of a pause."""
        return self._members.to_json()

    async def restore(self, members: Iterable[Mapping[str, Any]]) -> None:
        """Continue with the members of a pause."""
        await self._members.restore(members)
        for member in self._members.list_open():
            self._gate.adopt(member.key, member.run)
            self._reports[member.key] = RunReport(member.run)

    def start_waiting(self, calls: Iterable[AgnoCall]) -> None:
        """Report the calls of a pause, whose events come when they are made."""
        for call in calls:
            self._reports.get(call.run_id, self.root).start_call(call.tool)

    def settle(self, output: Any, calls: DecidedCalls) -> None:
        """Report the calls that were decided about and are not made.

        Args:
            output: the run with which agno continues; it fills in the results of delegations.
        """
        for (run_id, call_id), (text, failed) in calls.settled.items():
            self._reports.get(run_id, self.root).run.end_call(call_id, text, failed=failed)
        for run in walk_paused(output):
            if run.run_id in self._reports:
                self._reports[run.run_id].resume(run)

    def keep_state(self, values: Mapping[str, Any] | None) -> None:
        """Take over the state of the session as the agent has changed it."""
        if values is None:
            return

        state = self.root.run.context.state
        own_values = {key: value for key, value in values.items() if key not in _SERVER_STATE}

        state.clear()
        state.update(own_values)


def watch_inputs(owners: Iterable[Any]) -> dict[str, str]:
    """Keep the inputs of the runs that agents and teams, and members of these, start.

    The events of the library do not have them.

    Args:
        owners: the copies for one run, which are changed.

    Returns:
        The inputs by the ids of the runs, as they start; `""` for one that is no text.
    """
    inputs: dict[str, str] = {}

    for owner in owners:
        for member in walk_members(owner):
            if isinstance(member, Agent | Team):
                member.arun = functools.partial(_start_watched, member.arun, inputs)

    return inputs


def _start_watched(
    start: Callable[..., Any], inputs: dict[str, str], *args: Any, **options: Any
) -> Any:
    run_input = options.get("input", args[0] if args else None)
    if isinstance(run_input, list) and run_input:
        run_input = getattr(run_input[-1], "content", None)

    inputs[options.get("run_id") or ""] = run_input if isinstance(run_input, str) else ""

    return start(*args, **options)


def _sum_counters(metrics: RunMetrics | None) -> Counter[str]:
    """Return the tokens of all models of a run, by counter."""
    details = (metrics.details if metrics is not None else None) or {}
    models = [model for role in details.values() for model in role]

    return Counter({name: sum(getattr(model, name) for model in models) for name in _COUNTERS})


def read_result(tool: Any) -> tuple[str, bool]:
    """Return the text of a call that has ended, and whether it failed."""
    if tool.tool_call_error:
        # The text of a failed call is the text of an exception.
        return f"The tool {tool.tool_name} failed", True
    return tool.result or "", False


class AgnoError(Exception):
    """The text of an exception that agno has caught."""


@contextmanager
def keep_failures() -> Iterator[dict[str, BaseException]]:
    """Keep the exceptions of model calls in this context, by the id of their run of agno."""
    _watch_models()
    failures: dict[str, BaseException] = {}

    token = _failed.set(failures)

    try:
        yield failures
    finally:
        _failed.reset(token)


def _to_failure(event: Any, failed: dict[str, BaseException]) -> ExecutionError:
    """Return the failure that an event of agno reports, without the text of its exception."""
    error = failed.get(event.run_id)
    if error is not None and (failure := find_failure(error)):
        return failure

    is_provider = event.error_type in _PROVIDER

    if isinstance(error, ContextWindowExceededError) or (
        is_provider and is_context_exceeded(str(error))
    ):
        return ExecutionError("CONTEXT_EXCEEDED")

    if not is_provider:
        is_answer = error is not None and is_unreadable(error)
        return ExecutionError("MODEL_ANSWER_INVALID" if is_answer else "AGENT_FAILED")

    if error is None:
        return ExecutionError("MODEL_UNAVAILABLE")

    # The failure of the client's exception, or else of the status that agno found.
    client_failure = find_client_failure(error, in_model=True)
    if client_failure is not None:
        return client_failure
    return build_status_failure(getattr(error, "status_code", 502), error)


def _watch_models() -> None:
    """Let the calls of all models keep their exceptions; other contexts are not affected."""
    if hasattr(Model.aresponse_stream, "is_watched"):
        return
    stream = Model.aresponse_stream
    response = Model.aresponse

    @functools.wraps(stream)
    async def watched_stream(self: Model, *args: Any, **options: Any) -> AsyncIterator[Any]:
        try:
            async with aclosing(stream(self, *args, **options)) as parts:
                async for part in parts:
                    yield part
        except Exception as error:
            _keep(error, options)
            raise

    @functools.wraps(response)
    async def watched_response(self: Model, *args: Any, **options: Any) -> Any:
        try:
            return await response(self, *args, **options)
        except Exception as error:
            _keep(error, options)
            raise

    watched_stream.is_watched = True  # type: ignore[attr-defined]
    Model.aresponse_stream = watched_stream
    Model.aresponse = watched_response


def _keep(error: BaseException, options: dict[str, Any]) -> None:
    failures = _failed.get()
    run = options.get("run_response")

    if failures is not None and run is not None:
        failures[run.run_id] = error
