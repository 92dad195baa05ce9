"""Work on many items gives other tasks their turns, and large conversions leave the event loop.

The time after which a task gives a turn is nothing here, so that turns can be counted: one for each
two items at least, however fast the machine is. `make bench-hostile` measures the times
(decision 75).
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agentctl.config.mcp_table import McpServer
from agentctl.config.settings import Agent
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.json_schema import list_schema_problems
from agentctl.runtime.mcp.definitions import build_tool_list
from agentctl.work import event_loop
from agentctl.work.event_loop import STEP_BYTES, Turns, convert, take_shared_turn
from tests.kit.fake_context import FakeContext, settings
from tests.runtime import sample_agents
from tests.runtime.loop_steps import measure_steps

ITEMS = 60

Work = Callable[[], Awaitable[object]]


async def take_each() -> None:
    turns = Turns()
    for _ in range(ITEMS):
        await turns.take()


async def take_in_tasks() -> None:
    """Each of many tasks has a short piece of work."""
    await asyncio.gather(*(take_shared_turn() for _ in range(ITEMS)))


async def check_in_tasks() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    found = await asyncio.gather(
        *(list_schema_problems(schema, {"a": number}, 1) for number in range(ITEMS))
    )
    assert found == [[]] * ITEMS


async def list_tools() -> None:
    """A server lists tools, of which no agent may use one."""
    # The library of MCP takes a third of the imports of all fast tests.
    from agentctl.runtime.mcp.library import ListedTool

    listed = [ListedTool(f"t{number}", "", {"type": "object"}) for number in range(ITEMS)]
    server = McpServer("files", command="true", allow_tools=("other",))
    assert (await build_tool_list(server, listed)).tools == ()


async def read_log() -> None:
    """The program of an MCP server writes lines to its log."""
    from agentctl.runtime.mcp.stdio import Program, RunningProgram

    reports, guard = socket.socketpair()
    with guard:
        guard.sendall(b"line x\n" * 2 * ITEMS)
    program = Program("files", ("true",), {}, Path(), (), 1_000)
    with reports:
        await RunningProgram(program, lambda *_: None)._read_reports(reports)


async def yield_pieces(message: str) -> AsyncIterator[str]:
    for _ in range(ITEMS):
        yield "x"


async def return_rows(message: str) -> list[list[int]]:
    return [[7] * 20] * ITEMS


async def run_agent(name: str) -> None:
    agents = (Agent("code", object=f"tests.runtime.sample_agents:{name}"),)
    context = FakeContext(Catalog.from_settings(settings(agents=agents)))
    await context.execute("agent", "code", "go", [])


async def report_pieces() -> None:
    await run_agent("yield_pieces")


async def convert_result() -> None:
    await run_agent("return_rows")


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add agents to the module of sample agents."""
    for agent in (yield_pieces, return_rows):
        monkeypatch.setattr(sample_agents, agent.__name__, agent, raising=False)


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    "work",
    [
        take_each,
        take_in_tasks,
        check_in_tasks,
        # The library of MCP takes a second to import.
        pytest.param(list_tools, marks=pytest.mark.doors),
        pytest.param(read_log, marks=pytest.mark.doors),
        report_pieces,
        convert_result,
    ],
)
async def test_other_tasks_have_a_turn_for_each_two_items(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Once before, so that its imports are done; without an end of a step, as a comparison.
    monkeypatch.setattr(event_loop, "STEP_SECONDS", 1_000_000.0)
    async with measure_steps() as steps:
        await work()
    without = steps.count

    monkeypatch.setattr(event_loop, "STEP_SECONDS", 0.0)
    async with measure_steps() as steps:
        await work()
    assert steps.count - without >= ITEMS // 2 - 1


@pytest.mark.parametrize(("size", "is_outside"), [(STEP_BYTES, False), (STEP_BYTES + 1, True)])
async def test_large_data_is_converted_in_another_thread(size: int, is_outside: bool) -> None:
    where = await convert(threading.get_ident, size)
    assert (where != threading.get_ident()) is is_outside


async def test_result_that_is_converted_in_another_thread_is_returned_or_raised() -> None:
    async def read(function: Callable[[], Any]) -> Any:
        return await convert(function, STEP_BYTES + 1)

    assert await read(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await read(lambda: 1 / 0)
