"""Agents of Google ADK, the Agent Development Kit (docs/agents.md "Google ADK")."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import orjson
from google.adk.agents import LoopAgent, ParallelAgent, SequentialAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.events.event import Event
from google.adk.runners import InMemoryRunner
from google.adk.utils._sync_runner import _use_sync_callable_runner
from google.genai.types import Content, FunctionCall, FunctionResponse, Part

from agentctl.records.approvals import ApprovalKind
from agentctl.records.document import parse_records
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.json_values import clean_json_value
from agentctl.runtime.pauses import ENDED, Ask, DecidedCall, Leg, Paused, to_text
from agentctl.runtime.runners.adk_report import CONFIRMATION, CREDENTIAL, AdkReport
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.library_runner import (
    DecidedCalls,
    LibraryRunner,
    OwnerTask,
    RunnerOptions,
    keep_state,
)
from agentctl.runtime.transcript.history import complete_history

_NAME = "agentctl"

_NOT_RESUMABLE = (
    "The run cannot wait: the steps after the pause would not be made. Set"
    " resumability_config=ResumabilityConfig(is_resumable=True) in the App"
)

_SEVERAL_WAIT = (
    "The run cannot wait for several agents of a ParallelAgent inside of another agent: Google ADK"
    " would continue one of them only. Make the ParallelAgent the agent of the run"
)

_NOT_CONTINUED = "Google ADK did not continue an agent: an approved call was not made"

_OWN_HINT = "ToolConfirmation"
"""Part of the library's own question, which explains its interface to programs."""


class HostedConfig(RunConfig):  # type: ignore[misc]
    """The configuration of a run; tools read its context: `tool_context.run_config.run_context`."""

    run_context: Any = None


