"""Agents of openai-agents, the OpenAI Agents SDK (docs/agents.md "openai-agents")."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import orjson
from agents import Agent, RunConfig, Runner, RunState
from agents.result import RunResultStreaming

from agentctl.agents import RunContext
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.input_schema import InputSchema
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.openai_agents_parts import RunParts, get_tool_agent, list_agents
from agentctl.runtime.runners.openai_agents_pauses import DecidedCalls, build_pause, restore_state
from agentctl.runtime.runners.openai_agents_report import AgentReport, MemberHooks, current_report
from agentctl.runtime.runners.owner import OwnerTask
from agentctl.runtime.transcript.history import complete_history
from agentctl.work.unstopped import install_executor

_NO_TRACING = "OPENAI_AGENTS_DISABLE_TRACING"
"""The variable with which an operator can switch on the traces of the library."""


class OpenAIAgentsRunner:
    """The runner of an agent of openai-agents.

    The context of a run is the result of the configured function; without one, the `RunContext`.
    The library sends traces of every run to its vendor: these are off unless the operator has set
    the variable of the library to `0`.

    Args:
        build_deps: function of `deps`, called with the `RunContext`; it may be asynchronous.
    """

    kind = "openai-agents"
    input_schema: InputSchema | None = None

    def __init__(
        self, agent: Agent[Any], build_deps: Callable[[RunContext], Any] | None = None
    ) -> None:
        self._agent = agent
        self._build_deps = build_deps
        self._owner = OwnerTask(self._connect)
        called = [get_tool_agent(tool) for each in list_agents(agent) for tool in each.tools]
        for each in list_agents(*filter(None, called)):
            if not isinstance(each.hooks, MemberHooks):
                each.hooks = MemberHooks(each.hooks)

    async def open(self) -> None:
        install_executor()
        await self._owner.open()

    async def close(self) -> None:
        await self._owner.close()

    async def run(self, message: str, run: HostedRun) -> None:
        """Execute a run in the task of the caller; the library has a second task for it.

        A tool that ignores its cancellation keeps this call from returning; the engine limits that.
        """
        context: Any = run.context
        if self._build_deps is not None:
            context = self._build_deps(run.context)
            if inspect.isawaitable(context):
                context = await context
        decided, parts = DecidedCalls(run), RunParts(run)
        stored = run.leg.state if run.leg is not None else None
        start: list[Any] | RunState[Any]
        if run.leg is None:
            start = [*to_input_items(run), {"role": "user", "content": message}]
        else:
            start = await restore_state(self._agent, context, run.leg, decided)
            await parts.restore(run.leg.state)
        report = AgentReport(self._agent, parts, decided, stored)
        token = current_report.set(report)
        result = Runner.run_streamed(
            self._agent, start, context=context, hooks=report.hooks, run_config=_build_config()
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
            raise build_pause(result, run, parts, report.to_json())
        await report.end(result)
        _keep_items(run, message, result)

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[None]:
        """Connect the MCP servers of the agents, except those that the module has connected."""
        async with AsyncExitStack() as stack:
            servers = [each for agent in list_agents(self._agent) for each in agent.mcp_servers]
            for server in {id(server): server for server in servers}.values():
                if getattr(server, "session", None) is None:
                    stack.push_async_callback(server.cleanup)
                    await server.connect()
            yield


def _build_config() -> RunConfig:
    is_off = os.environ.get(_NO_TRACING, "1").strip().lower() not in ("0", "false")
    return RunConfig(tracing_disabled=is_off)


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


def to_input_items(run: HostedRun) -> list[Any]:
    """Return the items of earlier runs: those of the library, else the neutral messages."""
    items: list[Any] = []
    for earlier in run.earlier_runs:
        items += orjson.loads(earlier.native) if earlier.native else _convert(earlier.messages)
    return items


def _convert(messages: Iterable[Mapping[str, Any]]) -> list[Any]:
    items: list[Any] = []
    for message in complete_history(messages):
        if message["role"] == "tool":
            items.append(
                {
                    "type": "function_call_output",
                    "call_id": message["tool_call_id"],
                    "output": message["content"],
                }
            )
            continue
        calls = message.get("tool_calls", ())
        if message["content"] or not calls:
            items.append({"role": message["role"], "content": message["content"]})
        items += [
            {
                "type": "function_call",
                "call_id": call["id"],
                "name": call["name"],
                "arguments": orjson.dumps(call["arguments"]).decode(),
            }
            for call in calls
        ]
    return items


def _keep_items(run: HostedRun, message: str, result: RunResultStreaming) -> None:
    """Keep the message and everything that the run added, for later runs of the session."""
    items: list[Any] = [{"role": "user", "content": message}]
    for item in result.new_items:
        if item.type != "tool_approval_item":
            values: Any = item.to_input_item()
            items.append({name: values[name] for name in values if values[name] is not None})
    try:
        text = orjson.dumps(items).decode()
    except TypeError:
        # The neutral messages remain for later runs.
        return
    run.set_native_history(text)
