"""Calls of the tools: runs that a client can cancel, and reads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Any

import orjson

from agentctl.errors import AgentctlError
from agentctl.interop.mcp.tools import Arguments, RunTool
from agentctl.records.events import LAST_NAMES, EventKind, find_event_kind
from agentctl.requests import CancelRequest, RunRequest, StreamEvent
from agentctl.service.service import ServiceOperations

CANCEL_REASON = "The client of MCP cancelled the call"

_log = logging.getLogger("agentctl.server")

Result = dict[str, Any]
"""The result of a call as JSON of the protocol."""

_tasks = set[asyncio.Task[None]]()
"""Cancels under way: a task without a reference may be collected."""


async def run(
    tool: RunTool, operations: ServiceOperations, arguments: Arguments, disconnected: asyncio.Event
) -> Result:
    """Run a component and return its answer.

    If the call is cancelled, the run is cancelled. If the client disconnects, the run ends or
    continues as for every other client (`server.on_disconnect`).

    Args:
        operations: the operations of the caller.
        disconnected: set when the client of the HTTP request has disconnected.
    """
    request = RunRequest(arguments["message"], arguments.get("session_id"))
    events = operations.stream_run_portions(tool.kind, tool.component_id, request)
    reader = _RunReader(tool)
    # In a separate task: a cancelled scope of the SDK would interrupt the end of the stream, too.
    work = asyncio.ensure_future(reader.read(events))
    left = asyncio.ensure_future(disconnected.wait())
    try:
        await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        return build_result("The client disconnected", failed=True)
    finally:
        left.cancel()
        if disconnected.is_set():
            work.cancel()
        elif not work.done():
            task = asyncio.ensure_future(_cancel_run(tool, operations, reader, work))
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)


class _RunReader:
    """Reads the result of a run from its events.

    Attributes:
        started: set when the ids are known.
        run_id, session_id: ids of the run and of its session.
    """

    def __init__(self, tool: RunTool) -> None:
        self.started = asyncio.Event()
        self.run_id = ""
        self.session_id = ""
        self._ends = LAST_NAMES[tool.kind]
        self._approvals: list[dict[str, Any]] = []

    async def read(self, events: AsyncGenerator[list[StreamEvent]]) -> Result:
        """Return the result of the run at its end."""
        async with contextlib.aclosing(events):
            async for portion in events:
                if not self.run_id:
                    first = orjson.loads(portion[0].data)
                    self.run_id, self.session_id = first["run_id"], first["session_id"]
                    self.started.set()
                for event in portion:
                    is_pause = find_event_kind(event.name) is EventKind.PAUSED
                    if not is_pause and event.name not in self._ends:
                        continue
                    data = orjson.loads(event.data)
                    if is_pause:
                        self._approvals += data["approvals"]
                    if data["run_id"] == self.run_id:
                        return self._build_pause() if is_pause else self._build(data)
        return build_result("The stream ended before the run", failed=True)

    def _build_pause(self) -> Result:
        """Return the result of a run that waits: an error, because it has no answer yet."""
        named = [
            f"{each['tool_name']} (approval {each['approval_id']})" for each in self._approvals
        ]
        text = f"The run {self.run_id} is paused. It waits for a decision: {', '.join(named)}"
        ids: dict[str, object] = {
            "run_id": self.run_id,
            "session_id": self.session_id,
            "approvals": [each["approval_id"] for each in self._approvals],
        }
        return build_result(text, ids, failed=True)

    def _build(self, end: dict[str, object]) -> Result:
        ids: dict[str, object] = {"run_id": self.run_id, "session_id": self.session_id}
        if "metrics" in end:
            return build_result(str(end["content"]), ids)
        if isinstance(error := end.get("error"), dict):
            text = f"The run failed: {error['detail']} ({error['code']})"
        else:
            reason = end.get("reason")
            text = f"The run was cancelled: {reason}" if reason else "The run was cancelled"
        return build_result(text, ids, failed=True)


async def _cancel_run(
    tool: RunTool, operations: ServiceOperations, reader: _RunReader, work: asyncio.Future[Result]
) -> None:
    started = asyncio.ensure_future(reader.started.wait())
    waiting: set[asyncio.Future[Any]] = {started, work}
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if started.done() and not work.done():
            request = CancelRequest(reader.session_id, wait=0, reason=CANCEL_REASON)
            await operations.cancel_run(tool.kind, tool.component_id, reader.run_id, request)
        await work
    except AgentctlError as error:
        _log.info("a cancelled call could not cancel its run: %s", error.detail)
    finally:
        started.cancel()


def build_result(
    text: str, ids: dict[str, object] | None = None, *, failed: bool = False
) -> Result:
    """Return the result of a call as JSON of the protocol; models read its text."""
    result: Result = {"content": [{"type": "text", "text": text}], "isError": failed}
    if ids is not None:
        result["structuredContent"] = {"content": text, **ids}
    return result
