"""Tools that write what they did into a file: the truth outside of the server.

The tests copy this module into the folder of their deployment.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import agentctl

LEDGER = Path(__file__).with_name("ledger.jsonl")
HOLD = Path(__file__).with_name("hold")
"""While this file exists, `book`, `visit`, `slow` and `linger` work."""


def record(context: agentctl.RunContext, tool: str, **arguments: Any) -> None:
    """Append a line to the ledger."""
    line = {
        "tool": tool,
        "arguments": arguments,
        "session_id": context.session_id,
        "call_id": context.call_id,
    }
    data = f"{json.dumps(line)}\n".encode()
    file = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, data)
    os.close(file)


@agentctl.tool(approve="user")
def refund(amount: int, to: str, context: agentctl.RunContext) -> str:
    """Pay money back."""
    record(context, "refund", amount=amount, to=to)
    return f"paid {amount} to {to}"


@agentctl.tool(idempotent=True)
async def visit(place: str, context: agentctl.RunContext) -> str:
    """Visit a place while the test holds it."""
    record(context, "visit", place=place)
    context.state["visited"] = place
    while HOLD.exists():
        await asyncio.sleep(0.02)
    return f"visited {place}"


@agentctl.tool(approve="user", idempotent=True)
async def book(place: str, context: agentctl.RunContext) -> str:
    """Book a place."""
    record(context, "book", place=place)
    while HOLD.exists():
        await asyncio.sleep(0.02)
    return f"booked {place}"


def mail_send(to: str, context: agentctl.RunContext) -> str:
    """Send a mail."""
    record(context, "mail_send", to=to)
    return f"sent to {to}"


@agentctl.tool
def note(text: str, context: agentctl.RunContext) -> str:
    """Write a note."""
    record(context, "note", text=text)
    return f"noted {text}"


def shaky(text: str, context: agentctl.RunContext) -> str:
    """Fail."""
    record(context, "shaky", text=text)
    raise RuntimeError("secret of the tool")


def slow(text: str, context: agentctl.RunContext) -> str:
    """Work while the test holds it."""
    record(context, "slow", text=text)
    while HOLD.exists() and not context.cancelled:
        time.sleep(0.02)
    return f"slowly {text}"


def linger(text: str, context: agentctl.RunContext) -> str:
    """Work while the test holds it; no one approves it."""
    record(context, "linger", text=text)
    while HOLD.exists() and not context.cancelled:
        time.sleep(0.02)
    return f"lingered {text}"
