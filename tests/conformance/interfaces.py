"""The interfaces of a server: ways to run agents, to decide about their calls and to cancel runs.

Each method returns the record of the run, which the remote client reads afterwards if the interface
does not return it. So one test serves for all interfaces. `tests.conformance.cells` lists what an
interface cannot express; such a method raises `NotImplementedError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import httpx2

from agentctl.errors import NeedsConfirmation
from agentctl.interface.operations import Operations
from agentctl.interface.requests import (
    CancelRequest,
    ForkRequest,
    MessageRequest,
    ResumeRequest,
    RetryRequest,
    RunFilter,
    RunRequest,
)
from agentctl.interface.requests.approvals import ApprovalFilter, ContinueRequest, Ruling
from agentctl.records.approvals import Verb
from agentctl.records.kinds import ComponentKind, find_component
from agentctl.work import event_loop
from tests.agui.protocol import check_stream
from tests.ai_sdk.protocol import Message, apply, calls_of
from tests.conformance.server import SCOPES, ConformanceServer
from tests.kit.command import Result, run_command
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.mcp_wire import LEGACY

__all__ = ["Event", "Interface", "Record", "Start", "Verdict", "Work", "build_interface"]

CANCEL_SECONDS = 30
"""The longest time that a request to cancel may wait for the end."""

_numbers = itertools.count()

Record = dict[str, Any]


@dataclass(frozen=True)
class Start:
    """The request for a run."""

    component: str
    message: str
    kind: ComponentKind = "agent"
    session_id: str | None = None
    metadata: Record | None = None


@dataclass(frozen=True)
class Event:
    """An event of a stream, in the words that all interfaces share."""

    name: str
    """`start`, `text`, `call`, `result`, `end`, or the name that the interface gives it."""

    run_id: str

    text: str = ""


@dataclass(frozen=True)
class Verdict:
    """A decision about an approval."""

    asked: Record
    """The approval."""

    decision: Verb

    fields: Record = field(default_factory=dict)
    """`note` of a rejection, `arguments` of an approved call."""


@dataclass
class Work:
    """A run in progress."""

    run_id: str
    events: list[Event]

    @property
    def text(self) -> str:
        """The text of the run itself so far, without that of its members."""
        return _join(self.events)


class Interface:
    """The use of an interface by a user; as a context, with its connections.

    Attributes:
        operations: the remote client of the user, which reads what the interface has done.
        http: a client with the token of the user.
    """

    operations: Operations
    http: httpx2.AsyncClient

    def __init__(self, server: ConformanceServer, user: str, folder: Path) -> None:
        """Prepare the interface; `folder` is empty."""
        self.server = server
        self.user = user
        self.folder = folder
        self._connections = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        headers = self.server.deployment.bearer(self.user, *SCOPES)
        client = httpx2.AsyncClient(base_url=self.server.url, headers=headers, timeout=PATIENCE)
        self.http = await self._connections.enter_async_context(client)
        connection = self.server.connect(self.user)
        self.operations = await self._connections.enter_async_context(connection)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connections.aclose()

    async def run(self, start: Start) -> Record:
        """Run a component until it ends or waits; what the stream shows is the answer."""
        events = [event async for event in self.read_events(start)]
        run = await self.read_run(events[0].run_id)
        # The text of a workflow is that of its steps.
        if run["status"] == "COMPLETED" and start.kind != "workflow":
            assert _join(events) == (run["content"] or "")
        return run

    def read_events(self, start: Start) -> AsyncIterator[Event]:
        """Run a component, and yield its events."""
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def begin(self, start: Start) -> AsyncIterator[Work]:
        """Start a run, which must end before the block does."""
        events: list[Event] = []

        async def collect() -> None:
            async for event in self.read_events(start):
                events.append(event)

        collecting = asyncio.create_task(collect())
        try:
            await wait_until(lambda: events or collecting.done())
            yield Work(events[0].run_id, events)
            await asyncio.wait_for(collecting, PATIENCE)
        finally:
            collecting.cancel()
            await asyncio.gather(collecting, return_exceptions=True)

    async def decide(self, run: Record, decision: Verb, **fields: Any) -> Record:
        """Decide about the only call that a run waits for; the fields as in `Verdict`."""
        asked = await self.find_asked(run)
        return await self.decide_each(run, Verdict(asked, decision, fields))

    async def decide_each(self, run: Record, *verdicts: Verdict) -> Record:
        """Decide about all calls that a run waits for, and wait until it has used them."""
        raise NotImplementedError

    async def cancel(self, run_id: str) -> Record:
        """Cancel a run, and wait for its final status."""
        raise NotImplementedError

    async def send(self, run: Record, text: str) -> Record:
        """Send a message to a run, and return the message."""
        raise NotImplementedError

    async def retry(self, run: Record, *, confirmed: bool) -> Record:
        """Retry a run.

        Args:
            confirmed: the retry is refused first, and then confirmed.
        """
        raise NotImplementedError

    async def fork(self, run: Record, message: str) -> Record:
        """Fork a run behind its last message."""
        raise NotImplementedError

    async def read_run(self, run_id: str) -> Record:
        return dict((await self.operations.runs.get(run_id)).value)

    async def list_approvals(self, run: Record, status: Any = None) -> list[Record]:
        chosen = ApprovalFilter(run_id=run["run_id"], status=status)
        return list((await self.operations.approvals.list(chosen)).value["data"])

    async def find_asked(self, run: Record) -> Record:
        """Return the only approval that a run waits for."""
        (asked,) = await self.list_approvals(run, "pending")
        return asked

    async def follow(self, run_id: str) -> AsyncIterator[Event]:
        """Yield the events of a run that another request has started."""
        run = await self.read_run(run_id)
        kind, component = _find_place(run)
        request = ResumeRequest(session_id=run["session_id"])
        async for event in self.operations.runs.resume(kind, component, run_id, request):
            yield _translate(json.loads(event.data))

    async def wait_for_next(self, run_id: str) -> Record:
        """Wait until a decided run has ended, or waits for something else."""

        async def has_ended() -> Record | None:
            run = await self.read_run(run_id)
            if run["status"] in ("PENDING", "RUNNING"):
                return None
            if run["status"] == "PAUSED" and not await self.list_approvals(run, "pending"):
                return None
            return run

        return dict(await wait_until(has_ended))


class JsonInterface(Interface):
    """The REST interface, without streams."""

    is_streaming = False

    async def run(self, start: Start) -> Record:
        return await self._send(f"/{start.kind}s/{start.component}/runs", _build_body(start))

    async def read_events(self, start: Start) -> AsyncIterator[Event]:
        body = {**_build_body(start), "stream": False, "background": True}
        response = await self.http.post(f"/{start.kind}s/{start.component}/runs", json=body)
        assert response.status_code == 202, response.text
        async for event in self.follow(response.json()["run_id"]):
            yield event

    async def decide_each(self, run: Record, *verdicts: Verdict) -> Record:
        rulings = []
        for verdict in verdicts:
            ruling = {"approval_id": verdict.asked["approval_id"], "decision": verdict.decision}
            if verdict.decision == "approve":
                ruling["arguments_hash"] = verdict.asked["arguments_hash"]
            rulings.append({**ruling, **verdict.fields})
        return await self._send(f"{_format_path(run)}/continue", {"decisions": rulings})

    async def cancel(self, run_id: str) -> Record:
        run = await self.read_run(run_id)
        options = {"session_id": run["session_id"], "wait": CANCEL_SECONDS}
        response = await self.http.post(f"{_format_path(run)}/cancel", params=options)
        assert response.json()["cancel"] == "stopped", response.text
        return await self.read_run(run_id)

    async def send(self, run: Record, text: str) -> Record:
        response = await self.http.post(f"/runs/{run['run_id']}/messages", json={"message": text})
        assert response.is_success, response.text
        return dict(response.json())

    async def retry(self, run: Record, *, confirmed: bool) -> Record:
        body: Record = {}
        path = f"{_format_path(run)}/retry"
        if confirmed:
            refused = await self.http.post(path, json={"stream": self.is_streaming})
            assert refused.status_code == 409, refused.text
            _check_plan(refused.json()["plan"])
            body = {"confirm": refused.json()["plan"]["confirm"]}
        return await self._send(path, body)

    async def fork(self, run: Record, message: str) -> Record:
        body = {"at": len(run["messages"]), "message": message}
        return await self._send(f"{_format_path(run)}/fork", body)

    async def _send(self, path: str, body: Record) -> Record:
        """Send a request that is answered with the record of a run."""
        response = await self.http.post(path, json={**body, "stream": False})
        assert response.status_code == 200, response.text
        return dict(response.json())


class StreamInterface(JsonInterface):
    """The REST interface, with streams of server-sent events."""

    is_streaming = True

    async def run(self, start: Start) -> Record:
        return await Interface.run(self, start)

    async def read_events(self, start: Start) -> AsyncIterator[Event]:
        path = f"/{start.kind}s/{start.component}/runs"
        async for event in _stream(self.http, path, _build_body(start)):
            yield _translate(event)

    async def _send(self, path: str, body: Record) -> Record:
        events = [_translate(event) async for event in _stream(self.http, path, body)]
        return await self.read_run(events[0].run_id)


class ClientInterface(Interface):
    """The remote client, as commands and libraries use it."""

    async def run(self, start: Start) -> Record:
        request = _build_request(start)
        return dict((await self.operations.runs.create(start.kind, start.component, request)).value)

    async def read_events(self, start: Start) -> AsyncIterator[Event]:
        request = _build_request(start)
        async for event in self.operations.runs.stream(start.kind, start.component, request):
            yield _translate(json.loads(event.data))

    async def decide_each(self, run: Record, *verdicts: Verdict) -> Record:
        rulings = []
        for verdict in verdicts:
            asked = verdict.asked
            shown = asked["arguments_hash"] if verdict.decision == "approve" else None
            ruling = Ruling(
                verdict.decision, shown, approval_id=asked["approval_id"], **verdict.fields
            )
            rulings.append(ruling)
        request = ContinueRequest(tuple(rulings))
        place = (*_find_place(run), run["run_id"])
        return dict((await self.operations.runs.continue_run(*place, request)).value)

    async def cancel(self, run_id: str) -> Record:
        run = await self.read_run(run_id)
        request = CancelRequest(run["session_id"], wait=CANCEL_SECONDS)
        result = (await self.operations.runs.cancel(*_find_place(run), run_id, request)).value
        assert result["cancel"] == "stopped", result
        return await self.read_run(run_id)

    async def send(self, run: Record, text: str) -> Record:
        request = MessageRequest(text)
        return dict((await self.operations.runs.send_message(run["run_id"], request)).value)

    async def retry(self, run: Record, *, confirmed: bool) -> Record:
        request = RetryRequest()
        kind, component = _find_place(run)
        try:
            retried = await self.operations.runs.retry(kind, component, run["run_id"], request)
            assert not confirmed
        except NeedsConfirmation as refused:
            assert confirmed
            _check_plan(refused.plan)
            request = RetryRequest(confirm=str(refused.plan["confirm"]))
            retried = await self.operations.runs.retry(kind, component, run["run_id"], request)
        return dict(retried.value)

    async def fork(self, run: Record, message: str) -> Record:
        request = ForkRequest(at=len(run["messages"]), message=message)
        place = (*_find_place(run), run["run_id"])
        return dict((await self.operations.runs.fork(*place, request)).value)


class CommandInterface(Interface):
    """The command, with JSON as its output. It decides as another person, who may approve."""

    async def run(self, start: Start) -> Record:
        return await self._print_json(*_build_words(start), "--no-stream")

    async def read_events(self, start: Start) -> AsyncIterator[Event]:
        run = await self._print_json(*_build_words(start), "--background")
        async for event in self.follow(run["run_id"]):
            yield event

    async def decide_each(self, run: Record, *verdicts: Verdict) -> Record:
        for verdict in verdicts:
            words = ["approvals", verdict.decision, verdict.asked["approval_id"]]
            if verdict.decision == "approve":
                words += ["--hash", verdict.asked["arguments_hash"]]
            for name, value in verdict.fields.items():
                words += [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
            await self._print_json(*words, user="boss")
        return await self.wait_for_next(run["run_id"])

    async def cancel(self, run_id: str) -> Record:
        words = ("runs", "cancel", run_id, "--wait", str(CANCEL_SECONDS))
        result = await self._execute(*words, "-o", "json")
        # 8: the run has ended, and its work continues.
        assert result.code in (0, 8), result.stderr
        return await self.read_run(run_id)

    async def send(self, run: Record, text: str) -> Record:
        return await self._print_json("runs", "send", run["run_id"], text)

    async def retry(self, run: Record, *, confirmed: bool) -> Record:
        if not confirmed:
            return await self._print_json("runs", "retry", run["run_id"])
        refused = await self._execute("runs", "retry", run["run_id"])
        assert refused.code == 2, refused.stderr
        assert "confirmation required" in refused.stderr
        return await self._print_json("runs", "retry", run["run_id"], "--yes")

    async def fork(self, run: Record, message: str) -> Record:
        words = ("--at", str(len(run["messages"])), "--message", message)
        return await self._print_json("runs", "fork", run["run_id"], *words)

    async def _print_json(self, *words: str, user: str | None = None) -> Record:
        """Execute a command that prints a record, whatever has become of its run."""
        result = await self._execute(*words, "-o", "json", user=user)
        assert result.code in (0, 1, 9), result.stderr
        return dict(json.loads(result.stdout))

    async def _execute(self, *words: str, user: str | None = None) -> Result:
        token = self.server.deployment.token(user or self.user, *SCOPES, "approvals:write")
        file = self.folder / f"token-{user}"
        file.write_text(token)
        file.chmod(0o600)
        place = ("--url", self.server.url, "--token-file", str(file))
        environment = {"HOME": str(self.folder)}
        return await asyncio.to_thread(
            _run_in_thread, *words, *place, environment=environment, folder=self.folder
        )


def _run_in_thread(*words: str, **options: Any) -> Result:
    """Run a command next to the event loop of a test: a thread receives no signals."""
    with patch.object(event_loop, "handle_signals", lambda _: contextlib.nullcontext()):
        return run_command(*words, **options)


class OpenAIInterface(Interface):
    """The responses of OpenAI's API."""

    async def read_events(self, start: Start) -> AsyncIterator[Event]:
        body: Record = {"model": start.component, "input": start.message}
        if start.session_id is not None:
            body["conversation"] = start.session_id
        if start.metadata is not None:
            body["metadata"] = start.metadata
        async for event in self._respond(body):
            yield event

    async def decide_each(self, run: Record, *verdicts: Verdict) -> Record:
        response_id = f"resp_{run['run_id']}"
        stored = (await self.http.get(f"/v1/responses/{response_id}")).json()
        answers = []
        for verdict in verdicts:
            # The id of an item ends with that of the approval.
            end = verdict.asked["approval_id"].replace("-", "")
            (item,) = (item for item in stored["output"] if item["id"].endswith(end))
            assert item["type"] == "mcp_approval_request"
            answer = {
                "type": "mcp_approval_response",
                "approval_request_id": item["id"],
                "approve": verdict.decision == "approve",
                "reason": verdict.fields.get("note"),
            }
            answers.append(answer)
        body = {"model": stored["model"], "input": answers, "previous_response_id": stored["id"]}
        async for _ in self._respond(body):
            pass
        return await self.read_run(run["run_id"])

    async def cancel(self, run_id: str) -> Record:
        response = await self.http.post(f"/v1/responses/resp_{run_id}/cancel")
        assert response.status_code == 200, response.text
        return await self.wait_for_next(run_id)

    async def _respond(self, body: Record) -> AsyncIterator[Event]:
        names = {
            "response.created": "start",
            "response.output_text.delta": "text",
            "response.completed": "end",
        }
        run_id = ""
        async for event in _stream(self.http, "/v1/responses", {**body, "stream": True}):
            if "response" in event:
                run_id = event["response"]["id"].removeprefix("resp_").partition("_")[0]
            name = names.get(event["type"], event["type"])
            yield Event(name, run_id, event.get("delta", "") if name == "text" else "")


