"""A model for agno (docs/models.md "Models in code")."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager
from dataclasses import dataclass
from typing import Any

from agno.exceptions import ModelProviderError
from agno.metrics import MessageMetrics
from agno.models.base import Model as BaseModel
from agno.models.message import Message
from agno.models.response import ModelResponse
from agno.utils.models.schema_utils import get_response_schema_for_provider

from agentctl.runtime.failures import MODEL_FAILURES, ExecutionError
from agentctl.runtime.models.access import check_model, get_access
from agentctl.runtime.models.answering import (
    NATIVE,
    Answered,
    AnswerRequest,
    AnswerSchema,
    Delta,
    fetch_answer,
    fetch_to_thread,
    read_format,
    select_options,
    select_tools,
    stream_answer,
    stream_to_thread,
    write_arguments,
)
from agentctl.runtime.models.calls import build_answer, build_result, parse_arguments


@dataclass
class Model(BaseModel):  # type: ignore[misc]
    """A model of the configuration as a model of agno.

    It can be called by the code of a run, such as a hosted agent. The model has the key, retries,
    fallbacks and limits of its entry in `[[models]]`; settings that are not None override those of
    the entry.

    Example:
        Agent(model=Model(id="fast"), tools=[list_orders])

    Args:
        id: id of the model in the configuration.
        timeout: maximum time in seconds without data from the provider.
    """

    name: str = "agentctl"
    provider: str = "agentctl"
    supports_native_structured_outputs: bool = True
    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        check_model(self.id)
        super().__post_init__()

    async def ainvoke(
        self, messages: list[Message], assistant_message: Message, **options: Any
    ) -> ModelResponse:
        assistant_message.metrics.start_timer()
        with _as_library_errors(self):
            thinking, answered = await fetch_answer(self._build_request(messages, options))
        assistant_message.metrics.stop_timer()
        return _build_whole(thinking, answered)

    async def ainvoke_stream(
        self, messages: list[Message], assistant_message: Message, **options: Any
    ) -> AsyncIterator[ModelResponse]:
        assistant_message.metrics.start_timer()
        with _as_library_errors(self):
            async with aclosing(stream_answer(self._build_request(messages, options))) as pieces:
                async for piece in pieces:
                    yield _build_response(piece)
        assistant_message.metrics.stop_timer()

    def invoke(
        self, messages: list[Message], assistant_message: Message, **options: Any
    ) -> ModelResponse:
        assistant_message.metrics.start_timer()
        with _as_library_errors(self):
            thinking, answered = fetch_to_thread(self._build_request(messages, options))
        assistant_message.metrics.stop_timer()
        return _build_whole(thinking, answered)

    def invoke_stream(
        self, messages: list[Message], assistant_message: Message, **options: Any
    ) -> Iterator[ModelResponse]:
        assistant_message.metrics.start_timer()
        request = self._build_request(messages, options)
        with _as_library_errors(self), closing(stream_to_thread(request)) as pieces:
            for piece in pieces:
                yield _build_response(piece)
        assistant_message.metrics.stop_timer()

    def _parse_provider_response(self, response: Any, **options: Any) -> ModelResponse:
        """Not used: `ainvoke` returns the response of agno."""
        raise NotImplementedError

    def _parse_provider_response_delta(self, response: Any) -> ModelResponse:
        """Not used: `ainvoke_stream` yields the responses of agno."""
        raise NotImplementedError

    def _build_request(
        self, messages: Sequence[Message], options: Mapping[str, Any]
    ) -> AnswerRequest:
        functions = (tool["function"] for tool in options.get("tools") or ())
        tools, choice = select_tools(functions, options.get("tool_choice"))
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        settings = {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "top_p": self.top_p,
            "stop": tuple(stop) if stop else None,
            "seed": self.seed,
            "reasoning_effort": self.reasoning_effort,
            "timeout_seconds": self.timeout,
        }
        instructions, converted = _convert_messages(messages)
        return AnswerRequest(
            self.id,
            instructions,
            converted,
            tools,
            settings,
            choice,
            _read_format(options.get("response_format")),
            select_options(options),
            is_reported=_is_reported(options.get("run_response")),
        )


def _is_reported(run: Any) -> bool:
    """Return True if the runner of agno sees the run that calls a model.

    It does not see the runs that the code of a tool starts.
    """
    access = get_access()
    is_seen = run is None or access.seen_runs is None or run.run_id in access.seen_runs
    return access.reports("agno") and is_seen


def _read_format(asked: Any) -> AnswerSchema | None:
    """Return the schema of an answer: a pydantic model, or a schema in the form of OpenAI."""
    if isinstance(asked, type):
        schema = get_response_schema_for_provider(asked, "openai")
        return AnswerSchema(schema, asked.__name__, asked.__doc__)
    return read_format(asked)


@contextmanager
def _as_library_errors(model: Model) -> Iterator[None]:
    """Raise the failure of a model as agno does, which its retries and fallbacks catch."""
    try:
        yield
    except ExecutionError as failure:
        if failure.code not in MODEL_FAILURES:
            raise
        status = 400 if failure.code in ("CONTEXT_EXCEEDED", "MODEL_REJECTED") else 503
        raise ModelProviderError(failure.detail, status, model.name, model.id) from failure


def _convert_messages(messages: Sequence[Message]) -> tuple[str, list[dict[str, Any]]]:
    """Return the texts of system messages as instructions, and the other messages."""
    instructions: list[str] = []
    converted: list[dict[str, Any]] = []
    for message in messages:
        if message.images or message.audio or message.videos or message.files:
            raise ModelProviderError("agentctl.agno.Model takes text only", status_code=400)
        text = message.get_content_string() if message.content is not None else ""
        if message.role in ("system", "developer"):
            instructions.append(text)
        elif message.role == "assistant":
            converted.append(_convert_answer(message, text))
        elif message.role == "tool":
            called = message.tool_call_id or "", message.tool_name or ""
            converted.append(build_result(*called, text))
        else:
            converted.append({"role": "user", "content": text})
    return "\n\n".join(filter(None, instructions)), converted


def _convert_answer(message: Message, text: str) -> dict[str, Any]:
    calls = [
        {
            "id": call["id"],
            "name": call["function"]["name"],
            "arguments": parse_arguments(call["function"]["arguments"]),
        }
        for call in message.tool_calls or ()
    ]
    return build_answer(text, calls, (message.provider_data or {}).get(NATIVE))


def _build_response(piece: Delta | Answered) -> ModelResponse:
    if isinstance(piece, Answered):
        return _build_end(piece)
    if piece.is_thinking:
        return ModelResponse(reasoning_content=piece.text)
    return ModelResponse(content=piece.text)


def _build_whole(thinking: str, answered: Answered) -> ModelResponse:
    response = _build_end(answered)
    response.role = "assistant"
    response.content = answered.answer.text
    response.reasoning_content = thinking or None
    return response


def _build_end(answered: Answered) -> ModelResponse:
    """Build the response with the calls and the usage of an answer."""
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": write_arguments(call["arguments"])},
        }
        for call in answered.answer.calls
    ]
    response = ModelResponse(tool_calls=calls)
    if answered.native is not None:
        response.provider_data = {NATIVE: answered.native}
    if (usage := answered.usage) is not None:
        response.response_usage = MessageMetrics(**usage)
    return response
