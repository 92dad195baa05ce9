"""Tools that wait at a barrier, which is a file, and write what they did into the ledger.

The tests copy this module into the folder of their deployment.
"""

from __future__ import annotations

import asyncio

import ledger_tools  # type: ignore[import-not-found]  # next to its copy

import agentctl


async def wait_at(barrier: str) -> None:
    """Wait while the barrier is closed."""
    while ledger_tools.LEDGER.with_name(f"barrier-{barrier}").exists():
        await asyncio.sleep(0.02)


async def cross(barrier: str, context: agentctl.RunContext) -> str:
    """Cross a barrier."""
    ledger_tools.record(context, f"cross {barrier}")
    context.state[barrier] = "crossed"
    await wait_at(barrier)
    return f"crossed {barrier}"


@agentctl.tool(idempotent=True)
async def look(barrier: str, context: agentctl.RunContext) -> str:
    """Look through a barrier."""
    ledger_tools.record(context, f"look {barrier}")
    await wait_at(barrier)
    return f"looked {barrier}"