class AguiInterface(Interface):
    """A page that speaks AG-UI."""

    async def read_events(self, start: Start) -> AsyncIterator[Event]:
        thread = start.session_id or f"thread-{self.user}-{next(_numbers)}"
        message = {"id": "m1", "role": "user", "content": start.message}
        path = f"/agui/{start.kind}s/{start.component}"
        async for event in self._talk(path, thread, messages=[message]):
            yield event

    async def decide_each(self, run: Record, *verdicts: Verdict) -> Record:
        answers = []
        for verdict in verdicts:
            payload: Record = {"approved": verdict.decision == "approve"}
            if "note" in verdict.fields:
                payload["note"] = verdict.fields["note"]
            if "arguments" in verdict.fields:
                payload["editedArgs"] = verdict.fields["arguments"]
            interrupt_id = verdict.asked["approval_id"]
            answer = {"interruptId": interrupt_id, "status": "resolved", "payload": payload}
            answers.append(answer)
        kind, component = _find_place(run)
        path = f"/agui/{kind}s/{component}"
        async for _ in self._talk(path, run["session_id"], messages=[], resume=answers):
            pass
        return await self.read_run(run["run_id"])

    async def _talk(self, path: str, thread: str, **fields: Any) -> AsyncIterator[Event]:
        names = {
            "RUN_STARTED": "start",
            "TEXT_MESSAGE_CONTENT": "text",
            "TOOL_CALL_START": "call",
            "TOOL_CALL_RESULT": "result",
            "RUN_FINISHED": "end",
        }
        body = {
            "threadId": thread,
            "runId": f"page-{next(_numbers)}",
            "protocolVersion": "1.0",
            "state": {},
            "tools": [],
            "context": [],
            "forwardedProps": {},
            **fields,
        }

        run_id = ""
        page_events: list[Record] = []
        async for event in _stream(self.http, path, body):
            page_events.append(event)
            if event["type"] == "RUN_STARTED":
                run_id = event["metadata"]["agentctl"]["run_id"]
            owner = event.get("subagentRunId", run_id)
            name = names.get(event["type"], event["type"])
            yield Event(name, owner, event["delta"] if name == "text" else "")
        check_stream(page_events)


