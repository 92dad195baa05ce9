"""A model for pydantic-ai (docs/models.md "Models in code")."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    RetryPromptPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model as BaseModel
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RequestUsage

from agentctl.records.components import ToolRecord
from agentctl.records.run_spec import REQUIRED
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.files import LoadedFile, build_inline
from agentctl.runtime.json_values import NOT_AN_OBJECT
from agentctl.runtime.models import answering
from agentctl.runtime.models.access import check_model, get_access
from agentctl.runtime.models.calls import (
    NATIVE,
    NeutralMessages,
    check_model_failure,
    keep_arguments,
)

_SETTINGS = {
    "temperature": "temperature",
    "max_tokens": "max_tokens",
    "top_p": "top_p",
    "stop_sequences": "stop",
    "seed": "seed",
    "timeout": "timeout_seconds",
    "extra_body": "extra_body",
}
"""Settings of pydantic-ai, and their names in the configuration."""


class Model(BaseModel[Any]):
    """A model of the configuration as a model of pydantic-ai.

    It can be called by the code of a run, such as a hosted agent. The model has the key, retries,
    fallbacks and limits of its entry in `[[models]]`; settings of the agent override those of the
    entry.

    Example:
        Agent(Model("fast"), tools=[list_orders])

    Args:
        model_name: id of the model in the configuration.
    """

    def __init__(self, model_name: str, *, settings: ModelSettings | None = None) -> None:
        check_model(model_name)
        super().__init__(settings=settings, profile=ModelProfile(supports_json_schema_output=True))
        self._model_name = model_name

    @property
    def model_name(self) -> str:
        return self._model_name

    @property
    def system(self) -> str:
        return answering.PROVIDER

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        request, _ = self._build_request(messages, model_settings, model_request_parameters)
        with _as_library_errors(self._model_name):
            thinking, answered = await answering.fetch_answer(request)

        parts: list[ModelResponsePart] = [ThinkingPart(thinking)] if thinking else []
        if answered.answer.text:
            parts.append(TextPart(answered.answer.text))
        for call in answered.answer.calls:
            parts.append(
                ToolCallPart(call["name"], _write_arguments(call), tool_call_id=call["id"])
            )

        return ModelResponse(
            parts=parts,
            model_name=answered.model,
            provider_name=self.system,
            usage=_convert_usage(answered.usage),
            finish_reason=_convert_reason(answered),
            provider_details=_build_details(answered),
        )

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        request, parameters = self._build_request(
            messages, model_settings, model_request_parameters
        )
        pieces = answering.stream_answer(request)
        try:
            yield _StreamedAnswer(parameters, self._model_name, self.system, pieces)
        finally:
            await pieces.aclose()

    def _build_request(
        self,
        messages: Sequence[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
    ) -> tuple[answering.AnswerRequest, ModelRequestParameters]:
        """Build a request from the arguments of the library.

        Returns:
            The request, and the parameters as the library has completed them.
        """
        merged, parameters = self.prepare_request(settings, parameters)
        values: Mapping[str, Any] = cast("Mapping[str, Any]", merged or {})
        tools, choice = _select_tools(values.get("tool_choice"), parameters)

        output = None
        if parameters.output_mode == "native" and (declared := parameters.output_object):
            output = answering.AnswerSchema(
                declared.json_schema, declared.name, declared.description
            )

        converted = _convert_messages(messages)
        for part in self._get_instruction_parts(messages, parameters) or []:
            converted.add_system(part.content)

        request = answering.AnswerRequest(
            self._model_name,
            converted.instructions,
            converted.messages,
            tools,
            _convert_settings(values, parameters.thinking),
            choice,
            output,
            answering.select_options(values),
            is_reported=get_access().reports("pydantic-ai"),
        )
        return request, parameters


def _convert_settings(values: Mapping[str, Any], thinking: Any) -> dict[str, Any]:
    """Return the settings of a call by their names in the configuration.

    Args:
        values: the merged settings of the model and of the agent.
        thinking: an effort, True for the effort of the model, False for no thinking, or None.
    """
    settings: dict[str, Any] = {}
    for library_name, name in _SETTINGS.items():
        if values.get(library_name):
            settings[name] = values[library_name]
    # 0 is a value of its own for them.
    for name in ("temperature", "seed"):
        if name in values:
            settings[name] = values[name]

    if "stop" in settings:
        settings["stop"] = tuple(settings["stop"])

    if thinking is True:
        settings["reasoning_effort"] = None
    elif thinking is False:
        settings["reasoning_effort"] = "none"
    elif thinking is not None:
        settings["reasoning_effort"] = str(thinking)

    return settings


def _select_tools(
    choice: Any, parameters: ModelRequestParameters
) -> tuple[list[ToolRecord], str | None]:
    """Return the tools of a call, and the tool that the model has to call, `REQUIRED` or None.

    Args:
        choice: the setting `tool_choice`.
    """
    tools: list[ToolRecord] = [
        {
            "name": tool.name,
            "description": tool.description or "",
            "parameters": tool.parameters_json_schema,
        }
        for tool in [*parameters.declared_function_tools, *parameters.output_tools]
    ]

    if choice == "none" and parameters.allow_text_output:
        return [], None
    if isinstance(choice, list) and len(choice) == 1:
        return tools, choice[0]

    # Without text an output is the call of a tool.
    must_call = choice == "required" or not parameters.allow_text_output
    return tools, REQUIRED if tools and must_call else None


@dataclass
class _StreamedAnswer(StreamedResponse):
    """An answer while it arrives."""

    _model: str
    _provider: str
    _pieces: AsyncGenerator[answering.Delta | answering.Answered]
    _timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        parts = self._parts_manager
        with _as_library_errors(self._model):
            async for piece in self._pieces:
                if isinstance(piece, answering.Delta):
                    is_thinking = piece.is_thinking
                    handle = parts.handle_thinking_delta if is_thinking else parts.handle_text_delta
                    for event in handle(vendor_part_id=None, content=piece.text):
                        yield event
                    continue

                for call in piece.answer.calls:
                    yield parts.handle_tool_call_part(
                        vendor_part_id=call["id"],
                        tool_name=call["name"],
                        args=_write_arguments(call),
                        tool_call_id=call["id"],
                    )
                self._model = piece.model
                self._usage = _convert_usage(piece.usage)
                self.finish_reason = _convert_reason(piece)
                self.provider_details = _build_details(piece)

    async def close_stream(self) -> None:
        await self._pieces.aclose()

    @property
    def model_name(self) -> str:
        return self._model

    @property
    def provider_name(self) -> str:
        return self._provider

    @property
    def provider_url(self) -> None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self._timestamp


@contextmanager
def _as_library_errors(model: str) -> Iterator[None]:
    """Raise the failure of a model as pydantic-ai does, which `FallbackModel` catches."""
    try:
        yield
    except ExecutionError as failure:
        check_model_failure(failure)
        raise ModelAPIError(model, failure.detail) from failure


def _convert_messages(messages: Sequence[ModelMessage]) -> NeutralMessages:
    converted = NeutralMessages()
    for message in messages:
        if isinstance(message, ModelResponse):
            texts = [part.content for part in message.parts if isinstance(part, TextPart)]
            calls = [
                (part.tool_call_id, part.tool_name, keep_arguments(part.args))
                for part in message.parts
                if isinstance(part, ToolCallPart)
            ]

            text = "\n\n".join(filter(None, texts))
            converted.add_answer(text, calls, message.provider_details)
            continue

        assert isinstance(message, ModelRequest)
        for part in message.parts:
            if isinstance(part, SystemPromptPart):
                converted.add_system(part.content)
            elif isinstance(part, UserPromptPart):
                converted.add_user(*_read_prompt(part))
            elif isinstance(part, ToolReturnPart):
                converted.add_result(part.tool_call_id, part.model_response_str(), part.tool_name)
            elif isinstance(part, RetryPromptPart) and part.tool_name is not None:
                converted.add_result(part.tool_call_id, part.model_response(), part.tool_name)
            elif isinstance(part, RetryPromptPart):
                converted.add_user(part.model_response())
            else:
                raise UserError(f"agentctl.pydantic_ai.Model takes no {type(part).__name__}")

    return converted


def _read_prompt(part: UserPromptPart) -> tuple[str, list[LoadedFile]]:
    """Return the text and the files of a prompt of the user."""
    if isinstance(part.content, str):
        return part.content, []

    texts = list[str]()
    files = list[LoadedFile]()
    for item in part.content:
        if isinstance(item, BinaryContent):
            files.append(build_inline(item.data, item.media_type))
        elif isinstance(item, str | TextContent):
            texts.append(item if isinstance(item, str) else item.content)
        else:
            raise UserError(
                f"agentctl.pydantic_ai.Model takes text and bytes, and no {type(item).__name__}"
            )
    return "\n\n".join(texts), files


def _write_arguments(call: Mapping[str, Any]) -> Any:
    """Return the arguments of a call; text that is not a JSON object is for the agent to refuse."""
    arguments = call["arguments"]
    return arguments.get(NOT_AN_OBJECT, arguments)


def _convert_usage(usage: Mapping[str, int] | None) -> RequestUsage:
    if usage is None:
        return RequestUsage()
    return RequestUsage(
        input_tokens=usage["input_tokens"],
        output_tokens=usage["output_tokens"],
        cache_read_tokens=usage["cache_read_tokens"],
        cache_write_tokens=usage["cache_write_tokens"],
        input_audio_tokens=usage["audio_input_tokens"],
        output_audio_tokens=usage["audio_output_tokens"],
        details={"reasoning_tokens": usage["reasoning_tokens"]},
    )


def _convert_reason(answered: answering.Answered) -> Any:
    """Return the finish reason of an answer, if pydantic-ai has it too."""
    reason = answered.answer.finish_reason
    return reason if reason in ("stop", "length", "tool_call", "content_filter", "error") else None


def _build_details(answered: answering.Answered) -> dict[str, Any] | None:
    return None if answered.native is None else {NATIVE: answered.native}
