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

from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.files import LoadedFile, build_inline
from agentctl.runtime.models.access import check_model, get_access
from agentctl.runtime.models.answering import (
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
from agentctl.runtime.models.calls import (
    NATIVE,
    NeutralMessages,
    check_model_failure,
    keep_arguments,
)


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
        with _calling(self, assistant_message):
            thinking, answered = await fetch_answer(self._build_request(messages, options))
        return _build_end(answered, thinking)

    async def ainvoke_stream(
        self, messages: list[Message], assistant_message: Message, **options: Any
    ) -> AsyncIterator[ModelResponse]:
        with _calling(self, assistant_message):
            async with aclosing(stream_answer(self._build_request(messages, options))) as pieces:
                async for piece in pieces:
                    yield _build_response(piece)

    def invoke(
        self, messages: list[Message], assistant_message: Message, **options: Any
    ) -> ModelResponse:
        with _calling(self, assistant_message):
            thinking, answered = fetch_to_thread(self._build_request(messages, options))
        return _build_end(answered, thinking)

    def invoke_stream(
        self, messages: list[Message], assistant_message: Message, **options: Any
    ) -> Iterator[ModelResponse]:
        request = self._build_request(messages, options)
        with _calling(self, assistant_message), closing(stream_to_thread(request)) as pieces:
            for piece in pieces:
                yield _build_response(piece)

    def _parse_provider_response(self, response: Any, **options: Any) -> ModelResponse:
        """Not used: `ainvoke` returns the response of agno."""
        raise NotImplementedError

    def _parse_provider_response_delta(self, response: Any) -> ModelResponse:
        """Not used: `ainvoke_stream` yields the responses of agno."""
        raise NotImplementedError

    def _build_request(
        self, messages: Sequence[Message], options: Mapping[str, Any]
    ) -> AnswerRequest:
        """Build a request from messages and the arguments with which agno calls a model."""
        functions = (tool["function"] for tool in options.get("tools") or ())
        tools, choice = select_tools(functions, options.get("tool_choice"))

        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        settings = {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "top_p": self.top_p,
            "stop": tuple(stop or ()) or None,
            "seed": self.seed,
            "reasoning_effort": self.reasoning_effort,
            "timeout_seconds": self.timeout,
        }

        # The runner of agno does not see the runs that the code of a tool starts.
        access = get_access()
        run: Any = options.get("run_response")
        is_seen = run is None or access.seen_runs is None or run.run_id in access.seen_runs

        converted = _convert_messages(messages)
        return AnswerRequest(
            self.id,
            converted.instructions,
            converted.messages,
            tools,
            settings,
            choice,
            _read_format(options.get("response_format")),
            select_options(options),
            is_reported=access.reports("agno") and is_seen,
        )


def _read_format(response_format: Any) -> AnswerSchema | None:
    """Return the schema of an answer: a pydantic model, or a schema in the form of OpenAI."""
    if isinstance(response_format, type):
        schema = get_response_schema_for_provider(response_format, "openai")
        return AnswerSchema(schema, response_format.__name__, response_format.__doc__)
    return read_format(response_format)


_STATUSES = {
    "CONTEXT_EXCEEDED": 400,
    "MODEL_ANSWER_INVALID": 400,
    "MODEL_KEY_REJECTED": 401,
    "MODEL_NOT_FOUND": 404,
    "MODEL_REJECTED": 400,
}
"""HTTP statuses for the failures of a model that agno must not repeat."""


@contextmanager
def _calling(model: Model, answer: Message) -> Iterator[None]:
    """Measure a call, and raise the failure of a model as agno does, for retries and fallbacks."""
    answer.metrics.start_timer()
    try:
        yield
    except ExecutionError as failure:
        check_model_failure(failure)
        status = _STATUSES.get(failure.code, 503)
        raise ModelProviderError(failure.detail, status, model.name, model.id) from failure
    answer.metrics.stop_timer()


def _convert_messages(messages: Sequence[Message]) -> NeutralMessages:
    converted = NeutralMessages()
    for message in messages:
        files = _read_files(message)
        text = message.get_content_string() if message.content is not None else ""

        if message.role in ("system", "developer"):
            converted.add_system(text)
        elif message.role == "assistant":
            calls: list[tuple[str, str, dict[str, Any]]] = []
            for call in message.tool_calls or ():
                function = call["function"]
                arguments = keep_arguments(function["arguments"])
                calls.append((call["id"], function["name"], arguments))
            converted.add_answer(text, calls, message.provider_data)
        elif message.role == "tool":
            converted.add_result(message.tool_call_id or "", text, message.tool_name or "")
        else:
            converted.add_user(text, files)

    return converted


def _read_files(message: Message) -> list[LoadedFile]:
    media = [*(message.images or ()), *(message.audio or ()), *(message.files or ())]
    for medium in media:
        if not isinstance(medium.content, bytes) or not medium.mime_type:
            raise ModelProviderError(
                "agentctl.agno.Model takes files with content and mime_type", status_code=400
            )
    if message.videos:
        raise ModelProviderError("agentctl.agno.Model takes no videos", status_code=400)

    return [
        build_inline(medium.content, medium.mime_type, getattr(medium, "filename", None))
        for medium in media
    ]


def _build_response(piece: Delta | Answered) -> ModelResponse:
    if isinstance(piece, Answered):
        return _build_end(piece)
    if piece.is_thinking:
        return ModelResponse(reasoning_content=piece.text)
    return ModelResponse(content=piece.text)


def _build_end(answered: Answered, thinking: str | None = None) -> ModelResponse:
    """Build the response with the calls and the usage of an answer.

    Args:
        thinking: the thinking of an answer that arrives as a whole, whose text is in the response
            too; None for the end of a stream.
    """
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": write_arguments(call["arguments"])},
        }
        for call in answered.answer.calls
    ]
    response = ModelResponse(tool_calls=calls)

    if thinking is not None:
        response.role = "assistant"
        response.content = answered.answer.text
        response.reasoning_content = thinking or None

    if answered.native is not None:
        response.provider_data = {NATIVE: answered.native}
    if (usage := answered.usage) is not None:
        response.response_usage = MessageMetrics(**usage)
    return response
