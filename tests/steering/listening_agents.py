"""Agents in code that take messages. The tests copy this module into their deployments."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent

from agentctl import RunContext
from agentctl.pydantic_ai import Model

typed: Any = Agent(Model("steps"), deps_type=RunContext)


@typed.tool_plain
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def ask_model(prompt: str) -> str:
    """Ask the model of the stub for one step."""
    result = await Agent(Model("steps")).run(prompt)
    return str(result.output)


async def listen(message: str, context: RunContext) -> str:
    """Take the steps that a message `work N ID` asks for, and answer with what was heard."""
    heard = [message]
    words = message.split()
    # A message that became the next run of the session asks for no steps.
    steps = int(words[1]) if words[0] == "work" else 0
    for number in range(steps):
        await context.step(f"step {number}", ask_model, f"look at {number}", idempotent=True)
        heard += [sent.text for sent in await context.messages()]
    return f"done after {' | '.join(heard)}"
