"""Tools and agents in code that read the run context; the tests write this file to a folder."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

from agentctl import Progress, RunContext, ToolStarted

events: dict[str, threading.Event] = {}
"""Events that hold functions until a test opens them, by name."""


def describe(context: RunContext) -> dict[str, Any]:
    return {
        "user": context.user_id,
        "session": context.session_id,
        "run": context.run_id,
        "component": context.component_id,
        "claims": dict(context.claims),
        "metadata": dict(context.metadata),
        "dependencies": dict(context.dependencies),
        "state": dict(context.state),
        "history": [message["content"] for message in context.history],
    }


def who(context: RunContext, detail: str = "") -> str:
    """Describe the caller."""
    context.state["who"] = context.state.get("who", 0) + 1
    return json.dumps(describe(context))


async def who_async(detail: str = "", run: RunContext | None = None) -> str:
    """Describe the caller."""
    assert run is not None
    return json.dumps(describe(run))


def report(context: RunContext, text: str) -> str:
    """Report progress and tokens from a thread."""
    context.progress(text, fraction=0.5)
    context.progress(1)
    context.usage(input_tokens=1_000, output_tokens=1)
    return "reported"


def spoil(context: RunContext) -> str:
    """Change what a function must not change."""
    problems = []
    for mapping in (context.claims, context.metadata, context.dependencies):
        try:
            mapping["sub"] = "root"  # type: ignore[index]
        except TypeError:
            problems.append("refused")
    return " ".join(problems)


def watch(context: RunContext) -> str:
    """Work until the run has to stop."""
    deadline = time.monotonic() + 60
    while not context.cancelled and time.monotonic() < deadline:
        time.sleep(0.005)
    return "stopped"


async def describe_agent(message: str, context: RunContext) -> str:
    return json.dumps(describe(context))


async def set_state(message: str, context: RunContext) -> str:
    """Change the state by the message: `key=value` sets, `-key` removes."""
    for change in message.split():
        if change.startswith("-"):
            context.state.pop(change[1:], None)
        else:
            key, _, value = change.partition("=")
            context.state[key] = json.loads(value)
    return message


async def set_when_opened(message: str, context: RunContext) -> str:
    """Change a key, then wait for the event of the message."""
    context.state[message] = [message]
    context.state.setdefault("shared", {})[message] = 1
    event = events.setdefault(message, threading.Event())
    while not event.is_set():
        await asyncio.sleep(0.01)
    return message


async def fail_with_state(message: str, context: RunContext) -> str:
    context.state["failed"] = True
    raise ValueError("secret text of an exception")


async def bad_state(message: str, context: RunContext) -> str:
    context.state["bad"] = object() if message == "object" else "x" * 70_000
    return "answered"


async def hang_with_state(message: str, context: RunContext) -> AsyncIterator[Any]:
    context.state["begun"] = True
    yield "partial "
    yield ToolStarted("c1", "wait", {})
    await asyncio.sleep(3_600)


async def ignore_cancel(message: str, context: RunContext) -> str:
    event = events.setdefault(message, threading.Event())
    context.progress("ignoring")
    while not event.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            context.state["late"] = True
    return "late answer"


async def many_reports(message: str, context: RunContext) -> AsyncIterator[Any]:
    for number in range(1_200):
        context.progress("x" * 2_000, fraction=number / 1_200)
    yield Progress(fraction=1.0)
    yield "reported"
