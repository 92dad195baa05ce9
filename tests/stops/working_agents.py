"""Agents whose code starts work of every form. The server of the tests imports this module.

Work that goes on adds lines to the file `LEDGER`: the tag of its run and the time in microseconds.
The message of a run is JSON: `tag`; `form`; `seconds`, the time after which the work ends on its
own; and `leave`, with which the agent returns at once and leaves the work. Work also ends when the
file `LEDGER.TAG` exists.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import agents
from agno.agent import Agent as AgnoAgent
from agno.models.openai.like import OpenAILike
from agno.team import Team as AgnoTeam
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agentctl import RunContext, outside_run

URL = os.environ["MODEL_URL"]
LEDGER = os.environ["LEDGER"]
BEAT_SECONDS = 0.02

_shared_pool = ThreadPoolExecutor(64)

_shared_processes = ProcessPoolExecutor(8)
_kept: list[Any] = []


def write(tag: str) -> None:
    """Add a line to the ledger."""
    line = f"{tag} {time.time_ns() // 1_000}\n".encode()
    descriptor = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line)
    os.close(descriptor)


def goes_on(tag: str, deadline: float) -> bool:
    return time.monotonic() < deadline and not os.path.exists(f"{LEDGER}.{tag}")  # noqa: PTH110


async def work(tag: str, seconds: float) -> None:
    """Work until the end of the time, or a cancel."""
    deadline = time.monotonic() + seconds
    while goes_on(tag, deadline):
        write(tag)
        await asyncio.sleep(BEAT_SECONDS)


async def insist(tag: str, seconds: float) -> None:
    """Work until the end of the time, although cancelled."""
    deadline = time.monotonic() + seconds
    while goes_on(tag, deadline):
        write(tag)
        try:
            await asyncio.sleep(BEAT_SECONDS)
        except asyncio.CancelledError:
            continue


async def spread(tag: str, seconds: float) -> None:
    """Start a task for the work, and cancel nothing."""
    started = asyncio.create_task(work(tag, seconds))
    _kept.append(started)
    await asyncio.wait([started])


def block(tag: str, seconds: float) -> None:
    """Work in a thread or process."""
    deadline = time.monotonic() + seconds
    while goes_on(tag, deadline):
        write(tag)
        time.sleep(BEAT_SECONDS)


def build_shell_line(tag: str, seconds: float) -> str:
    """Return a command that works for a time."""
    beats = int(seconds / 0.05) + 1
    return (
        f"i=0; while [ $i -lt {beats} -a ! -e '{LEDGER}.{tag}' ]; do i=$((i+1));"
        f" echo {tag} $(date +%s%6N) >> '{LEDGER}'; sleep 0.05; done"
    )


def shell(line: str) -> list[str]:
    return ["/bin/sh", "-c", line]


async def start_task(tag: str, seconds: float) -> None:
    _kept.append(asyncio.create_task(work(tag, seconds)))


async def start_insisting(tag: str, seconds: float) -> None:
    _kept.append(asyncio.create_task(insist(tag, seconds)))


async def start_tree(tag: str, seconds: float) -> None:
    _kept.append(asyncio.create_task(spread(tag, seconds)))


async def start_to_thread(tag: str, seconds: float) -> None:
    _kept.append(asyncio.create_task(asyncio.to_thread(block, tag, seconds)))


async def start_in_pool(tag: str, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    _kept.append(loop.run_in_executor(_shared_pool, block, tag, seconds))


async def start_submit(tag: str, seconds: float) -> None:
    pool = ThreadPoolExecutor(1)
    _kept.append((pool, pool.submit(block, tag, seconds)))


async def start_process_pool(tag: str, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    _kept.append(loop.run_in_executor(_shared_processes, block, tag, seconds))


async def start_process_submit(tag: str, seconds: float) -> None:
    pool = ProcessPoolExecutor(1)
    _kept.append((pool, pool.submit(block, tag, seconds)))


async def start_thread(tag: str, seconds: float) -> None:
    threading.Thread(target=block, args=(tag, seconds), name="beat", daemon=True).start()


async def start_popen(tag: str, seconds: float) -> None:
    _kept.append(subprocess.Popen(shell(build_shell_line(tag, seconds))))


async def start_exec(tag: str, seconds: float) -> None:
    line = shell(build_shell_line(tag, seconds))
    _kept.append(await asyncio.create_subprocess_exec(*line))


async def start_shells(tag: str, seconds: float) -> None:
    line = f"({build_shell_line(tag, seconds)}) & wait"
    _kept.append(subprocess.Popen(shell(line), start_new_session=True))


async def start_deaf(tag: str, seconds: float) -> None:
    line = f"trap '' TERM; {build_shell_line(tag, seconds)}"
    _kept.append(await asyncio.create_subprocess_exec(*shell(line)))


async def start_fork(tag: str, seconds: float) -> None:
    process = multiprocessing.get_context("fork").Process(target=block, args=(tag, seconds))
    process.start()
    _kept.append(process)


async def start_command_in_thread(tag: str, seconds: float) -> None:
    line = shell(build_shell_line(tag, seconds))
    _kept.append(asyncio.create_task(asyncio.to_thread(subprocess.run, line)))


async def start_nothing(tag: str, seconds: float) -> None:
    await work(tag, seconds)


async def start_shared(tag: str, seconds: float) -> None:
    with outside_run():
        _kept.append(asyncio.create_task(work(tag, seconds)))


FORMS: dict[str, Callable[[str, float], Any]] = {
    name.removeprefix("start_").replace("_", "-"): function
    for name, function in list(globals().items())
    if name.startswith("start_")
}
"""Functions that start work, by the names of its forms."""


async def start(tag: str, form: str, seconds: float = 600.0, leave: bool = False) -> str:
    """Start the work of a form, and wait for it unless it is left."""
    await FORMS[form](tag, seconds)
    if not leave:
        await asyncio.sleep(600)
    return "started"


def run_command(tag: str, form: str = "", seconds: float = 600.0, leave: bool = False) -> str:
    """Run a command to its end."""
    subprocess.run(shell(build_shell_line(tag, seconds)), check=False)
    return "ended"


# Functions and generators


async def function(message: str, context: RunContext) -> str:
    return await start(**json.loads(message))


def synchronous(message: str) -> str:
    return run_command(**json.loads(message))


async def generator(message: str, context: RunContext) -> AsyncIterator[str]:
    """Read a queue that a task fills, as agents with callbacks do."""
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def fill() -> None:
        options = json.loads(message)
        while True:
            write(options["tag"])
            await queue.put("word ")
            await asyncio.sleep(BEAT_SECONDS)

    _kept.append(asyncio.create_task(fill()))
    while True:
        yield await queue.get()


# pydantic-ai

pydantic_ai = PydanticAgent(
    OpenAIChatModel("tool:start", provider=OpenAIProvider(base_url=URL, api_key="not-needed")),
    tools=[start],
)

# LangGraph


def build_graph() -> Any:
    options: dict[str, Any] = {"base_url": URL, "api_key": "not-needed"}
    tools = [langchain_tool(start, description="Start")]
    chat = ChatOpenAI(model="tool:start", stream_usage=True, **options).bind_tools(tools)

    async def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await chat.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", call_model)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges(
        "model",
        lambda state: "tools" if getattr(state["messages"][-1], "tool_calls", None) else END,
        ["tools", END],
    )
    graph.add_edge("tools", "model")
    return graph.compile()


def build_branches() -> Any:
    """Build a graph with two nodes that work at the same time, and one whose model hangs."""
    options: dict[str, Any] = {"base_url": URL, "api_key": "not-needed"}
    chat = ChatOpenAI(model="hang", stream_usage=True, **options)

    async def first(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", await start(**json.loads(state["messages"][0].text)))]}

    async def second(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await chat.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    for name, node in {"first": first, "other": first, "second": second}.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph.compile()


langgraph = build_graph()
langgraph_branches = build_branches()

# agno


def like(model: str) -> Any:
    return OpenAILike(id=model, base_url=URL, api_key="not-needed")


def build_member(model: str) -> Any:
    return AgnoAgent(model=like(model), id="helper", name="helper", tools=[start])


def build_team(member: Any) -> Any:
    return AgnoTeam(model=like("delegate"), members=[member], id="crew", name="crew")


agno_agent = build_member("tool:start")
agno_team_hang = build_team(build_member("hang"))
agno_team_tool = build_team(build_member("tool:start"))
agno_team_again = build_team(build_member("again:touch"))
agno_nested_hang = build_team(build_team(build_member("hang")))
agno_nested_tool = build_team(build_team(build_member("tool:start")))


async def touch(tag: str) -> str:
    """Work for a moment."""
    write(tag)
    await asyncio.sleep(0.05)
    write(tag)
    return "touched"


for team in (agno_team_again,):
    team.members[0].tools = [touch]


# openai-agents


@dataclass
class Work:
    """The arguments of an agent that is called as a tool."""

    tag: str
    form: str = ""
    seconds: float = 600.0
    leave: bool = False


def build_openai_agent(model: str, *tools: Any) -> Any:
    client = AsyncOpenAI(base_url=URL, api_key="not-needed", max_retries=0)
    return agents.Agent(
        name="worker", model=agents.OpenAIChatCompletionsModel(model, client), tools=[*tools]
    )


def build_caller(worker: Any) -> Any:
    """Build an agent that calls another one as a tool."""
    tool = worker.as_tool("ask_worker", "Ask it.", parameters=Work)
    return build_openai_agent("tool:ask_worker", tool)


openai_agent = build_openai_agent("tool:start", agents.function_tool(start, strict_mode=False))
openai_called = build_caller(openai_agent)
openai_hang = build_caller(build_openai_agent("hang"))
# Forked at the import: a process that is forked later has copies of the connections to models.
for _ in range(8):
    _shared_processes.submit(time.sleep, 0.2)
