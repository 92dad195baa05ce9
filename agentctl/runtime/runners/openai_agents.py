"""Agents of openai-agents, the OpenAI Agents SDK (docs/agents.md "openai-agents")."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import orjson
from agents import Agent, FunctionTool, RunConfig, Runner, RunState
from agents.items import ToolApprovalItem
from agents.result import RunResultStreaming
from agents.run import set_default_agent_runner

from agentctl.records.document import parse_records
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.files import LoadedFile, find_format, find_kind
from agentctl.runtime.json_values import clean_json_value
from agentctl.runtime.pauses import ENDED, Ask, DecidedCall, Leg, Paused, to_text
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.library_runner import (
    DecidedCalls,
    LibraryRunner,
    OwnerTask,
    RunnerOptions,
    keep_state,
)
from agentctl.runtime.runners.openai_agents_parts import (
    RunParts,
    get_tool_agent,
    list_agents,
    read_arguments,
)
from agentctl.runtime.runners.openai_agents_report import (
    AddedHooks,
    AgentReport,
    CountingRunner,
    MemberHooks,
    current_report,
)
from agentctl.runtime.transcript.history import complete_history

_NO_TRACING = "OPENAI_AGENTS_DISABLE_TRACING"
"""The variable with which an operator can switch on the traces of the library."""

_FUNCTION_CALL = "function_call"


class OpenAIAgentsRunner(LibraryRunner):
    """The runner of an agent of openai-agents.

    The context of a run is the result of the configured function; without one, the `RunContext`.
    The library sends traces of every run to its vendor: these are off unless the operator has set
    the variable of the library to `0`.
    """

    kind = "openai-agents"

    def __init__(self, agent: Agent[Any], options: RunnerOptions) -> None:
        super().__init__(OwnerTask(self._connect))
        set_default_agent_runner(CountingRunner())
        self._agent = agent
        self._build_deps = options.build_deps

        tool_agents = [
            get_tool_agent(tool) for member in list_agents(agent) for tool in member.tools
        ]
        for member in list_agents(*filter(None, tool_agents)):
            if member.hooks is None:
                member.hooks = AddedHooks()
            elif not isinstance(member.hooks, MemberHooks):
                member.hooks = MemberHooks(member.hooks)

    async def run(self, message: str, run: HostedRun) -> None:
        """Execute a run in the task of the caller; the library has a second task for it.

        A tool that ignores its cancellation keeps this call from returning; the engine limits that.
        """
        context = await run.build_deps(self._build_deps)
        decided = DecidedCalls(run)
        parts = RunParts(run)
        leg = run.environment.leg

        prompt = [*_to_items([await run.load_prompt(message)])]
        start: list[Any] | RunState[Any]
        if leg is None:
            earlier_items = await run.read_history(_parse_items, _to_items)
            start = [*earlier_items, *prompt]
        else:
            start = await _restore_state(self._agent, context, run, leg, decided)
            await parts.restore(leg.state)
        report = AgentReport(self._agent, parts, decided, None if leg is None else leg.state)

        is_off = os.environ.get(_NO_TRACING, "1").strip().lower() not in ("0", "false")
        config = RunConfig(tracing_disabled=is_off)

        token = current_report.set(report)
        result = Runner.run_streamed(
            self._agent, start, context=context, hooks=report, run_config=config
        )
        current_report.reset(token)

        try:
            await _follow(result, run, report)
        except ExecutionError:
            raise
        except Exception as error:
            raise report.classify(error) from error

        if result.interruptions:
            # Outside of the library: it handles no pauses.
            raise _build_pause(result, run, report)

        await report.end(result)
        _keep_items(run, prompt, result)

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[None]:
        """Connect the MCP servers of the agents, except those that the module has connected."""
        async with AsyncExitStack() as stack:
            servers = [server for agent in list_agents(self._agent) for server in agent.mcp_servers]
            for server in {id(server): server for server in servers}.values():
                if getattr(server, "session", None) is None:
                    stack.push_async_callback(server.cleanup)
                    await server.connect()
            yield


async def _follow(result: RunResultStreaming, run: HostedRun, report: AgentReport) -> None:
    """Report the events of a run until the task of the library has ended."""
    events: Any = result.stream_events()
    try:
        async for event in events:
            await report.add(event, result)
    except BaseException:
        result.cancel()
        raise
    finally:
        await _settle(result.run_loop_task, run)
        await events.aclose()

    if result.run_loop_task is not None and result.run_loop_task.cancelled():
        raise ExecutionError("AGENT_FAILED", "The agent cancelled its run")


async def _settle(task: asyncio.Task[Any] | None, run: HostedRun) -> None:
    if task is None:
        return
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        run.add_unstopped(task)
        raise


def _parse_items(text: str) -> list[dict[str, Any]]:
    """Parse the items of a run; raise ValueError if they are damaged."""
    items = parse_records(text)
    if items is None or not all(item.keys() & {"role", "type"} for item in items):
        raise ValueError("the stored items are damaged")
    return items


def _to_items(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the items of neutral messages."""
    for message in complete_history(messages):
        content = message["content"]
        calls = message.get("tool_calls", ())

        if message["role"] == "tool":
            call_id = message["tool_call_id"]
            yield {"type": "function_call_output", "call_id": call_id, "output": content}
        elif files := message.get("files"):
            text = [{"type": "input_text", "text": content}] if content else []
            yield {"role": message["role"], "content": [*text, *map(_build_part, files)]}
        elif content or not calls:
            yield {"role": message["role"], "content": content}

        for call in calls:
            yield {
                "type": _FUNCTION_CALL,
                "call_id": call["id"],
                "name": call["name"],
                "arguments": orjson.dumps(call["arguments"]).decode(),
            }


