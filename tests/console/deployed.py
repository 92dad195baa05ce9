"""The server whose console is tested, and its runs."""

from __future__ import annotations

from typing import Any

import httpx2

from tests.kit.conditions import wait_for
from tests.kit.deployment import ADMIN
from tests.kit.threaded_server import ThreadedServer

__all__ = ["EXTRA", "HOLD", "READS", "RUNS", "hold", "start", "token", "wait_for_status"]

READS = ("agents:read", "teams:read", "workflows:read", "sessions:read")
RUNS = ("agents:run", "teams:run", "workflows:run")

HOLD = """
import time
from pathlib import Path


def hold(name: str) -> str:
    \"\"\"Return a long text when a file exists, or after two minutes.\"\"\"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (Path(__file__).parent / name).exists():
        time.sleep(0.02)
    return name.ljust(12_000, ".")


def refund(order: str, amount: int) -> str:
    \"\"\"Pay an amount back.\"\"\"
    return "paid"


def sell(message: str) -> str:
    raise ValueError(f"the shop answered 500 to the order {message}")
"""
"""A tool that cannot be interrupted and that a test ends, one that needs an approval, and an agent
that fails."""

EXTRA = """
[search]
enabled = true

[[models]]
id = "hold"
provider = "openai"
model = "tool:hold"
base_url = "{url}"

[[agents]]
id = "hold"
name = "Hold"
model = "hold"
tools = ["console_tools:hold"]

[[models]]
id = "refund"
provider = "openai"
model = "tool:refund"
base_url = "{url}"

[[agents]]
id = "refunds"
name = "Refunds"
model = "refund"
tools = ["console_tools:refund"]
instructions = "Refund what is due."
approve = {{ refund = "user" }}

[[agents]]
id = "steered-refunds"
name = "Steered refunds"
model = "refund"
tools = ["console_tools:refund"]
approve = {{ refund = "user" }}
on_busy = "steer"

[[models]]
id = "priced"
provider = "openai"
model = "echo"
base_url = "{url}"
price = {{ input = 2.0, output = 10.0 }}

[[agents]]
id = "priced"
name = "Priced"
model = "priced"

[[agents]]
id = "lined"
name = "Lined"
model = "echo"
on_busy = "enqueue"

[[agents]]
id = "seller-of-the-department-for-gardens"
name = "Seller of the department for gardens"
object = "console_tools:sell"

[[agents]]
id = "hostile"
name = "<img src=x onerror=alert(1)>"
description = "<script>alert(2)</script>"
model = "echo"
"""


def token(server: ThreadedServer, *scopes: str) -> str:
    """Mint a token of `me`, by default one that reads and runs everything."""
    return server.deployment.token("me", *(scopes or (*READS, *RUNS, "sessions:write")))


def start(
    server: ThreadedServer, component: str, session: str, message: str, **more: Any
) -> httpx2.Response:
    """Start a run as `me`, by default to its end."""
    body = {"message": message, "session_id": session, "stream": False, **more}
    headers = server.bearer("me", *READS, *RUNS)
    answer = server.client.post(f"/{component}/runs", json=body, headers=headers)
    assert answer.status_code in (200, 202), answer.text
    return answer


def hold(server: ThreadedServer, session: str) -> None:
    """Hold a session as an administrator."""
    headers = server.bearer("boss", ADMIN)
    place = f"/sessions/{session}/hold"
    assert server.client.post(place, json={"reason": "Claim 17"}, headers=headers).is_success


def wait_for_status(server: ThreadedServer, place: str, status: str) -> None:
    """Wait until a run has a status."""
    headers = server.bearer("me", *READS)
    wait_for(lambda: server.client.get(place, headers=headers).json()["status"] == status)
