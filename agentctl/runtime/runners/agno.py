"""Agents and teams of agno (docs/agents.md "agno")."""

from __future__ import annotations

import json
import os
from collections import ChainMap
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from agno.media import Audio, File, Image
from agno.models.message import Message
from agno.run import RunContext as AgnoRunContext
from agno.run.agent import RunOutput
from agno.run.team import TeamRunOutput
from agno.team import Team

from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.files import find_format, find_kind
from agentctl.runtime.models.access import current_access
from agentctl.runtime.pauses import InputSchema, Paused
from agentctl.runtime.runners import agno_pauses
from agentctl.runtime.runners.agno_report import (
    AgnoReport,
    keep_failures,
    read_result,
    watch_inputs,
)
from agentctl.runtime.runners.declared_types import build_input_schema
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.library_runner import (
    DecidedCalls,
    LibraryRunner,
    RunnerOptions,
    keep_state,
)
from agentctl.runtime.transcript.history import complete_history


class AgnoBase(LibraryRunner):
    """The common part of the runners of agno."""

    kind = "agno"

    def __init__(self, target: Any, _: RunnerOptions) -> None:
        super().__init__()
        if (schema := target.input_schema) is not None:
            self.input_schema = build_input_schema(schema, is_required=True)
        self._target = target
        # The library reports every run to its vendor unless this variable forbids it.
        os.environ.setdefault("AGNO_TELEMETRY", "false")


class AgnoRunner(AgnoBase):
    """The runner of an agent or team of agno. Each run uses a copy of it, as on the server of agno.

    The storage of agno is not used: the messages of earlier runs come from the session. An agent
    that adds the history of its database gets the new message only.
    """

    def __init__(self, target: Any, options: RunnerOptions) -> None:
        super().__init__(target, options)
        self._output_type: Any = TeamRunOutput if isinstance(target, Team) else RunOutput
        self._has_history = target.db is not None and bool(target.add_history_to_context)

    async def run(self, message: str, run: HostedRun) -> None:
        """Execute a run in the task of the caller.

        A tool that ignores its cancellation keeps this call from returning; the engine limits that.
        """
        context = run.context
        leg = run.environment.leg
        target = await self._copy(run)

        calls = DecidedCalls(run)
        options = build_options(target, run)
        names = {
            "run_id": context.run_id,
            "session_id": context.session_id,
            "user_id": context.user_id,
        }

        state = dict(context.state)
        stream = {"stream": True, "stream_events": True, "yield_run_output": True}
        output: Any = None

        with keep_failures() as failures:
            inputs = watch_inputs([target])

            if leg is None and (access := current_access.get()) is not None:
                # A member has its entry before its model is called.
                access.seen_runs = ChainMap({context.run_id: ""}, inputs)

            report = AgnoReport(run, failures, inputs, calls)

            if leg is None:
                prompt, media = await read_prompt(run, self.input_schema)
                options |= media
                events = target.arun(prompt, session_state=state, **names, **options, **stream)
            else:
                stored_output = await run.restore_files(leg.state["output"])
                output = self._output_type.from_dict(stored_output)
                agno_pauses.apply_decisions(output, leg, calls)
                await report.restore(leg.state.get("members", ()))
                report.settle(output, calls)

                for member in agno_pauses.walk_members(target):
                    # A continued member gets no state from its team.
                    member.session_state = state

                run_context = AgnoRunContext(session_state=state, **names, **options)
                events = target.acontinue_run(
                    run_response=output, run_context=run_context, **options, **stream
                )

            async with aclosing(events):
                async for event in events:
                    if isinstance(event, self._output_type):
                        output = event
                        continue
                    await add_event(event, report, calls)
                    await run.take_turn()

        if report.root.is_paused:
            _pause(report, output, target)

    async def _copy(self, run: HostedRun) -> Any:
        history = run.request_history if self._has_history else run.environment.history
        loaded = await run.load_messages(history)
        earlier = [*map(_to_agno_message, complete_history(loaded))]
        if not earlier:
            return self._target.deep_copy()
        configured = self._target.additional_input or []
        return self._target.deep_copy(update={"additional_input": [*configured, *earlier]})


def build_options(target: Any, run: HostedRun) -> dict[str, Any]:
    """Return the dependencies and the metadata of a run."""
    context = run.context
    return {
        "dependencies": {
            **(target.dependencies or {}),
            **context.dependencies,
            "run_context": context,
        },
        "metadata": {**(target.metadata or {}), **context.metadata},
    }


async def read_prompt(run: HostedRun, schema: InputSchema | None) -> tuple[Any, dict[str, Any]]:
    """Return the message of a run or its object, and its files as arguments of a run of agno."""
    run_input = await run.read_input(schema)
    prompt = await run.load_prompt(run_input if isinstance(run_input, str) else "")

    return prompt["content"] if isinstance(run_input, str) else run_input, build_media(prompt)


def build_media(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the loaded files of a message as arguments of a run and of a message of agno."""
    names = {"image": "images", "audio": "audio"}
    media = dict[str, list[Any]]()

    for file in message.get("files", ()):
        reference = file.reference
        kind = find_kind(file.reference.media_type)
        form = {"content": file.data, "mime_type": reference.media_type}

        if kind == "pdf":
            item: Any = File(**form, filename=reference.name)
        else:
            subtype = reference.media_type.partition("/")[2]
            item = (
                Image(**form, format=subtype)
                if kind == "image"
                else Audio(**form, format=find_format(reference))
            )

        media.setdefault(names.get(kind, "files"), []).append(item)

    return media


async def add_event(
    event: Any, report: AgnoReport, calls: DecidedCalls, call_id: str | None = None
) -> None:
    """Report an event; store that a call begins or has ended if a decision was made about it.

    The library makes a call when its next event is read.

    Args:
        call_id: the call or step that started the run of the event, if that is known.
    """
    name = event.event.removeprefix("Team")
    if name == "ToolCallStarted":
        await calls.begin(_find_key(event), event.tool.tool_args or {})

    try:
        await report.add(event, call_id=call_id)
    finally:
        # The call was made, also if its result makes the run too large.
        if name == "ToolCallCompleted":
            text, failed = read_result(event.tool)
            await calls.end(_find_key(event), text, failed=failed)


def _find_key(event: Any) -> agno_pauses.CallId:
    return event.run_id, event.tool.tool_call_id or ""


def _pause(report: AgnoReport, output: Any, target: Any) -> None:
    """Raise `Paused` with what the agent or team waits for."""
    waiting_calls = [] if output is None else agno_pauses.list_waiting(output)
    if not waiting_calls:
        raise ExecutionError("INTERRUPTED")

    asks = agno_pauses.list_asks(waiting_calls, [target])

    stored_output = keep_state(report.root.run, lambda: output.to_json(indent=None))

    report.start_waiting(waiting_calls)
    report.keep_state(output.session_state)

    raise Paused(asks, {"output": stored_output, "members": report.to_json()})


def _to_agno_message(message: Mapping[str, Any]) -> Message:
    """Convert a neutral message of an earlier run."""
    role = message["role"]
    content = message["content"]

    if role == "tool":
        call_id = message["tool_call_id"]
        name = message["tool_name"]
        return Message(role=role, content=content, tool_call_id=call_id, tool_name=name)

    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
        }
        for call in message.get("tool_calls", ())
    ]

    return Message(role=role, content=content, tool_calls=calls or None, **build_media(message))
