"""The gate that a request to a model passes right before it is sent.

A connection may take seconds. So the clients of models look again when everything is ready, and
send the request in the same step of the event loop (decision 146).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

current_send_gate: ContextVar[SendGate | None] = ContextVar("agentctl_send_gate", default=None)
"""The gate of the current code; None outside of runs."""


class SendGate(Protocol):
    """Decides whether a request of the current code may be sent now."""

    def is_open(self) -> bool:
        """Return True if the request may be sent now."""

    async def wait(self) -> None:
        """Wait until it may be sent; without a step of the event loop if it may already."""
