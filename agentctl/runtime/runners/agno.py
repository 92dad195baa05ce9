"""Agents and teams of agno (docs/agents.md "agno")."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from typing import Any

import orjson
from agno.models.message import Message
from agno.run import RunContext as AgnoRunContext
from agno.run.agent import RunOutput
from agno.team import Team

from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.input_schema import InputSchema
from agentctl.runtime.pauses import Paused
from agentctl.runtime.runners.agno_pauses import DecidedCalls, apply_decisions, list_asks
from agentctl.runtime.runners.hosted_run import HostedRun, ModelSpan
from agentctl.runtime.runners.library_failures import ToolCalls
from agentctl.runtime.transcript import complete_history
from agentctl.runtime.unstopped import install_executor

_SERVER_STATE = frozenset({"current_run_id", "current_session_id", "current_user_id"})
"""Keys that agno adds to the session state of a run."""

_COUNTERS = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
)


class AgnoRunner:
    """The runner of an agent or team of agno. Each run uses a copy of it, as on the server of agno.

    The storage of agno is not used: the messages of earlier runs come from the session. An agent
    that adds the history of its database gets the new message only.
    """

    kind = "agno"
    input_schema: InputSchema | None = None

    def __init__(self, target: Any) -> None:
        self._target = target
        self._is_team = isinstance(target, Team)
        self._has_history = target.db is not None and bool(target.add_history_to_context)
        # The library reports every run to its vendor unless this variable forbids it.
        os.environ.setdefault("AGNO_TELEMETRY", "false")

    async def open(self) -> None:
        install_executor()

    async def close(self) -> None:
        """Do nothing: an agent has nothing to close."""

    async def run(self, message: str, run: HostedRun) -> None:
        """Execute a run in the task of the caller.

        A tool that ignores its cancellation keeps this call from returning; the engine limits that.
        """
        context, target, calls = run.context, self._copy(run), DecidedCalls()
        given = {
            "dependencies": {
                **(target.dependencies or {}),
                **context.dependencies,
                "run_context": context,
            },
            "metadata": {**(target.metadata or {}), **context.metadata},
        }
        names = {
            "run_id": context.run_id,
            "session_id": context.session_id,
            "user_id": context.user_id,
        }
        state = dict(context.state)
        stream = {"stream": True, "stream_events": True, "yield_run_output": not self._is_team}
        if run.leg is None:
            events = target.arun(message, session_state=state, **names, **given, **stream)
        else:
            output = RunOutput.from_dict(run.leg.state["output"])
            calls = apply_decisions(output, run.leg)
            again = AgnoRunContext(session_state=state, **names, **given)
            events = target.acontinue_run(run_response=output, run_context=again, **given, **stream)
        report = _AgnoReport(run, is_team=self._is_team)
        report.end_calls(calls.ended)
        async with aclosing(events):
            async for event in events:
                if isinstance(event, RunOutput):
                    report.output = event
                    continue
                if event.event == "ToolCallStarted" and event.run_id == context.run_id:
                    await _begin_call(run, event.tool, calls)
                report.add(event)
                if event.event == "ToolCallCompleted":
                    await _end_call(run, event.tool, calls)
                await run.take_turn()
        if report.is_paused:
            _pause(run, report, target)
        await report.end()

    def _copy(self, run: HostedRun) -> Any:
        earlier = to_agno_messages(run.request_history if self._has_history else run.history)
        if not earlier:
            return self._target.deep_copy()
        configured = self._target.additional_input or []
        return self._target.deep_copy(update={"additional_input": [*configured, *earlier]})


async def _begin_call(run: HostedRun, tool: Any, calls: DecidedCalls) -> None:
    """Store that a call begins. The library makes it when its next event is read.

    Raises:
        ExecutionError: its arguments are not the approved ones; it is not made.
    """
    decision = calls.approved.get(tool.tool_call_id or "")
    if decision is None:
        await run.begin_effect()
        return
    if tool.tool_args != decision.arguments:
        raise ExecutionError(
            "AGENT_FAILED",
            f"The tool {tool.tool_name} was called with other arguments than the approved ones: it"
            " was not executed",
        )
    await run.begin_approved(decision.approval_id)


async def _end_call(run: HostedRun, tool: Any, calls: DecidedCalls) -> None:
    decision = calls.approved.pop(tool.tool_call_id or "", None)
    if decision is not None:
        text, failed = read_result(tool)
        await run.end_approved(decision.approval_id, text, failed=failed)


def _pause(run: HostedRun, report: _AgnoReport, target: Any) -> None:
    """Raise `Paused` with what the agent waits for.

    Raises:
        ExecutionError: the agent waits for something else, or its run cannot be stored.
    """
    output = report.output
    asks = [] if output is None else list_asks(output, target)
    if not asks:
        raise ExecutionError("INTERRUPTED")
    try:
        stored = output.to_json(indent=None)
    except (TypeError, ValueError) as error:
        raise ExecutionError(
            "AGENT_FAILED", "The run cannot wait: it has a value that cannot be stored"
        ) from error
    run.reserve(len(stored))
    for ask in asks:
        report.start_call(ask.tool_call_id, ask.tool_name, ask.arguments)
    report.keep_state(output.session_state)
    raise Paused(asks, {"output": orjson.loads(stored)})


def read_result(tool: Any) -> tuple[str, bool]:
    """Return the text of a call that has ended, and whether it failed."""
    if tool.tool_call_error:
        # The text of a failed call is that of an exception.
        return f"The tool {tool.tool_name} failed", True
    return tool.result or "", False


class _AgnoReport:
    """Reports the events of a run.

    The events of members of a team are those of other runs: only their tokens count.

    Attributes:
        output: the `RunOutput` at the end of the stream.
        is_paused: True if the run waits for decisions.
    """

    def __init__(self, run: HostedRun, *, is_team: bool) -> None:
        self.output: Any = None
        self.is_paused = False
        self._run = run
        self._is_team = is_team
        self._calls = ToolCalls(run)
        self._run_id = run.context.run_id
        self._usage: Counter[str] = Counter()
        self._result: Any = None
        self._model_call: ModelSpan | None = None

    def add(self, event: Any) -> None:
        """Report one event.

        Raises:
            ExecutionError: the run has failed, or waits for input.
        """
        name = event.event.removeprefix("Team")
        if name == "ModelRequestCompleted":
            counts = {counter: getattr(event, counter) or 0 for counter in _COUNTERS}
            # The library reports zeros for a model that reports nothing.
            if any(counts.values()):
                self._usage.update(counts)
                self._run.set_usage(self._usage)
            if event.run_id == self._run_id and self._model_call is not None:
                self._model_call.end(counts)
        elif event.run_id == self._run_id:
            self._add_own(name, event)

    def _add_own(self, name: str, event: Any) -> None:
        if name == "ModelRequestStarted":
            self._run.begin_answer()
            self._model_call = self._run.start_model_call(event.model)
        elif name in ("ReasoningContentDelta", "RunContent") and self._model_call is not None:
            self._model_call.mark_first_token()
        if name == "ReasoningContentDelta":
            self._run.add_thinking(event.reasoning_content or "")
        elif name == "RunContent":
            self._run.add_thinking(event.reasoning_content or "")
            if isinstance(event.content, str):
                self._run.add_text(event.content)
            elif event.content is not None:
                self._result = event.content
        elif name == "ToolCallStarted":
            tool = event.tool
            self.start_call(tool.tool_call_id or "", tool.tool_name or "", tool.tool_args or {})
        elif name == "ToolCallCompleted":
            text, failed = read_result(event.tool)
            self._calls.end(event.tool.tool_call_id or "", text, failed=failed)
        elif name == "RunCompleted":
            self._complete(event)
        elif name == "RunPaused" and self._is_team:
            raise ExecutionError("INTERRUPTED")
        elif name == "RunPaused":
            self.is_paused = True
        elif name == "RunError":
            provider = event.error_type == "model_provider_error"
            raise ExecutionError("MODEL_UNAVAILABLE" if provider else "AGENT_FAILED")
        elif name == "RunCancelled":
            raise ExecutionError("AGENT_FAILED", "The agent cancelled its run")

    def start_call(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> None:
        """Report the start of a call, unless the leg before this one has reported it."""
        if call_id not in self._run.open_calls:
            self._calls.start(call_id, name, arguments)

    def end_calls(self, ended: Mapping[str, tuple[str, bool]]) -> None:
        """Report the calls that were decided about and are not made."""
        for call_id, (text, failed) in ended.items():
            self._calls.end(call_id, text, failed=failed)

    def _complete(self, event: Any) -> None:
        if event.content is not None and not isinstance(event.content, str):
            self._result = event.content
        self.keep_state(event.session_state)

    def keep_state(self, values: Mapping[str, Any] | None) -> None:
        """Take over the state of the session as the agent has changed it."""
        if values is None:
            return
        state = self._run.context.state
        state.clear()
        state.update({key: value for key, value in values.items() if key not in _SERVER_STATE})

    async def end(self) -> None:
        """Report the structured result, if there is one."""
        if self._result is not None:
            await self._run.set_output(self._result)
            if not self._run.content:
                self._run.add_text(self._run.output_text)


def to_agno_messages(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Convert neutral messages of earlier runs."""
    converted: list[Message] = []
    for message in complete_history(messages):
        role, content = message["role"], message["content"]
        if role == "tool":
            converted.append(
                Message(
                    role=role,
                    content=content,
                    tool_call_id=message["tool_call_id"],
                    tool_name=message["tool_name"],
                )
            )
            continue
        calls = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
            }
            for call in message.get("tool_calls", ())
        ]
        converted.append(Message(role=role, content=content, tool_calls=calls or None))
    return converted
