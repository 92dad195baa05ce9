"""Durable agents of libraries. The tests copy this module into the folder of their deployment."""

from __future__ import annotations

from typing import Any

import ledger_tools  # type: ignore[import-not-found]  # next to its copy
from crossings import wait_at  # type: ignore[import-not-found]
from pydantic_ai import Agent, ModelRetry
from pydantic_ai import RunContext as Run

from agentctl import RunContext
from agentctl.pydantic_ai import Model

typed: Any = Agent(Model("plan"), deps_type=RunContext)


@typed.tool
async def cross(run: Run[RunContext], barrier: str) -> dict[str, str]:
    """Cross a barrier."""
    ledger_tools.record(run.deps, f"cross {barrier}")
    await wait_at(barrier)
    return {"crossed": barrier}


@typed.tool(metadata={"idempotent": True})
async def look(run: Run[RunContext], barrier: str) -> str:
    """Look through a barrier."""
    ledger_tools.record(run.deps, f"look {barrier}")
    await wait_at(barrier)
    return f"looked {barrier}"


@typed.tool
def note(run: Run[RunContext], text: str) -> str:
    """Write a note."""
    ledger_tools.record(run.deps, "note")
    if text == "bad":
        raise ModelRetry("not this text")
    return f"noted {text}"
