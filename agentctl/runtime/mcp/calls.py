"""Calls of MCP tools: their requests, failures and counts, and the values of header fields and of
environment variables, with their placeholders replaced.

The texts of failures are for models and operators: no secret, one line. This module is imported for
metrics, without the package for MCP.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from agentctl.config.mcp_servers import TemplatePart, parse_template
from agentctl.records.times import DurationHistogram

if TYPE_CHECKING:
    from agentctl.runtime.context import RunEnvironment


CONNECT_SECONDS = 30
"""Maximum time to start or connect to a server, and again to list its tools."""

CALL_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets for the durations of calls, in seconds."""

CallEnd = Literal["completed", "failed", "timeout", "cancelled", "unavailable"]

CALL_ENDS: tuple[CallEnd, ...] = get_args(CallEnd)
"""The ends of a call."""

current_call: ContextVar[McpCall | None] = ContextVar("agentctl_mcp_call", default=None)
"""The call whose request the current task sends."""


class McpUnavailable(Exception):
    """A server cannot be used now. The text continues "the MCP server files is not available:"."""


class McpCallFailed(Exception):
    """A call got an error instead of a result. The server has sent its text, which is cut."""


class McpSessionLost(McpUnavailable):
    """The server has forgotten the session. The call was not executed."""


@dataclass(frozen=True, slots=True)
class McpAnswers:
    """The answers to the questions of a call."""

    responses: Mapping[str, Mapping[str, Any]]
    """An `ElicitResult` of the protocol for each question, by the keys of the server."""

    request_state: str | None
    """The opaque state that the server sent with its questions; None without one."""


class McpCall:
    """One call of a tool: its request, and the end of its work at the server.

    Attributes:
        tool: name of the tool at the server.
        answers: the answers to the questions of the same call before; None for a new call.
        check: called right before the request is given to the connection; it raises what ends the
            call.
        sending: closed when the call has ended.
        session_lost: True if the server did not execute it, because it does not know the session.
    """

    def __init__(
        self, tool: str, arguments: Mapping[str, Any], answers: McpAnswers | None = None
    ) -> None:
        self.tool = tool
        self.arguments = arguments
        self.answers = answers
        self.session_lost = False
        self.check: Callable[[], None] = lambda: None
        self.sending = ExitStack()
        self.request_id: str | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def expect_stop(self, seconds: float) -> asyncio.Future[None] | None:
        """Return a future that ends when the cancelled work is known to have stopped.

        It gets a result if a late result arrives. It is cancelled if the server answers with an
        error, if the connection ends, or after `seconds`, when a server that follows the protocol
        has stopped. None if no request was sent.
        """
        if self.request_id is None:
            return None

        loop = asyncio.get_running_loop()
        self._stopped = loop.create_future()
        self._timer = loop.call_later(seconds, self.end)
        return self._stopped

    def answer(self, *, is_error: bool) -> None:
        """Take a response that arrived."""
        if self._stopped is not None and not self._stopped.done() and not is_error:
            self._stopped.set_result(None)
        self.end()

    def end(self) -> None:
        """Take the work as ended without a result."""
        if self._timer is not None:
            self._timer.cancel()
        if self._stopped is not None and not self._stopped.done():
            self._stopped.cancel()


class McpCounters:
    """Counts of a server since the process started.

    Attributes:
        calls: ended calls, by their end.
        call_seconds: durations of the calls.
        connections: connections that were opened and listed their tools.
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


_HEADER_TEXT = re.compile(r"[!-~]([ -~]*[!-~])?")


@dataclass(frozen=True, slots=True)
class McpUser:
    """The user of a run that calls tools."""

    user_id: str | None = None
    """None for a run without a user."""

    claims: Mapping[str, Any] = field(default_factory=dict)
    """The verified claims of the token; empty without a token."""


NOBODY = McpUser()
"""The user of a server that is the same for all users."""


def get_user(environment: RunEnvironment) -> McpUser:
    """Return the user of a run, with the verified claims of the caller."""
    spec = environment.spec
    return McpUser(spec.user_id, json.loads(spec.claims) if spec.claims else {})


def expand_values(values: Mapping[str, str], user: McpUser) -> dict[str, str]:
    """Return the values with all placeholders replaced.

    Raises:
        McpUnavailable: a variable is not set, or the user has no such claim, or one that cannot be
            a header field. The text names it and never repeats a value.
    """
    expanded: dict[str, str] = {}
    for name, template in values.items():
        # The configuration was checked: each template can be parsed.
        parts = parse_template(template) or ()
        expanded[name] = "".join(_expand_part(part, user) for part in parts)
    return expanded


def collect_secrets(values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of the environment variables that these values contain."""
    secrets: list[str] = []
    for template in values.values():
        for part in parse_template(template) or ():
            if part.kind == "env" and (secret := os.environ.get(part.name)):
                secrets.append(secret)
    return tuple(secrets)


def _expand_part(part: TemplatePart, user: McpUser) -> str:
    if part.kind == "text":
        return part.name

    if part.kind == "env":
        variable = os.environ.get(part.name, "")
        if not variable:
            raise McpUnavailable(f"the environment variable {part.name} is not set")
        return variable

    if part.kind == "user":
        return _check_user_value(user.user_id, "the run has no user", "the id of the user")

    return _check_user_value(
        user.claims.get(part.name),
        f"the token of the user has no claim {part.name}",
        f"the claim {part.name} of the user",
    )


def _check_user_value(value: object, missing_reason: str, label: str) -> str:
    """Return a value of the user as the text of a header field (security case P08).

    Raises:
        McpUnavailable: there is no value, with `missing_reason`; or it is an object, a list, a
            boolean or a text that a header field cannot carry.
    """
    if value is None or value == "":
        raise McpUnavailable(missing_reason)

    # An id may be a number. A boolean, which is an int in Python too, is refused.
    is_number = isinstance(value, int) and not isinstance(value, bool)
    text = str(value) if is_number else value
    if not isinstance(text, str) or not _HEADER_TEXT.fullmatch(text):
        raise McpUnavailable(f"{label} cannot be a header: it is not printable ASCII text")
    return text
