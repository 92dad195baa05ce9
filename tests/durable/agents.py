"""The durable agents of the tests."""

from __future__ import annotations

DURABLE = """
[[agents]]
id = "lasting"
durable = true
model = "plan"
tools = ["ledger_tools:refund", "ledger_tools:note", "ledger_tools:linger", "ledger_tools:visit"]

[[agents]]
id = "plain"
model = "plan"
tools = ["ledger_tools:note"]
"""

FUNCTION = """
[[agents]]
id = "function"
durable = true
object = "durable_functions:errand"
"""

FUNCTION_CODE = """
import asyncio
import ledger_tools


async def errand(message, context):
    async def make(name):
        ledger_tools.record(context, name)
        return f"made {name}"

    async def hold(name):
        ledger_tools.record(context, name)
        while ledger_tools.HOLD.exists():
            await asyncio.sleep(0.02)
        return f"held {name}"

    yield await context.step("first", make, "first")
    last, idempotent = message.split()
    yield await context.step("hold", hold, last, idempotent=idempotent == "True")
    yield await context.step("last", make, "last")
"""
