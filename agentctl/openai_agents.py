"""A model for openai-agents (docs/models.md "Models in code")."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from agents import AgentOutputSchemaBase, Handoff, ModelResponse, ModelSettings, Tool, UserError
from agents import Model as BaseModel
from agents.models.chatcmpl_converter import Converter
from agents.models.fake_id import FAKE_RESPONSES_ID
from agents.usage import Usage
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponseFunctionToolCall,
    ResponseOutputItem,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningSummaryTextDeltaEvent,
    ResponseTextDeltaEvent,
    ResponseUsage,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from agentctl.runtime.files import LoadedFile, build_inline, read_data_url
from agentctl.runtime.models import answering
from agentctl.runtime.models.access import check_model, get_access
from agentctl.runtime.models.calls import NATIVE, NeutralMessages, keep_arguments

_FILE_PARTS = ("input_image", "input_file", "input_audio")


class Model(BaseModel):  # type: ignore[misc]
    """A model of the configuration as a model of openai-agents.

    It can be called by the code of a run, such as a hosted agent. The model has the key, retries,
    fallbacks and limits of its entry in `[[models]]`; settings of the agent override those of the
    entry.

    Example:
        Agent(name="support", model=Model("fast"), tools=[list_orders])

    Args:
        model: id of the model in the configuration.

    Attributes:
        reports_calls: True: a call that no hook of the run has announced counts its tokens itself.
    """

    reports_calls = True

    def __init__(self, model: str) -> None:
        check_model(model)
        self.model = model

    async def get_response(self, *arguments: Any, **options: Any) -> ModelResponse:
        _, answered = await answering.fetch_answer(self._build_request(*arguments, **options))
        usage = Usage()
        if answered.usage is not None:
            usage = Usage(requests=1, **dict(_build_usage(answered.usage)))
        return ModelResponse(output=_build_items(answered), usage=usage, response_id=None)

    async def stream_response(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        request = self._build_request(*arguments, **options)
        response = Response(
            id=FAKE_RESPONSES_ID,
            created_at=time.time(),
            model=self.model,
            object="response",
            output=[],
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=True,
        )

        number = 0
        yield ResponseCreatedEvent(
            response=response, sequence_number=number, type="response.created"
        )

        async with aclosing(answering.stream_answer(request)) as pieces:
            async for piece in pieces:
                number += 1

                if isinstance(piece, answering.Answered):
                    response.output = _build_items(piece)
                    response.model = piece.model
                    if piece.usage is not None:
                        response.usage = _build_usage(piece.usage)
                elif piece.is_thinking:
                    yield ResponseReasoningSummaryTextDeltaEvent(
                        delta=piece.text,
                        item_id=FAKE_RESPONSES_ID,
                        output_index=0,
                        sequence_number=number,
                        summary_index=0,
                        type="response.reasoning_summary_text.delta",
                    )
                else:
                    yield ResponseTextDeltaEvent(
                        content_index=0,
                        delta=piece.text,
                        item_id=FAKE_RESPONSES_ID,
                        logprobs=[],
                        output_index=0,
                        sequence_number=number,
                        type="response.output_text.delta",
                    )

        for index, item in enumerate(response.output):
            number += 1
            yield ResponseOutputItemDoneEvent(
                item=item,
                output_index=index,
                sequence_number=number,
                type="response.output_item.done",
            )

        yield ResponseCompletedEvent(
            response=response, sequence_number=number + 1, type="response.completed"
        )

    def _build_request(
        self,
        system_instructions: str | None,
        input: str | Sequence[Mapping[str, Any]],
        model_settings: ModelSettings,
        tools: Iterable[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: Iterable[Handoff[Any, Any]],
        *_: Any,
        **__: Any,
    ) -> answering.AnswerRequest:
        """Build a request from the arguments of the library."""
        openai_tools = [Converter.tool_to_openai(tool) for tool in tools]
        openai_tools += [Converter.convert_handoff_tool(handoff) for handoff in handoffs]
        functions: list[Any] = [tool["function"] for tool in openai_tools if "function" in tool]
        selected, choice = answering.select_tools(functions, model_settings.tool_choice)

        output = None
        if output_schema is not None and not output_schema.is_plain_text():
            output = answering.AnswerSchema(output_schema.json_schema(), "final_output", None)

        # The library has no fields for these two: its users give them among `extra_args`.
        extra_arguments = dict(model_settings.extra_args or {})
        seed = extra_arguments.pop("seed", None)
        stop = extra_arguments.pop("stop", None)

        reasoning = model_settings.reasoning
        settings = {
            "temperature": model_settings.temperature,
            "top_p": model_settings.top_p,
            "max_tokens": model_settings.max_tokens,
            "reasoning_effort": reasoning.effort if reasoning is not None else None,
            "timeout_seconds": model_settings.timeout,
            "extra_body": model_settings.extra_body,
            "seed": seed,
            "stop": (stop,) if isinstance(stop, str) else tuple(stop or ()) or None,
        }

        options = answering.select_options(vars(model_settings))
        if model_settings.verbosity is not None:
            options["verbosity"] = model_settings.verbosity

        converted = _convert_items(system_instructions or "", input)
        access = get_access()
        return answering.AnswerRequest(
            self.model,
            converted.instructions,
            converted.messages,
            selected,
            settings,
            choice,
            output,
            options | extra_arguments,
            is_reported=access.reports("openai-agents") and bool(access.open_calls[id(self)]),
        )


def _convert_items(instructions: str, items: str | Sequence[Mapping[str, Any]]) -> NeutralMessages:
    """Convert instructions and the items after them; items of one answer follow each other."""
    converted = NeutralMessages()
    converted.add_system(instructions)
    if isinstance(items, str):
        converted.add_user(items)
        return converted

    for item in items:
        kind = item.get("type", "message")
        role = item.get("role")

        if kind == "message" and role == "assistant":
            converted.extend_answer(_read_text(item["content"]), library_values=item)
        elif kind == "message" and role in ("system", "developer"):
            converted.add_system(_read_text(item["content"]))
        elif kind == "message":
            converted.add_user(_read_text(item["content"]), _read_files(item["content"]))
        elif kind == "function_call":
            call = item["call_id"], item["name"], keep_arguments(item["arguments"])
            converted.extend_answer(calls=[call], library_values=item)
        elif kind == "function_call_output":
            converted.add_result(item["call_id"], _read_text(item["output"]))
        elif kind != "reasoning":
            raise UserError(f"agentctl.openai_agents.Model takes no item of the type {kind!r}")
    return converted


def _read_text(content: str | Iterable[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content

    texts: list[str] = []
    for part in content:
        text = part.get("text", part.get("refusal"))
        if text is not None:
            texts.append(text)
        elif part["type"] not in _FILE_PARTS:
            raise UserError(
                f"agentctl.openai_agents.Model takes text, and no part of the type {part['type']!r}"
            )
    return "".join(texts)


def _read_files(content: str | Iterable[Mapping[str, Any]]) -> list[LoadedFile]:
    if isinstance(content, str):
        return []

    files: list[LoadedFile] = []
    for part in content:
        if part["type"] == "input_audio":
            sound = part["input_audio"]
            files.append(build_inline(sound["data"], f"audio/{sound['format']}"))
        elif part["type"] in _FILE_PARTS:
            url = part.get("image_url") or part.get("file_data") or ""
            file = read_data_url(url, part.get("filename"))
            if file is None:
                raise UserError("agentctl.openai_agents.Model takes files as data URLs")
            files.append(file)
    return files


def _build_items(answered: answering.Answered) -> list[ResponseOutputItem]:
    items: list[ResponseOutputItem] = []
    if answered.answer.text:
        text = ResponseOutputText(annotations=[], text=answered.answer.text, type="output_text")
        items.append(
            ResponseOutputMessage(
                id=FAKE_RESPONSES_ID,
                content=[text],
                role="assistant",
                status="completed",
                type="message",
            )
        )
    items += [
        ResponseFunctionToolCall(
            id=FAKE_RESPONSES_ID,
            call_id=call["id"],
            name=call["name"],
            arguments=answering.write_arguments(call["arguments"]),
            type="function_call",
        )
        for call in answered.answer.calls
    ]

    # The items of an answer come back with the next request, with this attribute.
    if items and answered.native is not None:
        setattr(items[-1], NATIVE, answered.native)
    return items


def _build_usage(usage: Mapping[str, int]) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage["input_tokens"],
        output_tokens=usage["output_tokens"],
        total_tokens=usage["total_tokens"],
        input_tokens_details=InputTokensDetails.model_construct(
            cached_tokens=usage["cache_read_tokens"], cache_write_tokens=usage["cache_write_tokens"]
        ),
        output_tokens_details=OutputTokensDetails(reasoning_tokens=usage["reasoning_tokens"]),
    )
