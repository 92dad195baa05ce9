"""The requests below `/agui`, and their body, `RunAgentInput` of AG-UI (docs/agui.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson
from starlette.responses import Response

from agentctl.errors import AgentctlError, ValidationFailed
from agentctl.interface.requests import EarlierMessage
from agentctl.interface.requests.approvals import MAXIMUM_DECISIONS
from agentctl.interop.agui.settings import PREFIX, ROUTES
from agentctl.interop.pages import request
from agentctl.interop.pages.exchange import PageExchange, PageFace, Portions
from agentctl.interop.pages.stream import (
    PageEvent,
    PagePart,
    PageStream,
    TextEvents,
    describe_failure,
)
from agentctl.records.approvals import MAXIMUM_NOTE_LENGTH, VERBS
from agentctl.records.events import Event, EventKind
from agentctl.server.given_files import GivenFile, read_data_url

_NOTE = {"type": "string", "maxLength": MAXIMUM_NOTE_LENGTH}


def build_interrupt(approval: request.AskedApproval) -> dict[str, Any]:
    """Return the interrupt of an approval."""
    reason, schema = _describe_answer(approval)
    members = ("kind", "policy", "run_id", "tool_name", "arguments", "arguments_hash")
    interrupt = {
        "id": approval["approval_id"],
        "reason": reason,
        "message": request.build_question(approval),
        "responseSchema": schema,
        "metadata": {"agentctl": {name: approval[name] for name in members}},
    }

    if approval["kind"] != "input":
        interrupt["toolCallId"] = request.build_call_id(
            approval["run_id"], approval["tool_call_id"]
        )

    if approval["expires_at"] is not None:
        interrupt["expiresAt"] = approval["expires_at"]

    return interrupt


def _describe_answer(approval: request.AskedApproval) -> tuple[str, dict[str, Any]]:
    """Return the reason of an interrupt, and the schema of the payload that answers it."""
    match approval["kind"]:
        case "input":
            return "input_required", approval["schema"] or {}
        case "outcome":
            outcomes = {"type": "string", "enum": [*VERBS["outcome"]]}
            properties: dict[str, Any] = {"outcome": outcomes, "result": {}, "note": _NOTE}
            required = ["outcome"]
            reason = "agentctl:outcome"
        case _:
            arguments = dict(approval["schema"] or {"type": "object"})
            properties = {"approved": {"type": "boolean"}, "editedArgs": arguments, "note": _NOTE}
            required = ["approved"]
            reason = "tool_call"

    properties["argumentsHash"] = {"type": "string"}
    return reason, {"type": "object", "properties": properties, "required": required}


_FILE_PARTS = ("image", "audio", "document", "binary")

PROTOCOL_VERSION = "1.0"
"""The version of AG-UI whose events these are."""

_USAGE = (
    ("inputTokens", "input_tokens"), ("outputTokens", "output_tokens"),
    ("totalTokens", "total_tokens"),
)  # fmt: skip


class AguiStream(PageStream):
    """Translates the events of one stream of AG-UI.

    Args:
        thread_id, run_id: as the page has named them.
        attributes: True if the page knows the events of subagents, which came with version 1.0;
            otherwise a member is a step, and its work is not shown.
    """

    text = TextEvents(
        {"TEXT_MESSAGE_START": {"role": "assistant"}}, "TEXT_MESSAGE_CONTENT", ("TEXT_MESSAGE_END",)
    )
    thinking = TextEvents(
        {"REASONING_START": {}, "REASONING_MESSAGE_START": {"role": "reasoning"}},
        "REASONING_MESSAGE_CONTENT",
        ("REASONING_MESSAGE_END", "REASONING_END"),
    )
    text_id = "messageId"
    has_state = True

    def __init__(
        self, thread_id: str, run_id: str, *, attributes: bool, after: Collection[str] = ()
    ) -> None:
        super().__init__(thread_id, after=after)
        self._name = {"threadId": thread_id, "runId": run_id}
        self._attributes = attributes
        self._state: dict[str, Any] | None = None

    def start(self, state: dict[str, Any] | None) -> Iterator[PageEvent]:
        self._state = state
        names = {"run_id": self.root_id, "session_id": self.thread_id, "version": self.version}
        yield {
            "type": "RUN_STARTED",
            **self._name,
            "protocolVersion": PROTOCOL_VERSION,
            "metadata": {"agentctl": names},
        }
        if state is not None:
            yield {"type": "STATE_SNAPSHOT", "snapshot": state}

    def finish(self, state: dict[str, Any] | None) -> Iterator[PageEvent]:
        """Yield the change of the state of the session, and the last event of the stream."""
        assert self._end is not None
        if state is not None and self._state is not None:
            delta = build_patch(self._state, state)
            if delta:
                yield {"type": "STATE_DELTA", "delta": delta}
        yield self._end

    def _shows(self, event: Event) -> bool:
        return self._attributes or event.run_id == self.root_id

    def _attribute(self, part: PagePart, event: PageEvent) -> PageEvent:
        if part.run_id == self.root_id or not self._attributes:
            return event
        return {**event, "subagentRunId": part.run_id}

    def _open_member(self, part: PagePart, event: Event) -> PageEvent:
        if not self._attributes:
            # Steps are known by name: two runs of one member are two steps.
            part.name = f"{part.name} ({part.run_id})"
            return self._build_step(part.name, starts=True)

        opening = {"type": "SUBAGENT_STARTED", "subagentRunId": part.run_id, "name": part.name}
        parent_id = event.data.get("parent_run_id")
        if parent_id != self.root_id and parent_id in self._parts:
            opening["parentSubagentRunId"] = parent_id
        return opening

    def _close_member(self, part: PagePart, event: Event) -> Iterator[PageEvent]:
        if not self._attributes:
            yield self._build_step(part.name, starts=False)
            return

        yield from self._close_part(part)
        subagent = {"subagentRunId": part.run_id}

        if event.kind is EventKind.PAUSED:
            interrupt_ids = [
                approval["approval_id"]
                for approval in self._asked.values()
                if approval["run_id"] == part.run_id and request.is_interrupt(approval)
            ]
            outcome = {"type": "suspended", "interruptIds": interrupt_ids}
            yield {"type": "SUBAGENT_FINISHED", **subagent, "outcome": outcome}
        elif event.end_status == "COMPLETED":
            yield {"type": "SUBAGENT_FINISHED", **subagent}
        else:
            message, code = describe_failure(event)
            yield {"type": "SUBAGENT_ERROR", **subagent, "message": message, "code": code}

    def _build_call(
        self, part: PagePart, call_id: str, name: str, arguments: object
    ) -> Iterator[PageEvent]:
        start: PageEvent = {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": name}
        if part.caller_id is not None:
            start["parentMessageId"] = part.caller_id
        yield start
        text = arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode()
        yield {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": text}
        yield {"type": "TOOL_CALL_END", "toolCallId": call_id}

    def _build_result(self, call_id: str, tool: Mapping[str, Any]) -> PageEvent:
        result: PageEvent = {
            "type": "TOOL_CALL_RESULT",
            "messageId": f"{call_id}:result",
            "toolCallId": call_id,
            "content": str(tool.get("result") or ""),
            "role": "tool",
        }

        if tool.get("tool_call_error"):
            result["metadata"] = {"agentctl": {"error": True}}

        return result

    def _build_note(self, name: str, value: PageEvent) -> PageEvent:
        return {"type": "CUSTOM", "name": f"agentctl.{name}", "value": value}

    def _build_step(self, name: str, *, starts: bool) -> PageEvent:
        return {"type": "STEP_STARTED" if starts else "STEP_FINISHED", "stepName": name}

    def _ask(self, part: PagePart, approval: request.AskedApproval) -> Iterator[PageEvent]:
        if approval["kind"] != "input":
            call_id = request.build_call_id(approval["run_id"], approval["tool_call_id"])
            yield from self._show_call(part, call_id, approval["tool_name"], approval["arguments"])

    def _continue(self, event: Event) -> Iterator[PageEvent]:
        for approval in event.data.get("approvals") or ():
            call_id = request.build_call_id(event.run_id, approval["tool_call_id"])
            self._shown.add(call_id)
            if not request.is_interrupt(approval):
                self._answered.add(call_id)
        yield from ()

    def _build_failure(self, message: str, code: str) -> PageEvent:
        return {"type": "RUN_ERROR", "message": message, "code": code}

    def _build_end(self, event: Event) -> PageEvent:
        end: PageEvent = {"type": "RUN_FINISHED", **self._name}
        if event.end_status == "COMPLETED":
            end["outcome"] = {"type": "success"}
            metrics = event.data.get("metrics") or {}
            usage = {name: metrics[key] for name, key in _USAGE if metrics.get(key) is not None}
            if usage:
                end["usage"] = [usage]
            return end

        # Pages before version 1.0 know no other outcome than an error.
        if event.end_status == "CANCELLED" and self._attributes:
            end["outcome"] = {"type": "cancelled"}
            end["metadata"] = {"agentctl": {"reason": event.data.get("reason")}}
            return end

        return self._build_failure(*describe_failure(event))

    def _build_pause(self) -> PageEvent:
        approvals = list(self._asked.values())
        interrupts = []
        for approval in filter(request.is_interrupt, approvals):
            interrupt = build_interrupt(approval)
            if approval["run_id"] != self.root_id and self._attributes:
                interrupt["subagentRunId"] = approval["run_id"]
            interrupts.append(interrupt)

        if interrupts:
            outcome: PageEvent = {"type": "interrupt", "interrupts": interrupts}
        else:
            ids = [
                request.build_call_id(approval["run_id"], approval["tool_call_id"])
                for approval in approvals
            ]
            outcome = {"type": "success", "pendingToolCallIds": ids}

        return {"type": "RUN_FINISHED", **self._name, "outcome": outcome}


def build_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[PageEvent]:
    """Return the change of the top-level keys of a state as JSON Patch (RFC 6902)."""
    patch: list[PageEvent] = [
        {"op": "remove", "path": _build_pointer(key)} for key in before if key not in after
    ]
    for key, value in after.items():
        if key not in before or before[key] != value:
            verb = "replace" if key in before else "add"
            patch.append({"op": verb, "path": _build_pointer(key), "value": value})
    return patch


def _build_pointer(key: str) -> str:
    return "/" + key.replace("~", "~0").replace("/", "~1")


MAXIMUM_CONTEXT = 64
"""Maximum number of entries of `context` in a request."""

MAXIMUM_SHOWN_STATE = 16_384
"""Bytes of JSON of the largest `state` that a model is shown."""

MAXIMUM_RUN_ID_LENGTH = 255
"""Characters of `runId`, which every stream repeats."""

_SKIPPED_ROLES = frozenset({"activity", "assistant", "developer", "reasoning", "system"})
"""The roles whose messages are not read: the session has the history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AguiRequest(request.PageRequest):
    """A request."""

    run_id: str
    """The name of the stream, which the page has chosen."""

    has_version: bool
    """True if the page declares a version of the protocol, as pages since 1.0 do."""

    def describe_state(self) -> list[EarlierMessage]:
        """Return the message that shows the state of the page to a model; empty without a state."""
        if self.state is None:
            return []

        json_text = orjson.dumps(self.state)
        if len(json_text) > MAXIMUM_SHOWN_STATE:
            text = "The state of the page of the user is too large to show."
        else:
            text = f"State of the page of the user:\n{json_text.decode()}"
        return [EarlierMessage("user", text)]


