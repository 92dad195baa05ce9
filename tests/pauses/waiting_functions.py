"""Agents that wait for decisions. The servers of the tests import this module."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from agentctl import Progress, Rejected, RunContext, StepFailed, ToolCompleted, ToolStarted, Usage

FOLDER = Path(__file__).parent


_session: ContextVar[str] = ContextVar("session")


def enter(context: RunContext) -> None:
    """Select the ledger of the session."""
    _session.set(context.session_id)


def open_ledger() -> Path:
    """Return the path of the ledger."""
    return FOLDER / f"{_session.get()}.ledger"


def record(line: str) -> None:
    """Write a line into the ledger."""
    with open_ledger().open("a") as ledger:
        ledger.write(f"{line}\n")


def look_up(name: str) -> dict[str, Any]:
    """Look up an account."""
    record(f"look up {name}")
    return {"account": name.upper()}


async def pay(arguments: Mapping[str, Any], context: RunContext) -> str:
    """Pay once; wait if a file asks for it."""
    record(f"pay {arguments['amount']} to {arguments['to']}")
    with (FOLDER / "call_ids.txt").open("a") as ids:
        ids.write(f"{context.call_id}\n")
    while (FOLDER / "hold").exists():
        await asyncio.sleep(0.01)
    return "paid"


async def order(message: dict[str, int], context: RunContext) -> str:
    """Take an object, ask, and answer with the object."""
    enter(context)
    message["seen"] = 1
    record(f"begin {message} {context.input}")
    decision = await context.approve("order", {"pieces": message["pieces"]})
    return f"{message} {context.input} {decision.approved}"


async def refund(message: str, context: RunContext) -> str:
    """Look up, ask, and pay."""
    enter(context)
    record("begin")
    found = await context.step("look up", look_up, message)
    asked = {"amount": 10, "to": found["account"]}
    decision = await context.approve("refund", asked, question="Refund?")
    if not decision:
        return f"refused: {decision.note}"

    async def effect() -> str:
        return await pay(decision.arguments, context)

    receipt = await context.step("refund", effect)
    return f"{receipt} by {decision.decided_by}"


async def twice(message: str, context: RunContext) -> str:
    """Pause two times, with the same call twice."""
    enter(context)
    results = []
    for _ in range(2):
        decision = await context.approve("refund", {"amount": 1, "to": message})
        if decision:
            results.append(await context.step("pay", look_up, message))
        else:
            results.append("no")
    return str(results)


async def parallel(message: str, context: RunContext) -> str:
    """Ask for three decisions in tasks, one of them after a slow step."""
    enter(context)

    async def slow() -> str:
        await asyncio.sleep(0.3)
        record("slow")
        return "slow"

    async def third() -> Any:
        await context.step("slow", slow)
        return await context.approve("third", {})

    async with asyncio.TaskGroup() as group:
        first = group.create_task(_await(context.approve("first", {})))
        second = group.create_task(_await(context.approve("second", {"n": 2})))
        last = group.create_task(third())
    decided = [first.result(), second.result(), last.result()]
    return ",".join("yes" if decision else "no" for decision in decided)


async def _await(awaitable: Any) -> Any:
    return await awaitable


async def form(message: str, context: RunContext) -> str:
    """Ask a question."""
    enter(context)
    schema = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
    try:
        answer = await context.ask("Which size?", schema)
    except Rejected as rejected:
        return f"rejected: {rejected.note}"
    return f"size {answer['size']}"


async def streamed(message: str, context: RunContext) -> AsyncIterator[Any]:
    """Yield text, events and usage before, between and after two pauses."""
    enter(context)
    yield "one "
    yield Progress("begin", 0.1)
    context.usage(input_tokens=100)
    yield Usage(input_tokens=3, output_tokens=2)
    yield ToolStarted("c1", "look_up", {"name": message})
    yield ToolCompleted("c1", await context.step("look up", look_up, message))
    decision = await context.approve("refund", {"amount": 1}, policy="user")
    yield f"two {decision.approved} "
    yield Usage(input_tokens=5, output_tokens=5)
    yield Progress("middle", 0.5)
    answer = await context.ask("Why?")
    yield f"three {answer}"
    yield Usage(input_tokens=7)


async def branching(message: str, context: RunContext) -> str:
    """Call another step when it runs again."""
    enter(context)
    record("branch")
    number = open_ledger().read_text().count("branch")
    try:
        await context.step(f"step {number}", look_up, message)
    except Exception:
        record("caught")
    await context.approve("refund", {})
    return "done"


async def drifting(message: str, context: RunContext) -> AsyncIterator[str]:
    """Yield other text when it runs again."""
    enter(context)
    yield f"at {time.monotonic_ns()}"
    await context.approve("refund", {})
    yield "done"


async def drifting_call(message: str, context: RunContext) -> AsyncIterator[Any]:
    """Report another tool call when it runs again."""
    enter(context)
    yield ToolStarted("c1", "look_up", {"at": time.monotonic_ns()})
    await context.approve("refund", {})
    yield "done"


def blocking(message: str, context: RunContext) -> str:
    """Ask in a synchronous function."""
    return str(context.approve("refund", {}))


async def inline(message: str, context: RunContext) -> str:
    """Make the call without a step, and fail a step."""
    enter(context)
    try:
        await context.step("broken", look_up_failing)
    except StepFailed as failure:
        record(str(failure))
    if await context.approve("refund", {}):
        record("inline")
    return "done"


async def late(message: str, context: RunContext) -> str:
    """Get two decisions and an answer before the calls, and cancel a step."""
    enter(context)
    first = await context.approve("first", {"n": 1})
    second = await context.approve("second", {"n": 2})
    answer = await context.ask("Which?")
    for decision in (first, second):
        await context.step("record", record, f"{answer} {decision.arguments['n']}")
    try:
        async with asyncio.timeout(60) as limit:
            limits[:] = [limit]
            await context.step("slow", record_slowly)
    except (TimeoutError, StepFailed) as error:
        record(type(error).__name__)
    await context.ask("Again?")
    return "done"


limits: list[asyncio.Timeout] = []
"""The time limit of the last step of `late`."""


async def record_slowly() -> None:
    """Record, and do not end before the time limit, which is reached then."""
    record("slow")
    limits[0].reschedule(0)
    await asyncio.sleep(600)


def look_up_failing() -> str:
    """Fail."""
    record("failing")
    raise ValueError("secret")


async def counted(message: str, context: RunContext) -> str:
    """Count in the state of the session."""
    enter(context)
    context.state["count"] = context.state.get("count", 0) + 1
    await context.approve("refund", {})
    return str(context.state["count"])


async def crossing(message: str, context: RunContext) -> str:
    """Ask about A and B at the same time; in each second leg the task of B is the first to ask."""
    enter(context)
    record("leg")
    leg = open_ledger().read_text().splitlines().count("leg")
    first = "AB"[(leg - 1) % 2]
    has_asked = asyncio.Event()

    async def remove(name: str) -> None:
        if name != first:
            await has_asked.wait()
        has_asked.set()
        if await ask_about(name, message, context):
            await context.step("remove", record, f"{name} is removed")

    await asyncio.gather(remove("A"), remove("B"))
    return "done"


async def ask_about(name: str, form: str, context: RunContext) -> bool:
    """Ask whether something may be removed; the form says where its name is."""
    match form:
        case "arguments":
            return bool(await context.approve("remove", {"name": name}))
        case "question":
            return bool(await context.approve("remove", {}, question=f"Remove {name}?"))
        case "policy":
            policy: Any = {"A": "user", "B": "other"}[name]
            return bool(await context.approve("remove", {}, policy=policy))
        case "schema":
            schema = {"enum": ["yes", "no"], "title": name}
            return bool(await context.ask("Remove it?", schema) == "yes")
        case "same":
            return bool(await context.approve("remove", {}))
    try:
        return bool(await context.ask(f"Remove {name}?") == "yes")
    except Rejected:
        return False


async def turning(message: str, context: RunContext) -> str:
    """Ask about A, and about B when it runs again."""
    enter(context)
    record("leg")
    leg = open_ledger().read_text().splitlines().count("leg")
    name = "AB"[leg - 1]
    if await ask_about(name, message, context):
        await context.step("remove", record, f"{name} is removed")
    return "done"
