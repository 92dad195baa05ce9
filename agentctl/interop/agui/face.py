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


def build_interrupt(approval: request.Asked) -> dict[str, Any]:
    """Return the interrupt of an approval."""
    reason, schema = _describe_answer(approval)
    interrupt = {
        "id": approval["approval_id"],
        "reason": reason,
        "message": request.build_question(approval),
        "responseSchema": schema,
        "metadata": {
            "agentctl": {
                name: approval[name]
                for name in ("kind", "policy", "run_id", "tool_name", "arguments", "arguments_hash")
            }
        },
    }

    if approval["kind"] != "input":
        interrupt["toolCallId"] = request.build_call_id(
            approval["run_id"], approval["tool_call_id"]
        )

    if approval["expires_at"] is not None:
        interrupt["expiresAt"] = approval["expires_at"]

    return interrupt


def _describe_answer(approval: request.Asked) -> tuple[str, dict[str, Any]]:
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
            edited = {**(approval["schema"] or {"type": "object"})}
            properties = {"approved": {"type": "boolean"}, "editedArgs": edited, "note": _NOTE}
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
            part.name = f"{part.name} ({part.run_id})"
            return self._build_step(part.name, starts=True)
        opening = {"type": "SUBAGENT_STARTED", "subagentRunId": part.run_id, "name": part.name}
        parent = event.data.get("parent_run_id")
        if parent != self.root_id and parent in self._parts:
            opening["parentSubagentRunId"] = parent
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

    def _ask(self, part: PagePart, approval: request.Asked) -> Iterator[PageEvent]:
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
        finished = {"type": "RUN_FINISHED", **self._name}
        if event.end_status == "COMPLETED":
            metrics = event.data.get("metrics") or {}
            usage = {name: metrics[key] for name, key in _USAGE if metrics.get(key) is not None}
            outcome = {"type": "success"}

            return {**finished, "outcome": outcome, **({"usage": [usage]} if usage else {})}
        if event.end_status == "CANCELLED" and self._attributes:
            metadata = {"agentctl": {"reason": event.data.get("reason")}}
            return {**finished, "outcome": {"type": "cancelled"}, "metadata": metadata}

        return self._build_failure(*describe_failure(event))

    def _build_pause(self) -> PageEvent:
        approvals = [*self._asked.values()]
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
"""The roles whose messages are not read: the history is that of the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AguiRequest(request.PageRequest):
    """A request."""

    run_id: str
    """The name of the stream, which the page has chosen."""

    has_version: bool
    """True if the page declares a version of the protocol, as pages since 1.0 do."""

    def describe_state(self) -> list[EarlierMessage]:
        """Return the message that shows the state of the page to a model; none without a state."""
        if self.state is None:
            return []
        text = orjson.dumps(self.state)
        if len(text) > MAXIMUM_SHOWN_STATE:
            return [
                EarlierMessage("user", "The state of the page of the user is too large to show.")
            ]
        return [EarlierMessage("user", f"State of the page of the user:\n{text.decode()}")]


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

    Earlier messages are not read. `files` gets the files of the message.
    """
    results: list[request.ToolResult] = []
    is_last = True

    for index in range(len(messages) - 1, -1, -1):
        at = f"messages[{index}]"
        message = request.check_value(messages[index], dict, at)
        role = message.get("role")
        if role == "tool":
            is_last = False
            results.append(_read_result(message, at))
        elif role == "user":
            text = None
            if is_last:
                content = _take_files(message.get("content"), f"{at}.content", files)
                text = request.read_text(content, f"{at}.content")
            return text, results[::-1]
        elif role not in _SKIPPED_ROLES:
            raise ValidationFailed(f"{at}.role must be a role of AG-UI")
        elif role == "assistant":
            is_last = False

    return None, results[::-1]


def _take_files(content: object, at: str, files: list[GivenFile]) -> object:
    """Return the content of a message without the parts that are files, which `files` gets."""
    if not isinstance(content, list):
        return content

    rest = []
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") not in _FILE_PARTS:
            rest.append(part)
            continue

        place = f"{at}[{index}]"
        # The parts before version 1.0 are `binary`, with the members of a source.
        source = request.check_value(part.get("source", part), dict, f"{place}.source")
        values = {
            name: request.check_value(source.get(name) or "", str, f"{place}.{name}")
            for name in ("value", "data", "url", "id", "mimeType", "filename")
        }

        value = values["value"]
        kind = source.get("type")

        if file_id := value if kind == "file" else values["id"]:
            files.append(GivenFile(place, file_id))
        elif url := value if kind == "url" else values["url"]:
            files.append(read_data_url(place, url, values["filename"]))
        else:
            data = value or values["data"]
            name = values["filename"]
            media_type = values["mimeType"]
            files.append(GivenFile(place, data=data, name=name, media_type=media_type))

    return rest


def _read_result(message: dict[str, Any], at: str) -> request.ToolResult:
    error = message.get("error")
    return request.ToolResult(
        request.check_value(message.get("toolCallId"), str, f"{at}.toolCallId"),
        request.read_text(message.get("content"), f"{at}.content"),
        None if error is None else request.check_value(error, str, f"{at}.error"),
    )


def _read_answer(entry: object, at: str) -> request.PageAnswer:
    values = request.check_value(entry, dict, at)

    status: Literal["resolved", "cancelled"] | Any = values.get("status")
    if status not in ("resolved", "cancelled"):
        raise ValidationFailed(f"{at}.status must be resolved or cancelled")

    metadata = request.check_value(values.get("metadata") or {}, dict, f"{at}.metadata")

    return request.PageAnswer(
        at,
        request.check_value(values.get("interruptId"), str, f"{at}.interruptId"),
        values.get("payload"),
        is_cancelled=status == "cancelled",
        arguments_hash=metadata.get("argumentsHash"),
    )


def _read_context(entries: Sequence[Any]) -> list[EarlierMessage]:
    lines = []
    for index, entry in enumerate(entries):
        at = f"context[{index}]"
        values = request.check_value(entry, dict, at)
        name = request.check_value(values.get("description"), str, f"{at}.description")
        lines.append(f"{name}: {request.check_value(values.get('value'), str, f'{at}.value')}")

    text = "\n".join(["Context of the page of the user:", *lines])
    return [EarlierMessage("user", text)] if lines else []


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

    async def start(self, given: AguiRequest, key: str | None) -> Portions:
        """Start a run, and show the state of the page to a model without code, which reads it."""
        settings = self.call.caller.app_state.settings
        models = [("agent", agent.id) for agent in settings.agents if not agent.object]
        models += [("team", team.id) for team in settings.teams]
        if (self.kind, self.component_id) in models:
            given = replace(given, context=[*given.context, *given.describe_state()])
        return await super().start(given, key)

    def build_stream(
        self, given: AguiRequest, resumed: request.ResumedRun | None, after: set[str]
    ) -> AguiStream:
        return AguiStream(given.thread_id, given.run_id, attributes=given.has_version, after=after)


def build_face() -> PageFace:
    return PageFace(PREFIX, ROUTES, AguiExchange)