def read_input(body: object) -> AguiRequest:
    """Return a request from its parsed body; ValidationFailed for a field that is not valid."""
    body_object = request.check_value(body, dict, "The body")
    thread_id = request.read_thread_id(body_object, "threadId")
    run_id = request.check_value(body_object.get("runId"), str, "runId")
    if not 1 <= len(run_id) <= MAXIMUM_RUN_ID_LENGTH:
        raise ValidationFailed(f"runId must be 1 to {MAXIMUM_RUN_ID_LENGTH} characters")

    messages = request.read_list(body_object, "messages", request.MAXIMUM_MESSAGES)
    answers = request.read_list(body_object, "resume", MAXIMUM_DECISIONS)

    files: list[GivenFile] = []
    message, results = _read_newest(messages, files)

    agui_request = AguiRequest(
        thread_id=thread_id,
        run_id=run_id,
        has_version=body_object.get("protocolVersion") is not None,
        message=message,
        files=files,
        results=results,
        answers=[_read_answer(entry, f"resume[{index}]") for index, entry in enumerate(answers)],
        context=_read_context(request.read_list(body_object, "context", MAXIMUM_CONTEXT)),
        tools=request.read_tools(
            request.check_value(body_object.get("tools") or [], list, "tools")
        ),
        state=request.read_object(body_object, "state"),
        dependencies=request.read_object(body_object, "forwardedProps"),
    )

    if agui_request.message is None and not agui_request.continues:
        raise ValidationFailed(
            "messages must end with a message of the user, or with the results of tools"
        )
    return agui_request


