"""Workflows of agno (docs/agents.md "agno"): their steps, and the runs of the agents in them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import orjson
from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.run.base import BaseRunOutputEvent, RunStatus
from agno.run.workflow import BaseWorkflowRunOutputEvent, WorkflowRunOutput
from agno.session.workflow import WorkflowSession
from agno.team import Team
from agno.workflow import Workflow

from agentctl.records.text import replace_unstorable
from agentctl.records.times import now_in_seconds
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.imports import UnusableObject
from agentctl.runtime.pauses import Paused
from agentctl.runtime.runners.agno import AgnoBase, add_event, build_options, read_prompt
from agentctl.runtime.runners.agno_pauses import StepPause, decide_step, find_step_pause
from agentctl.runtime.runners.agno_report import AgnoReport, keep_failures, watch_inputs
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.library_runner import DecidedCalls, RunnerOptions, keep_state
from agentctl.runtime.tracing import Span

_log = logging.getLogger("agentctl.runtime")

_PAUSES = frozenset(
    {
        "ConditionPaused",
        "RouterPaused",
        "StepExecutorPaused",
        "StepOutputReview",
        "StepPaused",
        "WorkflowPaused",
    }
)
"""The last events of a workflow that waits."""

_REVIEWS = (
    "requires_confirmation",
    "requires_user_input",
    "requires_output_review",
    "requires_iteration_review",
)
"""The fields of a `HumanReview` that ask a person."""

_INNER_STEPS = ("steps", "else_steps", "choices")
"""The attributes of a step that have other steps."""


class AgnoWorkflowRunner(AgnoBase):
    """The runner of a workflow of agno. Each run uses a copy of it.

    The storage of the workflow is not used: its session has the earlier runs of our session, which
    the library gives to the steps that ask for them.

    Raises:
        UnusableObject: a step inside of another step has a review; the library never asks for it.
    """

    def __init__(self, target: Any, options: RunnerOptions) -> None:
        super().__init__(target, options)
        _check_reviews(target.steps)

    async def run(self, message: str, run: HostedRun) -> None:
        """Execute a run in the task of the caller."""
        context = run.context

        # Without a database the library warns that it cannot keep a history.
        workflow: Workflow = self._target.deep_copy(update={"db": InMemoryDb()})
        session = _build_session(workflow, run)
        _replace_storage(workflow, session)

        options = build_options(workflow, run)
        calls = DecidedCalls(run)
        stream = {"stream": True, "stream_events": True}
        leg = run.environment.leg

        with keep_failures() as failures:
            inputs = watch_inputs(walk_executors(workflow.steps))
            report = WorkflowReport(run, failures, workflow, inputs, calls)

            if leg is None:
                prompt, media = await read_prompt(run, self.input_schema)
                events: Any = workflow.arun(
                    prompt,
                    run_id=context.run_id,
                    session_id=context.session_id,
                    user_id=context.user_id,
                    session_state=dict(context.state),
                    **options,
                    **media,
                    **stream,
                )
            else:
                stored_output = await run.restore_files(leg.state["output"])
                output = WorkflowRunOutput.from_dict(stored_output)

                pause = find_step_pause(output, walk_executors(workflow.steps))
                if pause is None:
                    raise ExecutionError("INTERRUPTED")

                decide_step(pause, leg, calls)
                await report.restore(leg.state, pause, calls)

                session.upsert_run(output)
                _give_options(workflow, options, run)
                events = await workflow.acontinue_run(output, **stream)

            try:
                async with aclosing(events):
                    async for event in events:
                        await report.add(event, calls)
                        await run.take_turn()
            except (ExecutionError, Paused):
                raise
            except Exception as error:
                _log.warning("run %s: the workflow failed", context.run_id, exc_info=error)
                run.environment.keep_cause(error)
                raise report.fail() from error

        if report.is_paused:
            _pause(report, session, workflow)


def _build_session(workflow: Workflow, run: HostedRun) -> WorkflowSession:
    """Return the session with the earlier runs, as the library stores them."""
    session = WorkflowSession(
        session_id=run.context.session_id, user_id=run.context.user_id, workflow_id=workflow.id
    )

    session.session_data = {"session_state": dict(run.context.state)}

    session.runs = []

    for number, earlier in enumerate(run.environment.earlier_runs):
        texts = {message["role"]: message["content"] for message in earlier.messages}

        session.runs.append(
            WorkflowRunOutput(
                run_id=f"earlier-{number}",
                input=texts.get("user"),
                content=texts.get("assistant"),
                status=RunStatus.completed,
            )
        )

    return session


def _replace_storage(workflow: Any, session: WorkflowSession) -> None:
    def read_or_create_session(*_: Any, **__: Any) -> WorkflowSession:
        return session

    async def aget_session(*_: Any, **__: Any) -> WorkflowSession:
        return session

    workflow.read_or_create_session = read_or_create_session
    workflow.aget_session = aget_session


def _give_options(workflow: Any, options: Mapping[str, Any], run: HostedRun) -> None:
    """Give the agents of a workflow what a continued run of the library does not pass on."""
    for executor in walk_executors(workflow.steps):
        executor.dependencies = {**(executor.dependencies or {}), **options["dependencies"]}
        executor.metadata = {**(executor.metadata or {}), **options["metadata"]}
        executor.session_state = run.context.state
        executor.user_id = run.context.user_id


def _check_reviews(steps: Any) -> None:
    """Check that the library asks for each review of a workflow.

    It asks between the steps of the workflow itself, and executes the steps inside of a loop, a
    condition, a router, a group or a parallel one as if nobody had to be asked.

    Args:
        steps: the steps of the workflow; a function that makes them in a run cannot be checked.

    Raises:
        UnusableObject: it does not.
    """
    if not isinstance(steps, list | tuple):
        steps = getattr(steps, "steps", None)
    if not isinstance(steps, list | tuple):
        return

    for step in steps:
        for inner in _walk_steps(step, _INNER_STEPS):
            if inner is step or not _asks_person(inner):
                continue
            name = getattr(inner, "name", None) or getattr(inner, "__name__", "a step")
            outer = getattr(step, "name", None) or type(step).__name__
            raise UnusableObject(
                f"agno never asks for the review of {name}, which is inside of {outer}",
                f"make {name} a step of the workflow itself, or move its review to {outer}",
            )


def _asks_person(step: Any) -> bool:
    """Return True for a step with a review."""
    review = getattr(step, "human_review", None)
    # A function can have them from the decorator `pause`.
    return any(
        getattr(review, name, None) or getattr(step, f"_hitl_{name}", None) for name in _REVIEWS
    )


def walk_executors(steps: Any) -> Iterator[Any]:
    """Yield the agents and teams of steps at any depth."""
    for step in _walk_steps(steps, (*_INNER_STEPS, "workflow")):
        for name in ("agent", "team"):
            executor = getattr(step, name, None)
            if isinstance(executor, Agent | Team):
                yield executor


def _walk_steps(steps: Any, names: Sequence[str]) -> Iterator[Any]:
    """Yield a step, or those of a list, and the steps inside of them.

    Args:
        names: the attributes of a step that have other steps. A function that makes them is left
            out: they are known in a run only.
    """
    if isinstance(steps, list | tuple):
        # A choice of a router can be a list of steps, too.
        for step in steps:
            yield from _walk_steps(step, names)
        return

    yield steps
    for name in names:
        inner = getattr(steps, name, None)
        if inner is not None and not callable(inner):
            yield from _walk_steps(inner, names)


class WorkflowReport:
    """Reports the events of a workflow: its steps, and the runs of agents in them as members.

    Attributes:
        members: the reports of these runs.
        is_paused: True if the workflow waits.
    """

    def __init__(
        self,
        run: HostedRun,
        failed: dict[str, BaseException],
        workflow: Any,
        inputs: Mapping[str, str],
        decided: DecidedCalls,
    ) -> None:
        self.is_paused = False
        self.run = run
        self.members = AgnoReport(run, failed, inputs, decided)
        self._workflow = workflow
        self._open: dict[str, tuple[int, Any, Span]] = {}
        self._number = 0
        self._last = _find_last_step(workflow)

    async def add(self, event: Any, calls: DecidedCalls) -> None:
        """Report one event."""
        if not isinstance(event, BaseWorkflowRunOutputEvent):
            if isinstance(event, BaseRunOutputEvent):
                await self._add_member_event(event, calls)
            return

        if event.nested_depth:
            return

        name = event.event
        if name == "StepStarted":
            await self.run.environment.begin_effect()
            self._start_step(event)
        elif name == "StepCompleted":
            self._end_step(event)
        elif name in _PAUSES:
            self.is_paused = True
        elif name == "WorkflowCompleted":
            await self._complete(event)
        elif name in ("WorkflowError", "StepError"):
            raise self.fail()
        elif name == "WorkflowCancelled":
            raise ExecutionError("AGENT_FAILED", "The workflow was cancelled")
        else:
            self._report_progress(name, event)

    async def _add_member_event(self, event: Any, calls: DecidedCalls) -> None:
        number, span = self._find_step(event)
        await add_event(event, self.members, calls, span.id if span is not None else None)
        is_text = event.event in ("RunContent", "TeamRunContent") and isinstance(event.content, str)
        is_of_step = getattr(event, "parent_run_id", None) is None
        if is_text and is_of_step and number is not None and event.step_index == self._last:
            self.run.add_text(event.content)

    def _find_step(self, event: Any) -> tuple[int | None, Span | None]:
        """Return the open step of an event; for a workflow in a step, the only open step."""
        open_step = self._open.get(_name_step(event))
        if open_step is None and len(self._open) == 1:
            (open_step,) = self._open.values()

        return (None, None) if open_step is None else (open_step[0], open_step[2])

    def _start_step(self, event: Any) -> None:
        for key, (_, index, span) in [*self._open.items()]:
            if isinstance(index, int) and isinstance(event.step_index, int):
                # The library does not report the end of a step that failed and was left out.
                span.end("failed")
                del self._open[key]

        number = self._number
        self._number += 1
        span = self.run.recorder.begin_step(number, event.step_name or "")
        self._open[_name_step(event)] = number, event.step_index, span

    def _end_step(self, event: Any) -> None:
        number, _, span = self._open.pop(_name_step(event), (None, None, None))
        if number is None or span is None:
            return
        if event.step_response is not None and not event.step_response.success:
            span.end("failed")
            return

        span.end("completed")
        text = replace_unstorable(_to_text(event.content))
        self.run.recorder.reserve(len(text.encode()))
        self.run.recorder.complete_step(span, number, text)

    def _report_progress(self, name: str, event: Any) -> None:
        step = getattr(event, "step_name", None)

        texts = {
            "ConditionExecutionStarted": f"{step}: {getattr(event, 'condition_result', None)}",
            "LoopIterationStarted": f"{step}: iteration {getattr(event, 'iteration', None)}",
            "ParallelExecutionStarted": f"{step}: steps at the same time",
            "RouterExecutionStarted": f"{step}: {', '.join(getattr(event, 'selected_steps', ()))}",
            "StepProgress": f"{step}: {_to_text(event.content)}" if name == "StepProgress" else "",
        }

        if name in texts:
            self.run.context.progress(texts[name])

    async def _complete(self, event: Any) -> None:
        failed_step = _find_failed(event.run_output)
        if failed_step is not None:
            raise self.fail(failed_step)

        content = await self.run.set_result(event.content)

        if not self.run.transcript.content:
            self.run.begin_answer()
            self.run.add_text(content)
        elif self.run.transcript.content != content:
            answer: dict[str, Any] = {
                "role": "assistant",
                "content": content,
                "tool_calls": [],
                "created_at": now_in_seconds(),
            }
            self.run.replace_answers([answer])

        self.keep_state(self._workflow.read_or_create_session())

    def keep_state(self, session: WorkflowSession) -> None:
        """Take over the state of the session as the steps have changed it."""
        self.members.keep_state((session.session_data or {}).get("session_state"))

    def fail(self, step: str | None = None) -> ExecutionError:
        """Return the failure of the workflow: the failure of the last failed member, if any."""
        name = step or next((span.name for _, _, span in self._open.values()), None)
        for _, _, span in self._open.values():
            span.end("failed")
        cause = self.members.failure or ExecutionError("AGENT_FAILED")
        if name is None:
            return cause
        return ExecutionError(cause.code, f"The step {name} failed: {cause.detail}")

    def to_json(self) -> dict[str, Any]:
        """Return the open members and steps, for the state of a pause."""
        steps = [[key, number, index] for key, (number, index, _) in self._open.items()]
        return {"members": self.members.to_json(), "steps": steps, "number": self._number}

    async def restore(
        self, state: Mapping[str, Any], pause: StepPause, calls: DecidedCalls
    ) -> None:
        """Continue with the members and steps of a pause."""
        await self.members.restore(state["members"])
        if pause.executor is not None:
            self.members.settle(pause.executor, calls)
        self._number = state["number"]
        for key, number, index in state["steps"]:
            span = self.run.transcript.spans.find_open(f"step-{number}")
            if span is not None:
                self._open[key] = number, index, span


def _pause(report: WorkflowReport, session: WorkflowSession, workflow: Any) -> None:
    """Raise `Paused` with what the workflow waits for."""
    output = (session.runs or [None])[-1]
    pause = None if output is None else find_step_pause(output, walk_executors(workflow.steps))

    if output is None or pause is None:
        raise ExecutionError("INTERRUPTED")

    # The events are part of the transcript, and large.
    output.events = None
    stored_output = keep_state(report.run, lambda: orjson.dumps(output.to_dict(), default=str))

    report.members.start_waiting(pause.calls)
    report.keep_state(session)

    raise Paused(pause.asks, {"output": stored_output, **report.to_json()})


def _find_last_step(workflow: Any) -> int | None:
    """Return the index of the last step if its text is the content of the workflow."""
    steps = workflow.steps
    if not isinstance(steps, list) or not steps:
        return None
    last = steps[-1]
    is_agent = getattr(last, "agent", None) or getattr(last, "team", None) or hasattr(last, "arun")
    return len(steps) - 1 if is_agent else None


def _find_failed(output: Any) -> str | None:
    """Return the name of the step whose result would be the content, if it failed."""
    result = (output.step_results or [None])[-1] if output is not None else None
    while result is not None:
        result = result[-1] if isinstance(result, list) else result
        if not result.success:
            return result.step_name or "of the workflow"
        result = (result.steps or [None])[-1]
    return None


def _name_step(event: Any) -> str:
    return f"{event.step_id}:{event.step_index}"


def _to_text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if hasattr(content, "model_dump_json"):
        return str(content.model_dump_json())
    return orjson.dumps(content, default=str).decode()
