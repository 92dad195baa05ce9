"""Agents of langchain's `create_agent` with its middleware, in own words."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from typing import Any, NotRequired

from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentState,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolRetryMiddleware,
    dynamic_prompt,
    wrap_model_call,
    wrap_tool_call,
)
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import ToolRuntime
from langgraph.types import Command
from ledger import recorded
from pydantic import BaseModel

URL = os.environ["MODEL_URL"]


def chat(role: str) -> ChatOpenAI:
    """Return the model of a role."""
    options: Any = {"base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}
    return ChatOpenAI(model=role, stream_usage=True, **options)


@tool
@recorded
async def weather(city: str) -> str:
    """Report the weather of a city."""
    return f"22 degrees in {city}"


@tool
@recorded
def search(query: str) -> str:
    """Search the web."""
    return f"three pages about {query}"


class Contact(BaseModel):
    """A person."""

    name: str
    city: str


react: Any = create_agent(chat("react"), [weather, search], system_prompt="Be brief.")

contact: Any = create_agent(chat("contact"), [search], response_format=ToolStrategy(Contact))

native_contact: Any = create_agent(
    chat("native_contact"), [search], response_format=ProviderStrategy(Contact)
)


@dynamic_prompt
def _choose_prompt(request: Any) -> str:
    return f"There are {len(request.messages)} messages."


limited: Any = create_agent(
    chat("limited"),
    [weather],
    middleware=[_choose_prompt, ModelCallLimitMiddleware(run_limit=2, exit_behavior="end")],
)

todos: Any = create_agent(chat("todos"), [search], middleware=[TodoListMiddleware()])

summarizing: Any = create_agent(
    chat("summarizing"),
    [weather],
    middleware=[
        SummarizationMiddleware(
            chat("summarizing/summary"), trigger=("messages", 5), keep=("messages", 2)
        )
    ],
)

_FAILED: set[str] = set()


@tool
@recorded
async def flaky(name: str) -> str:
    """Fail at every other call."""
    if len(_FAILED) % 2 == 0:
        _FAILED.add(f"{name}{len(_FAILED)}")
        raise ConnectionError("try again")
    _FAILED.clear()
    return f"{name} is there"


retrying: Any = create_agent(
    chat("retrying"),
    [flaky],
    middleware=[ToolRetryMiddleware(max_retries=1, initial_delay=0.01, backoff_factor=0.0)],
)


@tool
@recorded
async def pay(amount: int, to: str) -> str:
    """Pay an amount."""
    return f"paid {amount} to {to}"


approved: Any = create_agent(
    chat("approved"),
    [pay, weather],
    middleware=[HumanInTheLoopMiddleware(interrupt_on={"pay": True})],
)


# Subagents as tools: an inner agent in a tool of the outer one

_inner: Any = create_agent(chat("delegating/calendar"), [search])


@tool
@recorded
async def calendar(task: str) -> str:
    """Let the calendar agent work."""
    done = await _inner.ainvoke({"messages": [("user", task)]})
    return str(done["messages"][-1].content)


delegating: Any = create_agent(chat("delegating"), [calendar])


# Middleware: another model after a failure


falling: Any = create_agent(
    chat("falling/first"), [weather], middleware=[ModelFallbackMiddleware(chat("falling"))]
)


# State of an own type, which a tool changes with a command


class StepState(AgentState):
    warranty: NotRequired[str]


@tool
def record_warranty(status: str, runtime: ToolRuntime) -> Command[Any]:
    """Record the warranty of the customer."""
    done = ToolMessage(f"warranty: {status}", tool_call_id=runtime.tool_call_id)
    return Command(update={"warranty": status, "messages": [done]})


@tool
@recorded
def give_solution(solution: str) -> str:
    """Give a solution."""
    return f"solution: {solution}"


@wrap_model_call
async def _apply_step(request: Any, handler: Any) -> Any:
    known = request.state.get("warranty")
    prompt = f"The warranty is {known}." if known else "Ask for the warranty."
    tools = [give_solution] if known else [record_warranty]
    return await handler(request.override(system_prompt=prompt, tools=tools))


warranty: Any = create_agent(
    chat("warranty"),
    [record_warranty, give_solution],
    state_schema=StepState,
    middleware=[_apply_step],
)


# Long-term memory in tools


@tool
def save_user_info(name: str, runtime: ToolRuntime) -> str:
    """Save the name of the user."""
    assert runtime.store is not None
    runtime.store.put(("users",), "profile", {"name": name})
    return "saved"


@tool
def get_user_info(runtime: ToolRuntime) -> str:
    """Look up the user."""
    assert runtime.store is not None
    found = runtime.store.get(("users",), "profile")
    runtime.stream_writer("looked up")
    return str(found.value) if found else "unknown"


stored: Any = create_agent(chat("stored"), [save_user_info, get_user_info])


# Runtime context: the name of the user in the prompt


@dataclass
class UserContext:
    user_name: str = "John Smith"


@dynamic_prompt
def _address(request: Any) -> str:
    return f"Address the user as {request.runtime.context.user_name}."


addressed: Any = create_agent(
    chat("addressed"), [weather], middleware=[_address], context_schema=UserContext
)


# Dynamic model: a stronger one for long conversations


@wrap_model_call
async def _select_model(request: Any, handler: Any) -> Any:
    has_results = any(each.type == "tool" for each in request.messages)
    model = chat("selecting/strong") if has_results else chat("selecting")
    return await handler(request.override(model=model))


selecting: Any = create_agent(chat("selecting"), [search], middleware=[_select_model])


# Errors of tools as messages for the model


@wrap_tool_call
async def _handle_errors(request: Any, handler: Any) -> Any:
    try:
        return await handler(request)
    except ZeroDivisionError as error:
        return ToolMessage(f"Check the input: {error}", tool_call_id=request.tool_call["id"])


@tool
@recorded
def divide(a: int, b: int) -> float:
    """Divide two numbers."""
    return a / b


careful: Any = create_agent(chat("careful"), [divide], middleware=[_handle_errors])


# Guardrails: personal data is removed before the model


redacting: Any = create_agent(
    chat("redacting"), [search], middleware=[PIIMiddleware("email", strategy="redact")]
)


# A tool whose result is the answer


@tool(return_direct=True)
@recorded
def quote(topic: str) -> str:
    """Quote a saying."""
    return f"a saying about {topic}"


direct: Any = create_agent(chat("direct"), [quote])


# SQL agent: tools for a database, one query a person approves

_DATABASE = sqlite3.connect(":memory:", check_same_thread=False)
_DATABASE.execute("CREATE TABLE genres(name, tracks)")
_DATABASE.execute("INSERT INTO genres VALUES ('Rock', 12)")


@tool
@recorded
def sql_db_list_tables() -> str:
    """List the tables."""
    found = _DATABASE.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return ", ".join(name for (name,) in found)


@tool
@recorded
def sql_db_query(query: str) -> str:
    """Execute a query."""
    return str(_DATABASE.execute(query).fetchall())


sql_agent: Any = create_agent(
    chat("sql_agent"),
    [sql_db_list_tables, sql_db_query],
    middleware=[
        HumanInTheLoopMiddleware(
            interrupt_on={"sql_db_query": {"allowed_decisions": ["approve", "reject"]}}
        )
    ],
)


# A document in the message

reader: Any = create_agent(chat("reader"), [search])