def _read_newest(
    messages: Sequence[Any], files: list[GivenFile]
) -> tuple[str | None, list[request.ToolResult]]:
    """Return the text of the user if it is the newest message, and the results of tools after it.

    Earlier messages are not read.

    Args:
        files: receives the files of the message.
    """
    results: list[request.ToolResult] = []
    text = None
    is_newest = True

    # From the newest message back to the newest message of the user.
    for index in range(len(messages) - 1, -1, -1):
        at = f"messages[{index}]"
        message = request.check_value(messages[index], dict, at)
        role = message.get("role")
        if role == "user":
            if is_newest:
                content = _take_files(message.get("content"), f"{at}.content", files)
                text = request.read_text(content, f"{at}.content")
            break

        if role == "tool":
            results.append(_read_result(message, at))
        elif role not in _SKIPPED_ROLES:
            raise ValidationFailed(f"{at}.role must be a role of AG-UI")
        if role in ("tool", "assistant"):
            is_newest = False

    results.reverse()
    return text, results


def _take_files(content: object, at: str, files: list[GivenFile]) -> object:
    """Return the content of a message without the parts that are files; `files` receives these."""
    if not isinstance(content, list):
        return content

    other_parts = []
    for index, part in enumerate(content):
        if isinstance(part, dict) and part.get("type") in _FILE_PARTS:
            files.append(_read_file(part, f"{at}[{index}]"))
        else:
            other_parts.append(part)
    return other_parts