class AdkRunner(LibraryRunner):
    """The runner of an agent, a workflow or an app of Google ADK.

    Each run has its own session, artifacts and memory of the library, in memory: the events of
    earlier runs and the state come from the session of agentctl.
    """

    kind = "google-adk"

    def __init__(self, target: Any, _: RunnerOptions) -> None:
        app = target if isinstance(target, App) else App(name=_NAME, root_agent=target)
        self._app = _make_resumable(app)
        # It closes the toolsets of the agents, and the plugins.
        super().__init__(OwnerTask(lambda: InMemoryRunner(app=self._app)))

    async def open(self) -> None:
        """Open the app, and load what a `LiteLlm` imports in its first call, which takes seconds.

        The library has no public function for it, and would block the event loop.
        """
        await super().open()
        if module := sys.modules.get("google.adk.models.lite_llm"):
            await asyncio.to_thread(module._ensure_litellm_imported)

    async def run(self, message: str, run: HostedRun) -> None:
        """Execute a run in the task of the caller; the library has a second task for it.

        A tool that ignores its cancellation keeps this call from returning; the engine limits that.
        """
        root = self._app.root_agent
        leg = run.environment.leg
        decided = DecidedCalls(run)
        report = AdkReport(run, root.name, decided)
        plugins = [report, *self._app.plugins]
        runner = InMemoryRunner(app=self._app.model_copy(update={"plugins": plugins}))

        earlier_events = await run.read_history(_parse_events, self._build_events)
        kept_events: list[Event] = []
        if leg is None:
            messages = [_build_content(await run.load_prompt(message))]
        else:
            await report.restore(leg.state)
            kept_events = await _restore_events(leg, run)
            messages = await _build_answers(kept_events, leg, decided, report)

        names = {"user_id": run.context.user_id or "-", "session_id": run.context.session_id}
        place = {"app_name": runner.app_name, **names}
        service = runner.session_service
        session = await service.create_session(state={**run.context.state}, **place)
        report.know_calls([*earlier_events, *kept_events])
        for event in (*earlier_events, *kept_events):
            await service.append_event(session, event)

        config = HostedConfig(streaming_mode=StreamingMode.SSE, run_context=run.context)
        try:
            with _use_sync_callable_runner(_call_in_thread):
                for answer in messages:
                    report.take_answers(answer)
                    running = runner.run_async(new_message=answer, run_config=config, **names)
                    async with aclosing(running) as events:
                        async for _ in events:
                            await run.take_turn()
        except ExecutionError:
            raise
        except Exception as error:
            raise report.classify(error) from error

        session = await service.get_session(**place)
        kept_events = session.events[len(earlier_events) :]

        if waiting_calls := list_waiting(kept_events):
            if not _can_continue(self._app):
                raise ExecutionError("AGENT_FAILED", _NOT_RESUMABLE)
            if len(_group_by_branch(kept_events)) > 1 and not _is_parallel_only(root):
                raise ExecutionError("AGENT_FAILED", _SEVERAL_WAIT)

            stored_events = keep_state(run, lambda: _dump(kept_events))
            asks = [_build_ask(call) for call in waiting_calls]
            raise Paused(asks, {"events": stored_events, **report.to_json()})

        if decided.approved:
            raise ExecutionError("AGENT_FAILED", _NOT_CONTINUED)
        await report.end(getattr(root, "output_schema", None))
        run.set_native_history(lambda: _dump(kept_events))

    def _build_events(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[Event]:
        """Yield the events of neutral messages."""
        names: dict[str, str] = {}
        for message in complete_history(messages):
            calls = message.get("tool_calls", ())
            names |= {call["id"]: call["name"] for call in calls}

            if message["role"] == "tool":
                call_id = message["tool_call_id"]
                result = {"result": message["content"]}
                response = FunctionResponse(
                    id=call_id, name=names.get(call_id, "tool"), response=result
                )
                content = Content(role="user", parts=[Part(function_response=response)])
            else:
                content = _build_content(message)
                function_calls = [
                    FunctionCall(id=call["id"], name=call["name"], args=call["arguments"])
                    for call in calls
                ]
                content.parts += [Part(function_call=call) for call in function_calls]

            author = "user" if message["role"] == "user" else self._app.root_agent.name

            if content.parts:
                yield Event(invocation_id="-", author=author, content=content)


def _make_resumable(app: App) -> App:
    """Return an app whose steps continue after a pause.

    The library gives the answer to the agent that asked. Only in a resumable app does it continue
    with the agents after it: without, the run would be complete with steps that were never made. An
    app that says itself that it is not resumable stays so.
    """
    if app.resumability_config is not None or not _has_steps(app.root_agent):
        return app
    return app.model_copy(update={"resumability_config": ResumabilityConfig(is_resumable=True)})


def _can_continue(app: App) -> bool:
    """Return True if the rest of the app is made after a pause."""
    config = app.resumability_config
    return bool(config and config.is_resumable) or not _has_steps(app.root_agent)


def _has_steps(agent: Any) -> bool:
    """Return True if an agent, or one below it, runs its agents one after the other."""
    if isinstance(agent, SequentialAgent | LoopAgent | ParallelAgent):
        return True

    return any(_has_steps(inner_agent) for inner_agent in getattr(agent, "sub_agents", ()))


async def _call_in_thread(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a function of a tool in a thread. The library would block the event loop."""

    def call() -> Any:
        with _use_sync_callable_runner(None):
            return function(**arguments)

    return await asyncio.to_thread(call)


def _build_content(message: Mapping[str, Any]) -> Content:
    """Return the text and the files of a message."""
    parts = [Part(text=message["content"])] if message["content"] else []
    for file in message.get("files", ()):
        parts.append(Part.from_bytes(data=file.data, mime_type=file.reference.media_type))
    return Content(role="user" if message["role"] == "user" else "model", parts=parts)


def _parse_events(text: str) -> list[Event]:
    """Parse the events of a run; raise ValueError if they are damaged."""
    records = parse_records(text)
    if records is None:
        raise ValueError("the stored events are damaged")

    return _load_events(records)


def _load_events(records: Iterable[Any]) -> list[Event]:
    events = [Event.model_validate(record) for record in records]

    for event in events:
        # The session has these values, and may have changed since.
        event.actions.state_delta.clear()

    return events


def _dump(events: Iterable[Event]) -> bytes:
    return orjson.dumps([event.model_dump(mode="json", exclude_none=True) for event in events])


def list_waiting(events: Sequence[Event]) -> list[FunctionCall]:
    """Return the calls whose answers the library waits for."""
    answered = {response.id for event in events for response in event.get_function_responses()}

    return [
        call
        for event in events
        for call in event.get_function_calls()
        if call.id in (event.long_running_tool_ids or ()) and call.id not in answered
    ]


def _group_by_branch(events: Sequence[Event]) -> list[list[FunctionCall]]:
    """Return the calls that wait; agents that work at the same time have separate lists."""
    branches = {
        call.id: event.branch or "" for event in events for call in event.get_function_calls()
    }
    groups: dict[str, list[FunctionCall]] = {}
    for call in list_waiting(events):
        groups.setdefault(branches[call.id], []).append(call)
    return [*groups.values()]


def _is_parallel_only(root: Any) -> bool:
    """Return True for agents at the same time with no others inside of them.

    Around others, the library would continue with the agent after them when the first one has
    ended.
    """
    return isinstance(root, ParallelAgent) and not any(map(_has_parallel, root.sub_agents))


def _has_parallel(agent: Any) -> bool:
    if isinstance(agent, ParallelAgent):
        return True
    return any(map(_has_parallel, getattr(agent, "sub_agents", ())))


def _build_ask(call: FunctionCall) -> Ask:
    """Return what a call asks for.

    Raises:
        ExecutionError: it asks for credentials, which agentctl cannot give.
    """
    arguments = clean_json_value(call.args or {})

    if call.name == CREDENTIAL:
        raise ExecutionError("INTERRUPTED")

    if call.name != CONFIRMATION:
        question = arguments.get("message")
        schema = arguments.get("response_schema")
        if isinstance(question, str) and call.name.startswith("adk_"):
            schema = schema if isinstance(schema, Mapping) else None
            return Ask("input", call.id, call.name, question=question, schema=schema)

        return Ask("external", call.id, call.name, arguments)

    original_call = arguments["originalFunctionCall"]
    confirmation = arguments.get("toolConfirmation", {})
    hint = confirmation.get("hint") or None
    question = None if hint is None or _OWN_HINT in hint else hint

    kind: ApprovalKind = "approval" if confirmation.get("payload") is None else "input"
    return Ask(
        kind,
        original_call["id"],
        original_call["name"],
        original_call.get("args") or {},
        question=question,
    )


async def _restore_events(leg: Leg, run: HostedRun) -> list[Event]:
    """Return the events of a paused run, with the arguments that were approved.

    Raises:
        ExecutionError: they cannot be read.
    """
    stored_events = orjson.loads(orjson.dumps(await run.restore_files(leg.state["events"])))
    _edit_calls(
        stored_events,
        {decision.tool_call_id: decision for decision in leg.decisions if decision.is_edited},
    )

    try:
        return _load_events(stored_events)
    except ValueError as error:
        detail = "The run cannot be read by this version of google-adk"
        raise ExecutionError("AGENT_FAILED", detail) from error


def _edit_calls(value: Any, edited: Mapping[str, DecidedCall]) -> None:
    """Replace the arguments of calls, and of the copies of calls in confirmations."""
    if isinstance(value, dict):
        decision = edited.get(str(value.get("id")))
        if decision is not None and "response" not in value:
            value["args"] = decision.arguments
        value = [*value.values()]

    items = value if isinstance(value, list) else []
    for item in items:
        _edit_calls(item, edited)


async def _build_answers(
    events: Sequence[Event], leg: Leg, calls: DecidedCalls, report: AdkReport
) -> list[Content]:
    """Return the messages with which a paused run continues, one after the other.

    The library continues only the agent that has made the first answered call of a message, so
    agents that work next to each other (`ParallelAgent`) get a message each.

    A call with a result is never made again: the report answers it in place of the tool.
    """
    messages = []
    for waiting_calls in _group_by_branch(events):
        parts = []

        for call in waiting_calls:
            ask = _build_ask(call)
            decision = leg.require(ask.tool_call_id)
            if call.name == CONFIRMATION:
                answer = _confirm(decision, calls)
            else:
                answer = _read_answer(decision)
                await report.end_open_call(call.id, answer)

            response = FunctionResponse(id=call.id, name=call.name, response=answer)
            parts.append(Part(function_response=response))

        messages.append(Content(role="user", parts=parts))

    return messages


def _confirm(decision: DecidedCall, calls: DecidedCalls) -> dict[str, Any]:
    """Return the confirmation of a call."""
    call_id = decision.tool_call_id

    if decision.execution in ENDED:
        calls.settled[call_id] = to_text(decision.result), decision.execution == "failed"
    elif decision.status == "answered":
        return {"confirmed": True, "payload": decision.answer}
    elif not decision.is_approved:
        calls.settled[call_id] = decision.refusal, True
    else:
        calls.approved[call_id] = decision

    return {"confirmed": decision.is_approved}


def _read_answer(decision: DecidedCall) -> dict[str, Any]:
    """Return the answer to a question, or the result of a call that was made elsewhere."""
    if decision.execution is not None:
        name = "error" if decision.execution == "failed" else "result"
        return {name: decision.result}
    if decision.status == "answered":
        return {"result": decision.answer}
    return {"error": decision.refusal}