class AiSdkInterface(Interface):
    """A page that uses the AI SDK. It continues with a paused run as after a reload."""

    async def read_events(self, start: Start) -> AsyncIterator[Event]:
        chat = start.session_id or f"chat-{self.user}-{next(_numbers)}"
        message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": start.message}]}
        path = f"/ai/{start.kind}s/{start.component}"
        names = {
            "start": "start",
            "text-delta": "text",
            "tool-input-available": "call",
            "tool-output-available": "result",
            "finish": "end",
        }

        run_id = ""
        chunks: list[Record] = []
        async for chunk in _stream(self.http, path, {"id": chat, "messages": [message]}):
            chunks.append(chunk)
            if chunk["type"] == "start":
                run_id = chunk["messageMetadata"]["agentctl"]["run_id"]
            name = names.get(chunk["type"], chunk["type"])
            yield Event(name, run_id, chunk["delta"] if name == "text" else "")
        apply(chunks)

    async def decide_each(self, run: Record, *verdicts: Verdict) -> Record:
        path = self._format_page(run)
        chat = run["session_id"]
        resumed = _stream(self.http, f"{path}/{chat}/stream", method="GET")
        message = apply([chunk async for chunk in resumed])
        for verdict in verdicts:
            _answer_approval(message, verdict)

        body = {"id": chat, "messages": [message]}
        apply([chunk async for chunk in _stream(self.http, path, body)], message)
        return await self.read_run(run["run_id"])

    async def cancel(self, run_id: str) -> Record:
        run = await self.read_run(run_id)
        response = await self.http.post(f"{self._format_page(run)}/{run['session_id']}/stop")
        assert response.status_code == 200, response.text
        return await self.wait_for_next(run_id)

    @staticmethod
    def _format_page(run: Record) -> str:
        kind, component = _find_place(run)
        return f"/ai/{kind}s/{component}"