def _read_file(part: Mapping[str, Any], at: str) -> GivenFile:
    """Return the file of a part: its id, its bytes, or a URL with the bytes."""
    # The parts before version 1.0 are `binary`, with the members of a source.
    source = request.check_value(part.get("source", part), dict, f"{at}.source")
    members = {
        name: request.check_value(source.get(name) or "", str, f"{at}.{name}")
        for name in ("value", "data", "url", "id", "mimeType", "filename")
    }
    file_id = members["id"]
    url = members["url"]
    data = members["value"] or members["data"]

    # In version 1.0 the type of the source names the meaning of its value.
    if source.get("type") == "file":
        file_id = members["value"]
    elif source.get("type") == "url":
        url = members["value"]

    if file_id:
        return GivenFile(at, file_id)
    if url:
        return read_data_url(at, url, members["filename"])
    return GivenFile(at, data=data, name=members["filename"], media_type=members["mimeType"])


def _read_result(message: dict[str, Any], at: str) -> request.ToolResult:
    error = message.get("error")
    return request.ToolResult(
        request.check_value(message.get("toolCallId"), str, f"{at}.toolCallId"),
        request.read_text(message.get("content"), f"{at}.content"),
        None if error is None else request.check_value(error, str, f"{at}.error"),
    )


def _read_answer(entry: object, at: str) -> request.PageAnswer:
    answer = request.check_value(entry, dict, at)

    status: Literal["resolved", "cancelled"] | Any = answer.get("status")
    if status not in ("resolved", "cancelled"):
        raise ValidationFailed(f"{at}.status must be resolved or cancelled")

    metadata = request.check_value(answer.get("metadata") or {}, dict, f"{at}.metadata")
    return request.PageAnswer(
        at,
        request.check_value(answer.get("interruptId"), str, f"{at}.interruptId"),
        answer.get("payload"),
        is_cancelled=status == "cancelled",
        arguments_hash=metadata.get("argumentsHash"),
    )


def _read_context(entries: Sequence[Any]) -> list[EarlierMessage]:
    """Return the message that shows the context of the page to a model; empty without entries."""
    if not entries:
        return []

    lines = ["Context of the page of the user:"]
    for index, entry in enumerate(entries):
        at = f"context[{index}]"
        members = request.check_value(entry, dict, at)
        description = request.check_value(members.get("description"), str, f"{at}.description")
        text = request.check_value(members.get("value"), str, f"{at}.value")
        lines.append(f"{description}: {text}")
    return [EarlierMessage("user", "\n".join(lines))]


EVENTS = "text/event-stream"
"""The media type of event streams."""


class AguiExchange(PageExchange[AguiRequest]):
    """One request of AG-UI."""

    _is_read = False

    def read_request(self, body: object) -> AguiRequest:
        agui_request = read_input(body)
        self._is_read = True
        return agui_request

    async def respond(self) -> Response:
        """Respond as `PageExchange`; with `RUN_ERROR` for a refused run if only events are taken.

        Clients of AG-UI accept nothing else, and show the error of an event to their user.
        """
        try:
            return await super().respond()
        except AgentctlError as error:
            if not self._is_read or self.call.headers.getlist("Accept") != [EVENTS]:
                raise
            refusal = {"type": "RUN_ERROR", "message": error.detail, "code": error.error_code}
            headers = {**error.headers(), "Cache-Control": "no-store"}
            return Response(self._encode([refusal]), 200, headers, EVENTS)

    async def start(self, page_request: AguiRequest, key: str | None) -> Portions:
        """Start a run; a model without code is shown the state of the page, code reads it."""
        settings = self.call.caller.app_state.settings
        models = [("agent", agent.id) for agent in settings.agents if not agent.object]
        models += [("team", team.id) for team in settings.teams]
        if (self.kind, self.component_id) in models:
            page_request = replace(
                page_request, context=[*page_request.context, *page_request.describe_state()]
            )
        return await super().start(page_request, key)

    def build_stream(
        self, page_request: AguiRequest, resumed: request.ResumedRun | None, after: set[str]
    ) -> AguiStream:
        return AguiStream(
            page_request.thread_id,
            page_request.run_id,
            attributes=page_request.has_version,
            after=after,
        )


def build_face() -> PageFace:
    return PageFace(PREFIX, ROUTES, AguiExchange)
