"""Agents and teams of agno (docs/agents.md "agno")."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from typing import Any

from agno.models.message import Message

from agentctl.runtime.failures import ExecutionError
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

    def __init__(self, target: Any) -> None:
        self._target = target
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
        context, target = run.context, self._copy(run)
        report = _AgnoReport(run)
        events = target.arun(
            message,
            stream=True,
            stream_events=True,
            run_id=context.run_id,
            session_id=context.session_id,
            user_id=context.user_id,
            session_state=dict(context.state),
            dependencies={
                **(target.dependencies or {}),
                **context.dependencies,
                "run_context": context,
            },
            metadata={**(target.metadata or {}), **context.metadata},
        )
        async with aclosing(events):
            async for event in events:
                report.add(event)
                await run.take_turn()
        await report.end()

    def _copy(self, run: HostedRun) -> Any:
        earlier = to_agno_messages(run.request_history if self._has_history else run.history)
        if not earlier:
            return self._target.deep_copy()
        configured = self._target.additional_input or []
        return self._target.deep_copy(update={"additional_input": [*configured, *earlier]})


class _AgnoReport:
    """Reports the events of a run.

    The events of members of a team are those of other runs: only their tokens count.
    """

    def __init__(self, run: HostedRun) -> None:
        self._run = run
        self._calls = ToolCalls(run)
        self._run_id = run.context.run_id
        self._usage: Counter[str] = Counter()
        self._output: Any = None
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
                self._output = event.content
        elif name == "ToolCallStarted":
            tool = event.tool
            self._calls.start(tool.tool_call_id or "", tool.tool_name or "", tool.tool_args or {})
        elif name == "ToolCallCompleted":
            tool, failed = event.tool, bool(event.tool.tool_call_error)
            # The text of a failed call is that of an exception.
            result = f"The tool {tool.tool_name} failed" if failed else tool.result or ""
            self._calls.end(tool.tool_call_id or "", result, failed=failed)
        elif name == "RunCompleted":
            self._complete(event)
        elif name == "RunPaused":
            raise ExecutionError("INTERRUPTED")
        elif name == "RunError":
            provider = event.error_type == "model_provider_error"
            raise ExecutionError("MODEL_UNAVAILABLE" if provider else "AGENT_FAILED")
        elif name == "RunCancelled":
            raise ExecutionError("AGENT_FAILED", "The agent cancelled its run")

    def _complete(self, event: Any) -> None:
        if event.content is not None and not isinstance(event.content, str):
            self._output = event.content
        if event.session_state is not None:
            state = self._run.context.state
            state.clear()
            state.update(
                {
                    key: value
                    for key, value in event.session_state.items()
                    if key not in _SERVER_STATE
                }
            )

    async def end(self) -> None:
        """Report the structured result, if there is one."""
        if self._output is not None:
            await self._run.set_output(self._output)
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
