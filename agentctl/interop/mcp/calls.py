"""Calls of the tools: runs that a client can cancel, and reads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from contextlib import nullcontext
from typing import Any

import orjson

from agentctl.errors import AgentctlError, TooManyRequests, ValidationFailed
from agentctl.interface.requests import (
    CancelRequest,
    ResumeRequest,
    RunRequest,
    SessionLocator,
    StreamEvent,
)
from agentctl.interface.requests.approvals import ContinueRequest
from agentctl.interop.mcp.client import CallingClient, CallProgress, Result, build_result
from agentctl.interop.mcp.questions import PausedRun, Question, read_answer, reject
from agentctl.interop.mcp.tools import Arguments, RunTool
from agentctl.records.events import LAST_NAMES, STREAM_CUT, EventKind, find_event_kind
from agentctl.records.files import FileReference, is_saved
from agentctl.records.text import is_unique_id
from agentctl.runs.states import CLIENT_DISCONNECTED
from agentctl.runtime.files import LoadedFile, find_kind, get_reference
from agentctl.service.service import ServiceOperations

CANCEL_REASON = "The client of MCP cancelled the call"
SESSION_REASON = "The client of MCP ended its session"

INLINE_BYTES = 2_097_152
"""Maximum number of bytes of pictures and sounds in one result; further files are links."""

PAUSE_SECONDS = 0.5
"""Interval of the checks if a paused run continues while its questions are asked."""

_log = logging.getLogger("agentctl.server")

Events = AsyncGenerator[list[StreamEvent]]

_tasks = set[asyncio.Task[None]]()
"""Cancels under way: a task without a reference may be collected."""


async def run(
    tool: RunTool,
    operations: ServiceOperations,
    arguments: Arguments,
    client: CallingClient,
    base: str,
) -> Result:
    """Run a component and return its answer, or continue the run of a repeated call.

    If the client disconnects, the run ends or continues as for every other client
    (`server.on_disconnect`).

    Args:
        base: the URL of the server, for links to files.
    """
    call = _RunCall(tool, operations, arguments, client, base)

    # In a separate task: a cancelled scope of the SDK would interrupt the end of the stream, too.
    work = asyncio.ensure_future(call.execute())
    disconnect = asyncio.ensure_future(client.disconnected.wait())

    try:
        await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        return build_result("The client disconnected", failed=True)
    finally:
        disconnect.cancel()
        if not work.done():
            work.cancel()
            task = asyncio.ensure_future(call.leave(work))
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)


class _RunCall:
    """One call of a tool that runs a component, whose ids are empty before the first event."""

    def __init__(
        self,
        tool: RunTool,
        operations: ServiceOperations,
        arguments: Arguments,
        client: CallingClient,
        base: str,
    ) -> None:
        self.run_id = ""
        self.session_id = ""
        self._tool = tool
        self._operations = operations
        self._arguments = arguments
        self._client = client
        self._base = base
        self._database = operations.runs.find_database_id(tool.kind, tool.component_id)

        self._end_names = LAST_NAMES[tool.kind]
        # The place of the last event in the stream of the run.
        self._last_seq = -1
        # True if the run has legs before the one whose events this call follows.
        self._continues = False

        self._saved_files = list[dict[str, Any]]()
        # What the run waits for since its last pause, by approval id.
        self._approvals: dict[str, dict[str, Any]] = {}
        self._progress = CallProgress(client.report)

    async def execute(self) -> Result:
        """Return the result of the run at its end, or of its pause."""
        client = self._client
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._progress.reporting())

            if client.state is None:
                events = self._start()
            else:
                events = await self._continue(client.state)

            waits = client.waits
            while (result := await self._read(events)) is None:
                questions = self._paused.build_questions(self._approvals.values())
                if questions is None or not (client.ask or client.takes_questions):
                    return self._build_pause()

                # A client without a session sends the answers with a further call.
                if client.ask is None:
                    return self._build_input_request(questions)

                # The call takes one place among those that wait, for all of its questions.
                try:
                    stack.enter_context(waits())
                except TooManyRequests:
                    return self._build_pause()
                waits = nullcontext

                for question in questions:
                    await client.ask(question)
                events = self._follow_next_leg()

            return result

    @property
    def _paused(self) -> PausedRun:
        return PausedRun(self._tool.kind, self._tool.component_id, self.run_id)

    def _start(self) -> Events:
        request = RunRequest(
            self._arguments["message"],
            self._arguments.get("session_id"),
            files=tuple(self._arguments.get("files", ())),
        )
        return self._operations.runs.stream_portions(
            self._tool.kind, self._tool.component_id, request, run_id=self._client.run_id
        )

    async def _continue(self, state: str) -> Events:
        """Decide as the user has answered, and return the events of the run from then on.

        Args:
            state: the `requestState` of the call, which is the id of the run.

        Raises:
            ValidationFailed: it is no such id, or the run waits for other decisions.
        """
        if not is_unique_id(state):
            raise ValidationFailed("requestState is not that of a question")

        tool = self._tool
        self.run_id = state
        self._continues = True

        decisions = [read_answer(key, answer) for key, answer in self._client.answers.items()]
        # The ids of the questions come from the client: they may name another run.
        request = ContinueRequest(
            tuple(decision for paused, decision in decisions if paused == self._paused)
        )
        place = (tool.kind, tool.component_id, state)
        self.session_id = await self._operations.runs.find_session(*place)

        try:
            continued = await self._operations.runs.begin_continuation(*place, request)
        except ValidationFailed:
            rejections = [reject(key, "The answer is not valid")[1] for key in self._client.answers]
            request = ContinueRequest(tuple(rejections))
            continued = await self._operations.runs.begin_continuation(*place, request)

        if continued is None:
            raise ValidationFailed(f"The run {state} waits for other decisions")
        return self._operations.runs.follow_continuation(continued)

    async def _follow_next_leg(self) -> Events:
        """Yield the events after a pause, once a process continues the run."""
        self._continues = True
        self._progress.note("waits for an answer")

        tool = self._tool
        while True:
            request = ResumeRequest(self.session_id, self._last_seq)
            events = await self._operations.runs.open_stream(
                "resume", tool.kind, tool.component_id, self.run_id, request
            )

            has_events = False
            async with contextlib.aclosing(events):
                async for portion in events:
                    has_events = True
                    yield portion

            # The stream of a run that is still paused ends without events.
            if has_events:
                return

            await asyncio.sleep(PAUSE_SECONDS)

    async def _read(self, events: Events) -> Result | None:
        """Return the result of the run at its end, None if it pauses."""
        self._approvals = {}
        async with contextlib.aclosing(events):
            async for portion in events:
                if not self.run_id:
                    first_data = orjson.loads(portion[0].data)
                    self.run_id = first_data["run_id"]
                    self.session_id = first_data["session_id"]

                for event in portion:
                    self._last_seq = event.seq
                    self._progress.read(event, self.run_id)

                    kind = find_event_kind(event.name)
                    is_pause = kind is EventKind.PAUSED
                    is_file = kind is EventKind.FILE_SAVED
                    # Most events are deltas, whose JSON need not be parsed.
                    if not (is_pause or is_file or event.name in self._end_names):
                        continue

                    data = orjson.loads(event.data)
                    if is_pause:
                        # Members pause before their root run: all of their approvals count.
                        for approval in data["approvals"]:
                            self._approvals[approval["approval_id"]] = approval
                    if data["run_id"] != self.run_id:
                        continue

                    if is_pause:
                        return None
                    if not is_file:
                        return await self._build(data)
                    self._saved_files.append(data["file"])

        return build_result(STREAM_CUT, failed=True)

    def _build_input_request(self, questions: list[Question]) -> Result:
        """Return the result that asks the user; the client repeats the call with the answers."""
        return {
            "resultType": "input_required",
            "inputRequests": {
                question.id: {"method": "elicitation/create", "params": question.params}
                for question in questions
            },
            "requestState": self.run_id,
        }

    def _build_pause(self) -> Result:
        """Return the result of a run that waits: an error, because it has no answer yet."""
        calls = [
            f"{approval['tool_name']} (approval {approval_id})"
            for approval_id, approval in self._approvals.items()
        ]
        text = f"The run {self.run_id} is paused. It waits for a decision: {', '.join(calls)}"
        ids: dict[str, object] = {
            "run_id": self.run_id,
            "session_id": self.session_id,
            "approvals": list(self._approvals),
        }
        return build_result(text, ids, failed=True)

    async def _build(self, end: dict[str, Any]) -> Result:
        """Return the result of a run from its last event."""
        ids: dict[str, object] = {"run_id": self.run_id, "session_id": self.session_id}

        # Only a completed run has counters in its last event.
        if "metrics" in end:
            content = end["content"]
            text = content if isinstance(content, str) else orjson.dumps(content).decode()
            files = await self._read_files()
            if files:
                ids["files"] = [file["file_id"] for file in files]
            result = build_result(text, ids)
            result["content"] += await self._build_files(files)
            return result

        error = end.get("error")
        reason = end.get("reason")
        if isinstance(error, dict):
            text = f"The run failed: {error['detail']} ({error['code']})"
        elif reason:
            text = f"The run was cancelled: {reason}"
        else:
            text = "The run was cancelled"
        return build_result(text, ids, failed=True)

    async def _read_files(self) -> list[dict[str, Any]]:
        """Return the files that the run has saved.

        The files of the legs before this call are in the record of the run. A caller without the
        scope `sessions:read` gets only the files of the events that it has followed.
        """
        if not self._continues:
            return self._saved_files

        with contextlib.suppress(AgentctlError):
            where = SessionLocator(db_id=self._database)
            document = await self._operations.sessions.get_run(self.session_id, self.run_id, where)
            run: Any = document.value
            return list(filter(is_saved, run.get("files") or ()))
        return self._saved_files

    async def _build_files(self, files: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return files as content: small pictures and sounds themselves, links to other files."""
        content = list[dict[str, Any]]()
        free_bytes = INLINE_BYTES
        for file in files:
            kind = find_kind(file["media_type"])
            reference = get_reference(file)

            if kind in ("image", "audio") and reference.size <= free_bytes:
                with contextlib.suppress(AgentctlError):
                    pieces = self._operations.files.get_content(
                        reference.file_id, db_id=self._database
                    )
                    loaded = LoadedFile(reference, b"".join([piece async for piece in pieces]))

                    free_bytes -= reference.size
                    part = {"type": kind, "data": loaded.base64, "mimeType": reference.media_type}
                    content.append(part)
                    continue

            content.append(self._link(reference))

        return content

    def _link(self, file: FileReference) -> dict[str, Any]:
        uri = f"{self._base}/files/{file.file_id}/content"
        if self._database is not None:
            uri += f"?db_id={self._database}"

        if not self._client.takes_links:
            return {"type": "text", "text": f"[{file.name} ({file.media_type}): {uri}]"}
        return {
            "type": "resource_link",
            "uri": uri,
            "name": file.name,
            "mimeType": file.media_type,
            "size": file.size,
        }

    async def leave(self, work: asyncio.Future[Result]) -> None:
        """Wait for the end of the call of a client that left.

        The stream of a new run stops its run. A run that was continued is cancelled here.
        """
        with contextlib.suppress(AgentctlError, asyncio.CancelledError):
            await work
        if self._continues and not self._client.detaches:
            await cancel_runs(self._operations, self.run_id, CLIENT_DISCONNECTED)


async def cancel_runs(
    operations: ServiceOperations, prefix: str, reason: str, *, paused: bool = False
) -> int:
    """Cancel the runs whose ids begin with a text, in any process, and return their number.

    Args:
        paused: True to cancel paused runs as well.
    """
    cancelled_count = 0
    for row in await operations.runs.find_open_runs(prefix):
        # The cancel of a run ends its members.
        if row.parent_run_id is not None:
            continue
        if row.status == "PAUSED" and not paused:
            continue

        request = CancelRequest(row.session_id, wait=0, reason=reason)
        kind = row.component_type
        try:
            await operations.runs.cancel(kind, row.component_id, row.run_id, request)
        except AgentctlError as error:
            _log.info("a cancelled call could not cancel its run: %s", error.detail)
            continue
        cancelled_count += 1
    return cancelled_count
