"""The durable agents of the tests."""

from __future__ import annotations

DURABLE = """
[[agents]]
id = "lasting"
durable = true
model = "plan"
tools = ["ledger_tools:refund", "ledger_tools:note", "ledger_tools:linger", "ledger_tools:visit"]

[[agents]]
id = "turning"
durable = true
model = "plan"
tools = ["ledger_tools:visit"]
repeat_calls = 2

[[agents]]
id = "plain"
model = "plan"
tools = ["ledger_tools:note"]

[[teams]]
id = "pair"
mode = "coordinate"
model = "plan"
members = ["lasting", "plain"]
durable = true
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
from crossings import cross, look


async def errand(message, context):
    async def note(text):
        ledger_tools.record(context, "note")

    async def look_at(barrier):
        return await look(barrier, context)

    async def cross_at(barrier):
        return await cross(barrier, context)

    async def call_all(barrier):
        return await asyncio.gather(
            context.step("look", look_at, barrier, idempotent=True),
            context.step("cross", cross_at, barrier),
            context.step("note", note, barrier),
        )

    await asyncio.gather(context.step("note", note, 1), context.step("note", note, 2))
    await call_all("first")
    _, crossed, _ = await call_all("second")
    await context.step("note", note, 3)
    await context.step("note", note, 4)
    yield crossed
"""

TOGETHER = """
[[agents]]
id = "walker"
durable = true
model = "plan"
tools = ["crossings:cross", "crossings:look", "ledger_tools:note"]

[[agents]]
id = "runner"
model = "plan"
tools = ["crossings:cross", "crossings:look", "ledger_tools:note"]

[[teams]]
id = "troop"
mode = "coordinate"
model = "plan"
members = ["walker", "runner"]
tools = ["ledger_tools:note"]
durable = true

[[teams]]
id = "heads"
mode = "coordinate"
model = "plan"
members = ["troop"]
durable = true

[[teams]]
id = "window"
mode = "route"
model = "delegate"
members = ["walker", "runner"]
durable = true

[[teams]]
id = "circle"
mode = "broadcast"
model = "echo"
members = ["walker", "runner"]
durable = true

[[workflows]]
id = "track"
durable = true
steps = [{ name = "walk", agent = "walker" }, { name = "run", agent = "runner" },
         { name = "meet", team = "troop" }]
"""

LIBRARIES = """
[[agents]]
id = "typed"
durable = true
object = "library_agents:typed"

[[agents]]
id = "tasks"
durable = true
object = "library_agents:tasks"

[[agents]]
id = "nodes"
durable = true
object = "library_agents:nodes"

[[agents]]
id = "gated"
durable = true
object = "library_agents:gated"

[[agents]]
id = "gated-nodes"
durable = true
object = "library_agents:gated_nodes"

[[agents]]
id = "questions"
durable = true
object = "library_agents:questions"
"""

MCP = """
[[mcp_servers]]
id = "bars"
command = "{python}"
args = ["{server}", "{folder}", "{session}"]
idempotent_tools = ["lo*"]
call_seconds = 600

[[agents]]
id = "client"
durable = true
model = "plan"
tools = ["mcp:bars"]
"""
