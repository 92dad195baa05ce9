"""The interface between the servers for versions of the protocol and the calls of tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from typing import Any

from agentctl.interop.mcp.progress import Report
from agentctl.interop.mcp.questions import Question
from agentctl.light_dataclass import dataclass
from agentctl.server.state import Call

Result = dict[str, Any]
"""The result of a call as JSON of the protocol."""


@dataclass(frozen=True, slots=True)
class Client:
    """The parts of a call other than its arguments, and the ways to reach its client.

    Attributes:
        disconnected: set when the client of the HTTP request has disconnected.
        detaches: True if the run goes on then.
        run_id: the id that its run gets; None for any.
        report: sends a notification of progress; None if the client wants none.
        ask: sends a question, whose answer is another request; None if the client takes none while
            it waits.
        waits: counts the call among the streams that the caller follows, while it waits for an
            answer.
        takes_questions: True if the client takes questions as the result of the call.
        state: the `requestState` of a repeated call, a run that waits; None for a new call.
        answers: the answers to the questions of that run.
    """

    disconnected: asyncio.Event
    detaches: bool
    run_id: str | None = None
    report: Report | None = None
    ask: Callable[[Question], Awaitable[None]] | None = None
    waits: Callable[[], AbstractContextManager[None]] = nullcontext
    takes_questions: bool = False
    state: str | None = None
    answers: Mapping[str, Any] = field(default_factory=dict)


ListTools = Callable[[Call], Awaitable[list[dict[str, Any]]]]
"""Returns the tools of the caller of a request, as JSON of the protocol."""

CallTool = Callable[[Call, str, dict[str, Any] | None, Client], Awaitable[dict[str, Any]]]
"""Calls a tool by its name, with its arguments; returns the result as JSON of the protocol."""


class NoSuchTool(Exception):
    """The caller of a tool may not use it, or it does not exist."""

    TEXT = "There is no such tool"


def build_result(
    text: str, ids: dict[str, object] | None = None, *, failed: bool = False
) -> Result:
    """Return the result of a call as JSON of the protocol; models read its text."""
    result: Result = {"content": [{"type": "text", "text": text}], "isError": failed}
    if ids is not None:
        result["structuredContent"] = {"content": text, **ids}
    return result