def _answer_approval(message: Message, verdict: Verdict) -> None:
    """Answer an approval of a message as `addToolApprovalResponse` of the AI SDK does."""
    approval_id = verdict.asked["approval_id"]
    (call,) = (call for call in calls_of(message) if call["approval"]["id"] == approval_id)
    assert call["state"] == "approval-requested"
    call["state"] = "approval-responded"
    call["approval"]["approved"] = verdict.decision == "approve"
    if "note" in verdict.fields:
        call["approval"]["reason"] = verdict.fields["note"]


@dataclass
class ToolCall:
    """A call of a tool of MCP, which lasts until the end of its run."""

    number: int
    """The id of its request."""

    session_id: str

    questions: list[Record] = field(default_factory=list)
    """The requests `elicitation/create`, in their order."""

    progress: list[Record] = field(default_factory=list)
    """The parameters of the notifications."""

    result: Record | None = None

    work: asyncio.Task[None] | None = None
    """Reads the messages of the call."""


class McpInterface(Interface):
    """A client of MCP with a session. A call stays open while its run waits for the user."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._headers = dict(LEGACY)
        self._calls: dict[str, ToolCall] = {}

        hello = {
            "protocolVersion": LEGACY["MCP-Protocol-Version"],
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "conformance", "version": "1"},
        }
        opened = await self._post({"id": 0, "method": "initialize", "params": hello})
        self._headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        listed = await self._post({"id": next(_numbers), "method": "tools/list"})
        self._tools = {tool["name"] for tool in listed.json()["result"]["tools"]}
        return self

    async def __aexit__(self, *_: object) -> None:
        # The client of HTTP must not close while a call reads from it.
        for call in self._calls.values():
            assert call.work is not None
            call.work.cancel()
            await asyncio.gather(call.work, return_exceptions=True)
        await super().__aexit__()

    async def run(self, start: Start) -> Record:
        call = self._call(start)
        await wait_until(lambda: call.questions or call.result)
        run = dict(await wait_until(lambda: self._find_run(call)))
        self._calls[run["run_id"]] = call
        if not call.questions:
            self._check_result(call, run)
        return run

    async def read_events(self, start: Start) -> AsyncIterator[Event]:
        call = self._call(start)
        run = dict(await wait_until(lambda: self._find_run(call)))
        self._calls[run["run_id"]] = call
        async for event in self.follow(run["run_id"]):
            yield event
        await wait_until(lambda: call.result)
        self._check_result(call, await self.read_run(run["run_id"]))

    async def decide_each(self, run: Record, *verdicts: Verdict) -> Record:
        call = self._calls[run["run_id"]]
        for verdict in verdicts:
            question = await wait_until(partial(_find_question, call, verdict.asked))
            content = {"decision": verdict.decision, **verdict.fields}
            answer = {"id": question["id"], "result": {"action": "accept", "content": content}}
            assert (await self._post(answer)).status_code == 202

        await wait_until(lambda: call.result)
        decided = await self.read_run(run["run_id"])
        self._check_result(call, decided)
        return decided

    async def cancel(self, run_id: str) -> Record:
        number = self._calls[run_id].number
        notification = {"method": "notifications/cancelled", "params": {"requestId": number}}
        assert (await self._post(notification)).status_code == 202
        return await self.wait_for_next(run_id)

    def _call(self, start: Start) -> ToolCall:
        number = next(_numbers)
        call = ToolCall(number, start.session_id or f"mcp-{self.user}-{number}")
        name = f"{start.kind}_{start.component}"
        assert name in self._tools

        arguments = {"message": start.message, "session_id": call.session_id}
        params = {"name": name, "arguments": arguments, "_meta": {"progressToken": number}}
        body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        call.work = asyncio.create_task(self._read(call, body))
        return call

    async def _read(self, call: ToolCall, body: Record) -> None:
        async for message in _stream(self.http, "/mcp", body, headers=self._headers):
            match message.get("method"):
                case "notifications/progress":
                    call.progress.append(message["params"])
                case "elicitation/create":
                    call.questions.append(message)
                case _:
                    assert message["id"] == call.number
                    call.result = message["result"]

    async def _find_run(self, call: ToolCall) -> Record | None:
        """Return the run of the newest call of a session; None before its start."""
        chosen = RunFilter(session_id=call.session_id)
        rows = (await self.operations.runs.list(chosen)).value["data"]
        for row in rows:
            if row["parent_run_id"] is None and row["run_id"] not in self._calls:
                return await self.read_run(row["run_id"])
        return None

    @staticmethod
    def _check_result(call: ToolCall, run: Record) -> None:
        """Check that the result of a call is that of its run, and its progress in order."""
        assert call.result is not None
        assert call.result["structuredContent"]["run_id"] == run["run_id"]
        assert call.result["isError"] is (run["status"] != "COMPLETED")
        if run["status"] == "COMPLETED":
            assert call.result["content"][0]["text"] == run["content"]
        numbers = [params["progress"] for params in call.progress]
        assert numbers == [*range(1, len(numbers) + 1)]
        assert {params["progressToken"] for params in call.progress} == {call.number}

    async def _post(self, message: Record) -> httpx2.Response:
        body = {"jsonrpc": "2.0", **message}
        return await self.http.post("/mcp", json=body, headers=self._headers)


def _find_question(call: ToolCall, asked: Record) -> Record | None:
    """Return the question of a call about an approval, which its id names."""
    names = [question for question in call.questions if asked["approval_id"] in question["id"]]
    return names[0] if names else None


_INTERFACES: dict[str, type[Interface]] = {
    "stream": StreamInterface,
    "json": JsonInterface,
    "client": ClientInterface,
    "command": CommandInterface,
    "openai": OpenAIInterface,
    "agui": AguiInterface,
    "ai_sdk": AiSdkInterface,
    "mcp": McpInterface,
}


def build_interface(name: str, server: ConformanceServer, user: str, folder: Path) -> Interface:
    """Return an interface of a server for a user; `folder` is empty."""
    return _INTERFACES[name](server, user, folder)


def _join(events: list[Event]) -> str:
    """Return the text of the run itself, without that of its members."""
    return "".join(each.text for each in events if each.run_id == events[0].run_id)


def _translate(event: Record) -> Event:
    """Return an event of a run in the words that all interfaces share."""
    names = {
        "RunStarted": "start",
        "RunContent": "text",
        "ToolCallStarted": "call",
        "ToolCallCompleted": "result",
        "RunCompleted": "end",
        "RunCancelled": "end",
    }
    name = event["event"].removeprefix("Team")
    name = names.get(name, name)
    return Event(name, event["run_id"], event["content"] if name == "text" else "")


def _build_request(start: Start) -> RunRequest:
    return RunRequest(start.message, session_id=start.session_id, metadata=start.metadata)


def _build_body(start: Start) -> Record:
    """Return the body of a request for a run."""
    body: Record = {"message": start.message}
    if start.session_id is not None:
        body["session_id"] = start.session_id
    if start.metadata is not None:
        body["metadata"] = start.metadata
    return body


def _build_words(start: Start) -> list[str]:
    """Return the words of a command for a run."""
    words = ["runs", "start", f"--{start.kind}", start.component, "--message", start.message]
    if start.session_id is not None:
        words += ["--session", start.session_id]
    if start.metadata is not None:
        words += ["--metadata", json.dumps(start.metadata)]
    return words


def _find_place(run: Record) -> tuple[ComponentKind, str]:
    """Return the kind and the id of the component of a run."""
    place = find_component(run)
    assert place is not None
    return place


def _format_path(run: Record) -> str:
    kind, component = _find_place(run)
    return f"/{kind}s/{component}/runs/{run['run_id']}"


def _check_plan(plan: Any) -> None:
    """Check what a retry of code says that it would do: all of it again."""
    assert (plan["at"], plan["runs_code"]) == (0, True)


async def _stream(
    http: httpx2.AsyncClient,
    path: str,
    body: Record | None = None,
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[Record]:
    """Send a request, and yield the data of the events of its answer."""
    async with http.stream(method, path, json=body, headers=headers) as response:
        if response.status_code != 200:
            await response.aread()
            raise AssertionError(f"{response.status_code} {response.text}")
        async for line in response.aiter_lines():
            data = line.removeprefix("data: ")
            if data != line and data.startswith("{"):
                yield json.loads(data)