def _build_part(file: LoadedFile) -> dict[str, Any]:
    """Return a file as a part of a message."""
    kind = find_kind(file.reference.media_type)
    if kind == "image":
        return {"type": "input_image", "image_url": file.url, "detail": "auto"}
    if kind == "audio":
        sound = {"data": file.base64, "format": find_format(file.reference)}
        return {"type": "input_audio", "input_audio": sound}
    return {"type": "input_file", "filename": file.reference.name, "file_data": file.url}


def _keep_items(run: HostedRun, prompt: Sequence[Any], result: RunResultStreaming) -> None:
    """Keep the message and everything that the run added, for later runs of the session."""
    items = [*prompt]
    for item in result.new_items:
        if item.type != "tool_approval_item":
            values: Any = item.to_input_item()
            items.append({name: values[name] for name in values if values[name] is not None})
    run.set_native_history(lambda: orjson.dumps(items))


def _build_pause(result: RunResultStreaming, run: HostedRun, report: AgentReport) -> Paused:
    """Return the pause that asks for the calls of an interrupted run."""
    asks = [_build_ask(item) for item in result.interruptions]

    def dump() -> bytes:
        return orjson.dumps(result.to_state().to_json(context_serializer=lambda _: {}))

    stored_state = keep_state(run, dump)

    for ask in asks:
        part = report.parts.find_owner(ask.tool_call_id)
        part.start_call(ask.tool_call_id, ask.tool_name, ask.arguments)

    return Paused(asks, {"state": stored_state, **report.to_json()})


def _build_ask(item: ToolApprovalItem) -> Ask:
    name = item.name or "tool"
    arguments = clean_json_value(read_arguments(item.raw_item))
    tools = [tool for tool in item.agent.tools if isinstance(tool, FunctionTool)]
    schema = next((tool.params_json_schema for tool in tools if tool.name == name), None)
    return Ask("approval", item.call_id or "", name, arguments, schema=schema)


async def _restore_state(
    agent: Agent[Any], context: Any, run: HostedRun, leg: Leg, calls: DecidedCalls
) -> RunState[Any]:
    """Return the state of a paused run with the decisions, and with the arguments that we stored.

    A call with a result is never made again: for the library it is a rejected one whose message is
    the result.
    """
    stored_state = orjson.loads(orjson.dumps(await run.restore_files(leg.state["state"])))
    edited = {decision.tool_call_id: decision for decision in leg.decisions if decision.is_edited}
    changed_ids = _edit_calls(stored_state, edited)

    try:
        state = await RunState.from_json(
            agent, stored_state, context_deserializer=lambda _: context
        )
    except Exception as error:
        detail = "The run cannot be read by this version of openai-agents or of the agent"
        raise ExecutionError("AGENT_FAILED", detail) from error

    for item in state.get_interruptions():
        call_id = item.call_id or ""
        decision = leg.require(call_id)
        if decision.execution in ENDED:
            calls.settled[call_id] = to_text(decision.result), decision.execution == "failed"
        elif not decision.is_approved:
            calls.settled[call_id] = decision.refusal, True
        elif decision.is_edited and call_id not in changed_ids:
            detail = f"The call of {decision.tool_name} cannot be made with other arguments"
            raise ExecutionError("AGENT_FAILED", detail)
        else:
            calls.approved[call_id] = decision
            state.approve(item)
            continue

        state.reject(item, rejection_message=calls.settled[call_id][0])

    return state


def _edit_calls(value: Any, edited: Mapping[str, DecidedCall]) -> set[str]:
    """Replace the arguments of calls in a state, and return the ids of these calls."""
    changed_ids: set[str] = set()

    if isinstance(value, list):
        for item in value:
            changed_ids |= _edit_calls(item, edited)
    elif isinstance(value, dict):
        decision = edited.get(str(value.get("call_id")))
        if decision is not None and value.get("type") == _FUNCTION_CALL:
            value["arguments"] = orjson.dumps(decision.arguments).decode()
            changed_ids.add(decision.tool_call_id)

        if isinstance(value.get("tool_invocations"), dict):
            # The library checks that a call has not changed. It takes over one that it lacks.
            for call_id in edited:
                value["tool_invocations"].pop(call_id, None)

        for item in value.values():
            changed_ids |= _edit_calls(item, edited)

    return changed_ids
