"""Agents of openai-agents for the tests; each function builds one for the endpoint at `url`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import agents
import httpx2
from agents.mcp import MCPServer
from agents.testing import assistant_message, function_call
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseCompletedEvent, ResponseFunctionWebSearch
from pydantic import BaseModel

from agentctl import RunContext

url = ""
"""Base URL of the model endpoint; the tests set it."""

SECRET = "hunter2"


class Total(BaseModel):
    """A structured result."""

    total: int


def build(model: str, *tools: Any, name: str = "code", **options: Any) -> agents.Agent[Any]:
    """Build an agent without idle connections: each test has its own event loop."""
    http_client = httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0))
    client = AsyncOpenAI(base_url=url, api_key="not-needed", max_retries=0, http_client=http_client)
    return agents.Agent(
        name=name,
        model=agents.OpenAIChatCompletionsModel(model, client),
        model_settings=agents.ModelSettings(include_usage=True),
        tools=[*tools],
        **options,
    )


async def fail() -> str:
    """Raise an exception."""
    raise ValueError(SECRET)


class Table:
    """A result like an array of numpy: what it is compared with gives another one, not a bool."""

    def __str__(self) -> str:
        return "1 2"

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


async def tabulate() -> Any:
    """Return a table."""
    return Table()


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def who(wrapper: agents.RunContextWrapper[Any]) -> str:
    """Return the context."""
    context = wrapper.context
    return f"user {context.user_id}" if isinstance(context, RunContext) else str(context)


async def build_deps(context: RunContext) -> str:
    return f"deps of {context.user_id}"


def refuse_secrets(text: object) -> agents.GuardrailFunctionOutput:
    return agents.GuardrailFunctionOutput(None, tripwire_triggered="secret" in str(text))


@agents.input_guardrail
async def check_input(context: Any, agent: Any, message: Any) -> agents.GuardrailFunctionOutput:
    await asyncio.sleep(0.2)
    return refuse_secrets(message)


@agents.output_guardrail
async def check_output(context: Any, agent: Any, output: Any) -> agents.GuardrailFunctionOutput:
    return refuse_secrets(output)


@agents.tool_input_guardrail
def check_arguments(data: Any) -> agents.ToolGuardrailFunctionOutput:
    if "13" in data.context.tool_arguments:
        return agents.ToolGuardrailFunctionOutput.reject_content("no 13")
    return agents.ToolGuardrailFunctionOutput.allow()


def echo() -> Any:
    return build("echo")


def history() -> Any:
    return build("history")


def adder() -> Any:
    return build("plan", agents.function_tool(add))


def adder_twice() -> Any:
    return build("tools:add", agents.function_tool(add))


def context() -> Any:
    return build("tool:who", agents.function_tool(who))


async def cancel_all() -> str:
    """Cancel every other task, as code that stops itself does."""
    for task in asyncio.all_tasks():
        if "run_loop" in repr(task.get_coro()) or "boundary" in repr(task.get_coro()):
            task.cancel()
    await asyncio.sleep(5)
    return "late"


def cancels_itself() -> Any:
    return build("tool:cancel_all", agents.function_tool(cancel_all))


async def ask(is_streamed: bool) -> str:
    """Ask another agent."""
    other = build("echo", name="other")
    if not is_streamed:
        return str((await agents.Runner.run(other, "one two three")).final_output)
    result = agents.Runner.run_streamed(other, "one two three")
    async for _ in result.stream_events():
        pass
    return str(result.final_output)


def asking() -> Any:
    return build("tool:ask", agents.function_tool(ask))


def handled_failure() -> Any:
    return build("tool:fail", agents.function_tool(fail))


def tabulating() -> Any:
    return build("tool:tabulate", agents.function_tool(tabulate))


def raised_failure() -> Any:
    return build("tool:fail", agents.function_tool(fail, failure_error_function=None))


def guarded_tool() -> Any:
    tool = agents.function_tool(add, tool_input_guardrails=[check_arguments])
    return build("tool:add", tool)


def guarded_input() -> Any:
    return build("echo", input_guardrails=[check_input])


def guarded_output() -> Any:
    return build("echo", output_guardrails=[check_output])


def guarded_adder() -> Any:
    guards = [check_output]
    return build("plan", agents.function_tool(add), output_guardrails=guards)


def endless() -> Any:
    return build("again:add", agents.function_tool(add))


def typed() -> Any:
    return build("echo", output_type=Total)


def first_result() -> Any:
    return build("tool:add", agents.function_tool(add), tool_use_behavior="stop_on_first_tool")


def thinking() -> Any:
    return build("thoughts")


def model_fails() -> Any:
    return build("http-401")


def model_is_down() -> Any:
    return build("http-500")


def unknown_tool() -> Any:
    return build("tool:absent", agents.function_tool(add))


class Server(MCPServer):
    """An MCP server without tools; records the tasks that connect it and close it."""

    connected: list[Any] = []  # noqa: RUF012
    closed: list[Any] = []  # noqa: RUF012

    @property
    def name(self) -> str:
        return "server"

    async def connect(self) -> None:
        self.connected.append(asyncio.current_task())

    async def cleanup(self) -> None:
        self.closed.append(asyncio.current_task())

    async def list_tools(self, *_: Any) -> list[Any]:
        assert len(self.connected) == 1
        return []

    async def call_tool(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def list_prompts(self) -> Any:
        raise NotImplementedError

    async def get_prompt(self, *_: Any) -> Any:
        raise NotImplementedError


def with_server() -> Any:
    server = Server()
    helper = build("echo", name="helper", mcp_servers=[server])
    return build("echo", mcp_servers=[server], handoffs=[helper])


def triage() -> Any:
    """Hand off to an agent that has a tool and that hands off to a third one."""
    last = build("plan", name="Last Desk")
    refunds = build("plan", agents.function_tool(add), name="Refunds", handoffs=[last])
    return build("plan", name="triage", handoffs=[refunds])


class Recorded(agents.AgentHooks):  # type: ignore[type-arg]
    """The hooks of an author; records the names of the agents that end."""

    ended: list[str] = []  # noqa: RUF012

    async def on_end(self, context: Any, agent: Any, output: Any) -> None:
        self.ended.append(agent.name)


def manager() -> Any:
    """Call an agent as a tool, which calls a tool and a third agent."""
    deep = build("echo", name="Deep")
    inner = build(
        "plan",
        agents.function_tool(add),
        deep.as_tool("ask_deep", "Ask deep."),
        name="Inner",
        hooks=Recorded(),
    )
    return build("plan", inner.as_tool("ask_inner", "Ask inner."), name="manager")


def configured_manager() -> Any:
    """Call an agent as a tool with options of its author, in which traces are on."""
    tool = build("echo", name="Inner").as_tool("ask_inner", "Ask.", run_config=agents.RunConfig())
    return build("plan", tool, name="manager")


def failing_manager() -> Any:
    inner = build("http-500", name="Inner")
    return build("plan", inner.as_tool("ask_inner", "Ask inner."), name="manager")


class Provider(agents.Model):
    """A model whose answers arrive as a whole, without pieces."""

    def __init__(self, answers: list[list[Any]]) -> None:
        self._answers = iter(answers)

    async def get_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        response = Response.model_construct(id="r", output=next(self._answers), usage=None)
        yield ResponseCompletedEvent.model_construct(type="response.completed", response=response)


def searching() -> Any:
    """Answer like a model of OpenAI that has searched the web before it calls a tool."""
    search = ResponseFunctionWebSearch(
        id="ws_1",
        action={"type": "search", "query": "rates", "queries": ["rates"]},  # type: ignore[arg-type]
        status="completed",
        type="web_search_call",
    )
    steps = [
        [
            search,
            assistant_message("one"),
            function_call("add", {"a": 1, "b": 2}, call_id="call_1"),
        ],
        [assistant_message("three")],
    ]
    return agents.Agent(name="code", model=Provider(steps), tools=[agents.function_tool(add)])
