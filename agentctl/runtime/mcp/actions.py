"""Tools of MCP servers as actions of a model: their calls, results and questions.

A model gets text. Images, sound and other data become files of the run, which the text names
(docs/mcp.md "Results"). In protocol 2026-07-28 a server may answer a call with questions to a
person and an opaque state. The run waits, and the call is repeated with the answers, in any process
(decision 80).
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from mimetypes import guess_extension
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from agentctl.config.mcp_servers import is_idempotent
from agentctl.errors import AgentctlError
from agentctl.records.files import FileReference
from agentctl.records.text import escape_controls
from agentctl.runtime.context import HeldBack
from agentctl.runtime.files import build_inline, dump_references
from agentctl.runtime.mcp.calls import CallEnd, McpAnswers, McpCall, McpCallFailed, McpUnavailable
from agentctl.runtime.mcp.definitions import (
    DESCRIPTION_BYTES,
    McpTool,
    UnusableTool,
    clean_schema,
    clean_text,
)
from agentctl.runtime.pauses import Ask, CallOutcome, CallPause, Leg
from agentctl.runtime.tools.functions import result_to_text
from agentctl.runtime.transcript.conversation import Conversation
from agentctl.work.event_loop import wait_until_done
from agentctl.work.run_scope import current_call
from agentctl.work.unstopped import abandon_task

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.context import RunEnvironment
    from agentctl.runtime.files import FileAccess
    from agentctl.runtime.mcp.calls import McpUser
    from agentctl.runtime.mcp.server import HostedServer

GRACE_SECONDS = 0.05
"""Maximum time for a cancelled call to notify the server; then it is abandoned."""

STOP_SECONDS = 5.0
"""Time after a cancel in which a late result may arrive. A server that follows the protocol sends
nothing after a cancel, so its work is taken as stopped after this time."""

SEND_SECONDS = 0.25
"""Maximum time to send a request to a connected server."""

MAXIMUM_ROUNDS = 10
"""Times that one call may ask."""

MAXIMUM_QUESTIONS = 16
"""Questions of one answer of a server."""

MAXIMUM_FILES = 16
"""Files of one result."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")

_SHOWN = 200
"""Maximum characters of a type or URI in the description of a part."""

_log = logging.getLogger("agentctl.mcp")


