"""Failures of MCP servers, and the counts of their calls and connections.

The texts of failures are for models and operators: no secret, one line. This module is imported for
metrics, without the package for MCP.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, get_args

from agentctl.records.durations import DurationHistogram

CALL_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

CallEnd = Literal["completed", "failed", "timeout", "cancelled", "unavailable"]

CALL_ENDS: tuple[CallEnd, ...] = get_args(CallEnd)
"""The ways in which a call ends."""


class McpUnavailable(Exception):
    """A server cannot be used now. The text continues "the MCP server files is not available:"."""


class McpCallFailed(Exception):
    """A call got an error instead of a result. The text is that of the server, bounded."""


class McpSessionLost(McpUnavailable):
    """The server has forgotten the session. The call was not executed."""


class McpCounters:
    """Counts of a server since the process started.

    Attributes:
        calls: ended calls, by their end.
        call_seconds: durations of the calls.
        connections: opened connections.
        failures: attempts to connect that failed, and connections that were lost.
    """

    def __init__(self) -> None:
        self.calls = Counter[CallEnd]()
        self.call_seconds = DurationHistogram(CALL_BUCKETS)
        self.connections = 0
        self.failures = 0

    def count_call(self, end: CallEnd, seconds: float) -> None:
        self.calls[end] += 1
        self.call_seconds.add(seconds)
