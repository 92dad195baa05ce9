"""The requests of an agent of pydantic-ai: the messages that fit into the window of its model.

The library knows the window of many models. A hook changes the messages of a request, not those of
the run. What a request shows is a function of the messages alone, which have the tokens that the
model has reported, so that every process sends the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext

from agentctl.runtime.files import format_note, get_reference
from agentctl.runtime.models.call_fitting import leave_answer
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.transcript.context_window import (
    LINE_BYTES,
    Compaction,
    ContextMessages,
    FittedMessages,
    Message,
    cut_result,
    find_readable,
    fit_messages,
    keep_report,
    offers_reading,
)
from agentctl.runtime.transcript.events import Compacted


class RequestFitter:
    """Fits the requests of one run; its record has what they leave out."""

    def __init__(self, run: HostedRun) -> None:
        self._run = run
        self._recorded: list[dict[str, Any]] = []
        self._begin()

    def _begin(self) -> None:
        self._messages: list[ModelMessage] = []
        self._neutral: list[Message] = []
        self._context = ContextMessages(self._neutral)
        self._compaction = Compaction()

    async def fit(self, ctx: Any, request_context: ModelRequestContext) -> ModelRequestContext:
        """Return a request with the messages that fit, a hook of the library.

        It waits while the run is halted.
        """
        await self._run.environment.wait_while_halted()
        window = request_context.model.context_window
        if not window:
            return request_context
        fitted = await self._fit_next(request_context, window)
        self._record(fitted, window)
        if not fitted.omissions:
            return request_context
        return replace(request_context, messages=_select(request_context, fitted))

    async def _fit_next(self, request: ModelRequestContext, window: int) -> FittedMessages:
        """Fit the request of each new answer again, for its reported tokens, and the next one."""
        messages = request.messages
        if messages[: len(self._messages)] != self._messages:
            # A history processor of the agent has changed them.
            self._begin()

        known_count = len(self._neutral)

        self._messages = [*messages]
        room = leave_answer(window, (request.model_settings or {}).get("max_tokens"))
        tools_bytes = _measure_tools(request)

        def fit_known() -> FittedMessages:
            self._context.begin_run(len(self._neutral))
            return fit_messages(
                self._context, room, self._compaction, other_bytes=tools_bytes, reading=None
            )

        for at, message in enumerate(messages[known_count:], known_count):
            if isinstance(message, ModelResponse):
                fitted = fit_known()
                tokens = message.usage.input_tokens
                # Another model counts other tokens. A token has at least one byte.
                is_known = (message.model_name or "").startswith(request.model.model_name)
                tokens = tokens if is_known and tokens <= fitted.size else 0
                self._compaction = keep_report(fitted.compaction, fitted.size, tokens)
                await self._run.take_turn()
            self._neutral.append(_to_neutral(at, message))

        return fit_known()

    def _record(self, fitted: FittedMessages, window: int) -> None:
        records = [omission.record() for omission in fitted.omissions]
        if records and records != self._recorded:
            self._recorded = records
            compacted = Compacted(records, fitted.estimated_tokens, window)
            self._run.report_compacted(compacted)


def _to_neutral(at: int, message: ModelMessage) -> Message:
    """Return the role, the text and the calls of a message, with its index."""
    if isinstance(message, ModelResponse):
        text = "".join(str(getattr(part, "content", "")) for part in message.parts)
        calls = [
            {"id": call.tool_call_id, "name": call.tool_name, "arguments": call.args_as_json_str()}
            for call in message.tool_calls
        ]
        return {"role": "assistant", "content": text, "tool_calls": calls, "at": at}

    results = [part for part in message.parts if isinstance(part, ToolReturnPart)]
    text = "".join(map(_read_text, message.parts))

    if results:
        call_id = results[0].tool_call_id
        return {"role": "tool", "content": text, "tool_call_id": call_id, "at": at}

    prompts = [part for part in message.parts if isinstance(part, UserPromptPart)]
    prompt_items = (item for prompt in prompts for item in prompt.content)
    files = [_describe_file(item) for item in prompt_items if isinstance(item, BinaryContent)]

    role = "user" if prompts else "tool"
    return {"role": role, "content": text, "tool_call_id": "", "at": at, "files": files}


def _describe_file(item: BinaryContent) -> dict[str, Any]:
    kind = item.media_type
    size = len(item.data)
    return {"file_id": "", "name": "of the message", "media_type": kind, "size": size, "sha256": ""}


def _read_text(part: Any) -> str:
    if isinstance(part, ToolReturnPart):
        return part.model_response_str()
    content = getattr(part, "content", "")
    if isinstance(content, str):
        return content
    return "".join(piece for piece in content if isinstance(piece, str))


def _measure_tools(request: ModelRequestContext) -> int:
    parameters = request.model_request_parameters
    tools = [*parameters.function_tools, *parameters.output_tools]
    texts = (f"{tool.name}{tool.description}{tool.parameters_json_schema}" for tool in tools)
    instructions = (part.content for part in parameters.instruction_parts or ())
    return sum(map(len, [*texts, *instructions]))


def _find_readable(request: ModelRequestContext) -> Collection[str]:
    """Return the ids of the results that the model can read, if it has the tool."""
    tools = request.model_request_parameters.function_tools
    if not any(offers_reading(tool.name, tool.parameters_json_schema) for tool in tools):
        return ()
    parts = (part for message in request.messages for part in message.parts)
    return find_readable(part.tool_call_id for part in parts if isinstance(part, ToolReturnPart))


def _select(request: ModelRequestContext, fitted: FittedMessages) -> list[ModelMessage]:
    """Return the messages of a request, with the system prompts of those that are left out."""
    selected: list[ModelMessage] = []
    shown_indexes = {message["at"] for message in fitted.messages}
    readable = _find_readable(request)
    prompts: list[Any] = []

    for at, message in enumerate(request.messages):
        if at in shown_indexes:
            shortened = _shorten(message, at, fitted.compaction, readable)
            if prompts and isinstance(shortened, ModelRequest):
                shortened = replace(shortened, parts=[*prompts, *shortened.parts])
                prompts = []
            selected.append(shortened)
        elif isinstance(message, ModelRequest):
            prompts += [part for part in message.parts if isinstance(part, SystemPromptPart)]

    return selected


def _shorten(
    message: ModelMessage, at: int, compaction: Compaction, readable: Collection[str]
) -> ModelMessage:
    bound = 0 if at < compaction.results_before else compaction.result_bytes
    if not isinstance(message, ModelRequest):
        return message
    if at < compaction.files_before:
        message = replace(message, parts=[*map(_leave_out_files, message.parts)])
    if at >= compaction.results_before and not bound:
        return message
    parts = [_shorten_part(part, at, bound, readable) for part in message.parts]
    return replace(message, parts=parts)


def _leave_out_files(part: ModelRequestPart) -> ModelRequestPart:
    if not isinstance(part, UserPromptPart) or isinstance(part.content, str):
        return part
    content = [
        format_note(get_reference(_describe_file(item)), "is left out")
        if isinstance(item, BinaryContent)
        else item
        for item in part.content
    ]
    return replace(part, content=content)


def _shorten_part(
    part: ModelRequestPart, at: int, bound: int, readable: Collection[str]
) -> ModelRequestPart:
    # Subclasses are the results of the library's own tools.
    if type(part) is not ToolReturnPart:
        return part

    text = part.model_response_str()
    if len(text) <= bound + LINE_BYTES:
        return part

    result_part: ToolReturnPart[Any] = part
    place = f"id {part.tool_call_id}" if part.tool_call_id in readable else None
    return replace(result_part, content=cut_result(text, at, bound, place))