@dataclass(frozen=True, slots=True)
class McpAction:
    """A tool of an MCP server as an action of a model, for the user of one run."""

    has_effects: ClassVar[bool] = True

    tool: McpTool
    server: HostedServer
    user: McpUser

    @property
    def idempotent(self) -> bool:
        # The hints of the server are not used: it may be wrong about itself, or malicious.
        return is_idempotent(self.server.spec, self.tool.listed_name)

    def record(self) -> ToolRecord:
        return self.tool.record()

    async def perform(
        self, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        name = self.tool.name
        context = conversation.context
        if context.find_halt(tool=name) is not None:
            raise HeldBack

        limit = min(self.server.spec.call_seconds, context.spec.tool_timeout)
        started = time.monotonic()
        end: CallEnd = "failed"

        try:
            kept_state = conversation.take_state()
            answers = None if kept_state is None else _build_answers(kept_state, context.leg)
            call = McpCall(self.tool.listed_name, arguments, answers)
            result = await self._call(call, context, limit)

            if result.get("resultType") == "input_required":
                pause = await _build_questions(self.tool, result, kept_state)
                end = "completed"
                return CallOutcome("", pause=pause)

            parts, files = await _list_parts(self.tool.listed_name, result, context.files)
            text = _build_result_text(result, parts, context.limits.tool_result_bytes)
            failed = bool(result.get("isError"))
            end = "failed" if failed else "completed"
            return CallOutcome(text, failed=failed, files=dump_references(files))

        except HeldBack:
            end = "cancelled"
            raise
        except McpCallFailed as failure:
            return CallOutcome(f"The tool {name} failed: {failure}", failed=True)
        except McpUnavailable as failure:
            end = "unavailable"
            text = f"The MCP server {self.tool.server} is not available: {failure}"
            return CallOutcome(text, failed=True)
        except TimeoutError:
            end = "timeout"
            return CallOutcome(f"The tool {name} did not end within {limit:g} seconds", failed=True)
        except asyncio.CancelledError:
            end = "cancelled"
            raise
        except Exception as error:
            _log.warning("tool %s failed", name, exc_info=error)
            return CallOutcome(f"The tool {name} failed", failed=True)
        finally:
            self.server.counters.count_call(end, time.monotonic() - started)

    async def _call(self, call: McpCall, context: RunEnvironment, seconds: float) -> dict[str, Any]:
        task = asyncio.create_task(self._start(call, context), name=f"tool {self.tool.name}")
        unstopped = context.transcript.unstopped

        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
            if not done:
                raise TimeoutError
        except (asyncio.CancelledError, TimeoutError):
            abandon_task(task)
            # Before the wait: a late result that arrives meanwhile has to find its future.
            stopped = call.expect_stop(STOP_SECONDS)
            try:
                await wait_until_done({task}, GRACE_SECONDS)
            finally:
                unstopped.add(task, self.tool.name)
                if stopped is not None:
                    unstopped.add(stopped, self.tool.name)
            raise

        if task.cancelled():
            raise McpUnavailable("the call was interrupted")
        return task.result()

    async def _start(self, call: McpCall, context: RunEnvironment) -> dict[str, Any]:
        """Call the server when it is connected, unless the call is halted by then."""

        def check() -> None:
            if context.find_halt(tool=self.tool.name) is not None:
                raise HeldBack
            # The library sends the request in a task of its own.
            call.sending.enter_context(context.starting(SEND_SECONDS))

        call.check = check
        with call.sending:
            return await self.server.call(call, self.user)


async def _build_questions(
    tool: McpTool, result: Mapping[str, Any], kept_state: Mapping[str, Any] | None
) -> CallPause:
    """Return what a run waits for until the current call can be repeated.

    Args:
        result: the answer of the server, as JSON of the protocol.
        kept_state: the state of the pause before; None for the first questions of the call.

    Raises:
        McpCallFailed: the server asks for something else than the input of a person, or too often.
    """
    round_number = 1 if kept_state is None else kept_state["round"] + 1
    requests = result.get("inputRequests") or {}
    if round_number > MAXIMUM_ROUNDS or not 0 < len(requests) <= MAXIMUM_QUESTIONS:
        raise McpCallFailed("it asks for input too often, or for none")

    call = current_call.get()
    assert call is not None

    asks: list[Ask] = []
    question_ids: dict[str, str] = {}
    for key, request in requests.items():
        params = request["params"] if request["method"] == "elicitation/create" else {}
        if params.get("mode") != "form":
            raise McpCallFailed("it asks for input of a kind that is not supported")
        try:
            schema = await clean_schema(params["requestedSchema"])
        except UnusableTool as problem:
            raise McpCallFailed(f"it asks a question that is not usable: {problem}") from None

        question_id = f"{call.id}:{round_number}.{len(asks) + 1}"
        question_ids[key] = question_id
        question = clean_text(params["message"], DESCRIPTION_BYTES)
        asks.append(Ask("input", question_id, tool.name, {}, "user", question, schema))

    state = {
        "round": round_number,
        "asked": question_ids,
        "request_state": result.get("requestState"),
    }
    return CallPause(asks, state)


def _build_answers(kept_state: Mapping[str, Any], leg: Leg | None) -> McpAnswers:
    """Return the answers of people to the questions that a call has asked.

    Args:
        kept_state: the state of the pause that `_build_questions` has made.
    """
    responses = {
        key: _build_answer(leg, question_id) for key, question_id in kept_state["asked"].items()
    }
    return McpAnswers(responses, kept_state["request_state"])


def _build_answer(leg: Leg | None, question_id: str) -> dict[str, Any]:
    """Return the answer to a question as an `ElicitResult` of the protocol."""
    decision = leg.find(question_id, "input") if leg is not None else None
    if decision is None or decision.status == "expired":
        return {"action": "cancel"}
    if decision.status != "answered":
        return {"action": "decline"}
    return {"action": "accept", "content": decision.answer}


async def _list_parts(
    tool: str, result: Mapping[str, Any], access: FileAccess | None
) -> tuple[list[str], list[FileReference]]:
    """Return the text of each part of a result, and the files that its data became.

    Data that cannot be a file is named with the reason.
    """
    texts: list[str] = []
    files: list[FileReference] = []
    for part in result["content"]:
        text = _describe_part(part)

        data = _find_data(part)
        if data is not None and access is not None and len(files) < MAXIMUM_FILES:
            name = _name_file(tool, data.uri, data.media_type, len(files) + 1)
            try:
                file = await access.save(name, build_inline(data.encoded, data.media_type).data)
            except AgentctlError as refusal:
                text = _add_reason(text, refusal.detail)
            except ValueError:
                text = _add_reason(text, "it is not base64")
            else:
                files.append(file)
                text = f"[file {file.name} ({file.media_type}), {file.size} bytes, {file.file_id}]"

        texts.append(text)

    return texts, files


def _add_reason(description: str, reason: str) -> str:
    """Add the reason why data is no file to the description of its part, in its brackets."""
    return f"{description.removesuffix(']')}: {reason}]"


class _PartData(NamedTuple):
    """The data of a part of a result."""

    encoded: str
    """The data in base64, as the server sent it; it may be invalid."""

    media_type: str
    """`""` if the server names none."""

    uri: str
    """The URI of a resource; `""` for an image or sound."""


def _find_data(part: Mapping[str, Any]) -> _PartData | None:
    """Return the data of a part; None for a part without data, such as a text."""
    if part["type"] in ("image", "audio"):
        return _PartData(part["data"], str(part["mimeType"]), "")

    resource = part["resource"] if part["type"] == "resource" else {}
    if "blob" not in resource:
        return None

    media_type = str(resource.get("mimeType") or "")
    return _PartData(resource["blob"], media_type, str(resource["uri"]))


def _name_file(tool: str, uri: str, media_type: str, number: int) -> str:
    """Return a name without a path, from the end of a URI or from the tool."""
    last_segment = uri.rpartition("/")[2]
    if name := _NOT_IN_NAMES.sub("_", last_segment)[-_SHOWN:].lstrip("."):
        return name

    tool_part = _NOT_IN_NAMES.sub("_", tool)[:_SHOWN]
    ending = guess_extension(media_type, strict=False) or ""
    return f"{tool_part}-{number}{ending}"


def _build_result_text(result: Mapping[str, Any], parts: Sequence[str], limit: int) -> str:
    """Join the parts of a result, at most `limit` bytes.

    If no part has text, the structured content is returned as JSON.

    Args:
        result: the result as JSON of the protocol.
    """
    if not any(parts) and result.get("structuredContent") is not None:
        return result_to_text(result["structuredContent"], limit)
    return result_to_text("\n".join(parts), limit)


def _describe_part(part: Mapping[str, Any]) -> str:
    """Return the text of a part; for a part without text, a description in brackets."""
    kind = part["type"]
    if kind == "text":
        return str(part["text"])

    if kind in ("image", "audio"):
        size = _count_bytes(part["data"])
        return f"[{kind} {_show(part['mimeType'])}, {size} bytes, not shown]"

    if kind == "resource_link":
        return f"[resource {_show(part['uri'])}: {_show(part['name'])}]"

    if kind == "resource":
        resource = part["resource"]
        if "text" in resource:
            return f"[resource {_show(resource['uri'])}]\n{resource['text']}"
        size = _count_bytes(resource["blob"])
        media_type = _show(resource.get("mimeType") or "data")
        return f"[resource {_show(resource['uri'])}: {media_type}, {size} bytes, not shown]"

    return f"[{_show(kind)}, not shown]"


def _show(value: object) -> str:
    """Return a short text of the server that may be shown on one line."""
    return escape_controls(str(value)[:_SHOWN])


def _count_bytes(encoded: str) -> int:
    """Return the size of data in base64, without decoding it."""
    return len(encoded) * 3 // 4 - encoded[-2:].count("=")
