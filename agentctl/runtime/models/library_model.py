"""Models of the model library pydantic-ai: providers with another interface than OpenAI's.

This module and the library of a provider are imported only if a configured model needs them. The
clients of the providers get the HTTP client of `runtime.models.provider`, so that the bounds of an
answer are the same, except for Bedrock: boto3 has its own client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import httpx2
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import (
    AgentRunError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRequestRejectedError,
    ModelRequestTimeout,
    ModelTimeoutError,
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition

from agentctl.config.providers import PROVIDERS, find_url
from agentctl.records.proxies import check_proxy
from agentctl.records.run_spec import REQUIRED
from agentctl.records.text import read_name, replace_unstorable
from agentctl.runtime.failures import (
    ExecutionError,
    classify_refusal,
    is_context_exceeded,
    is_temporary_status,
)
from agentctl.runtime.models.calls import (
    CALL_OPTIONS,
    UNKNOWN_REASON,
    ModelAnswer,
    ModelCall,
    ModelConnection,
    ModelFailure,
    NativeMessage,
    clean_calls,
)
from agentctl.runtime.models.conversion import build_request, extract_usage
from agentctl.runtime.models.provider import (
    CONNECT_SECONDS,
    READ_SECONDS,
    LimitedClient,
    UnusableResponse,
    build_http_client,
)
from agentctl.work.run_scope import outside_run

if TYPE_CHECKING:
    from typing import Literal

    from pydantic_ai.messages import ModelResponseStreamEvent
    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings

    from agentctl.config import settings as config
    from agentctl.runtime.failures import FailureCode
    from agentctl.runtime.models.calls import AnswerSink

    NativeOutput = Literal["always", "without_tools", "never"]

_TEXT_FIELDS = ("args", "args_delta", "content", "content_delta", "tool_name_delta")
"""Attributes with the data of the parts and deltas that are not text."""

_EVENT_OVERHEAD_BYTES = 16
"""Size of an event without its text, for `limits.run_bytes`."""

_GATEWAY_TIMEOUTS = {408, 504}
"""The statuses of proxies that have waited for a provider."""

_PLACEHOLDER_KEY = "not-needed"
"""Key for private endpoints that need none: the client libraries require a value."""

_BEDROCK_CONNECTIONS = 40
"""Connections that are kept: the library has this number of threads."""

_log = logging.getLogger("agentctl.runtime")


class LibraryConnection(ModelConnection):
    """A model of the library."""

    native_output: NativeOutput = "always"
    """"always" if the provider takes a JSON Schema for the answer, "without_tools" if it does so
    for a call without tools, or "never". Models that do not take a schema get it as instructions.
    """

    ignored_settings: tuple[str, ...] = ()
    """Settings that the provider does not have. An agent may set them for another model."""

    def __init__(self, model: Model) -> None:
        self.model = model

    async def answer(self, call: ModelCall, sink: AnswerSink) -> ModelAnswer:
        try:
            response = await self._request(call, sink)
        except (AgentRunError, httpx2.HTTPError) as error:
            raise to_model_failure(error) from error
        return self._complete(response)

    def _build_settings(self, call: ModelCall) -> ModelSettings | None:
        ignored: dict[str, Any] = dict.fromkeys(self.ignored_settings)
        settings = replace(call.settings, **ignored)
        effort = settings.reasoning_effort

        converted: dict[str, Any] = {
            "temperature": settings.temperature,
            "max_tokens": settings.max_tokens,
            "top_p": settings.top_p,
            "stop_sequences": list(settings.stop) or None,
            "seed": settings.seed,
            "timeout": settings.timeout_seconds,
            "extra_body": settings.extra_body,
            "thinking": False if effort == "none" else effort,
        }

        values = {name: value for name, value in converted.items() if value is not None}

        if call.tool_choice is not None:
            is_any = call.tool_choice == REQUIRED
            values["tool_choice"] = REQUIRED if is_any else [call.tool_choice]

        # The library ignores other settings too, with a warning on stderr.
        option_names = [
            name for name in CALL_OPTIONS if name not in self.model.unsupported_settings
        ]
        values |= {name: call.options[name] for name in option_names if name in call.options}

        return cast("ModelSettings", values) if values else None

    def dump_native(self, value: ModelResponse) -> Any:
        return ModelMessagesTypeAdapter.dump_python([value], mode="json")

    def load_native(self, stored_message: Any) -> ModelResponse | None:
        try:
            (message,) = ModelMessagesTypeAdapter.validate_python(stored_message)
        except ValueError:
            return None

        return message if isinstance(message, ModelResponse) else None

    async def _request(self, call: ModelCall, sink: AnswerSink) -> ModelResponse:
        request = model_request_stream(
            self.model,
            await build_request(call, self),
            model_settings=self._build_settings(call),
            model_request_parameters=self._build_parameters(call),
            instrument=False,
        )

        async with AsyncExitStack() as stack:
            with _reject_unreadable_answers(), outside_run():
                stream = await stack.enter_async_context(request)

            events = aiter(stream)
            try:
                while True:
                    with _reject_unreadable_answers():
                        event = await anext(events, None)
                    if event is None:
                        break
                    _pass_event(event, sink)
            finally:
                sink.set_usage(extract_usage(stream.usage))

            with _reject_unreadable_answers():
                return stream.get()

    def _build_parameters(self, call: ModelCall) -> ModelRequestParameters:
        tools = [
            ToolDefinition(
                name=tool["name"],
                description=tool["description"],
                parameters_json_schema=tool["parameters"],
            )
            for tool in call.tools
        ]

        output = call.output
        if output is None:
            return ModelRequestParameters(function_tools=tools)

        is_native = self.native_output == "always"
        if self.native_output == "without_tools":
            is_native = not tools
        if not self.model.profile.get("supports_json_schema_output", False):
            is_native = False

        return ModelRequestParameters(
            function_tools=tools,
            output_mode="native" if is_native else "prompted",
            output_object=OutputObjectDefinition(
                output.json_schema, name=output.name, description=output.description
            ),
        )

    def _complete(self, response: ModelResponse) -> ModelAnswer:
        try:
            parts = response.tool_calls
            calls = clean_calls((call.tool_call_id, call.tool_name, call.args) for call in parts)
        except Exception as error:
            raise _unreadable(error) from error

        reason: str | None = response.finish_reason
        if not reason and (response.provider_details or {}).get("finish_reason"):
            reason = UNKNOWN_REASON

        for part in response.parts:
            if isinstance(part, TextPart | ThinkingPart):
                part.content = replace_unstorable(part.content)

        for part, call in zip(response.tool_calls, calls, strict=True):
            part.tool_name = call["name"]
            part.tool_call_id = call["id"]
            part.args = call["arguments"]

        texts = [part.content for part in response.parts if isinstance(part, TextPart)]
        return ModelAnswer(
            text="".join(texts),
            calls=calls,
            finish_reason=reason,
            native=NativeMessage(self, response),
            response_model=read_name(response.model_name),
            response_id=read_name(response.provider_response_id),
        )


def to_model_failure(error: AgentRunError | httpx2.HTTPError) -> ModelFailure:
    """Return the failure of a call for an exception of the library.

    While an error body is read, the library does not wrap failures of the connection.
    """
    unusable_response = _find_unusable_response(error)
    text = f"{error} ({unusable_response})" if unusable_response else str(error)

    is_repeatable = not isinstance(error, ModelQuotaExceededError)
    headers = error.headers if isinstance(error, ModelHTTPError) else None
    # Some providers state that the same request would fail again.
    if headers and headers.get("x-should-retry") == "false":
        is_repeatable = False

    return ModelFailure(
        _find_failure_code(error),
        f"{type(error).__name__}: {text}",
        retry_after=getattr(error, "retry_after", None),
        is_repeatable=is_repeatable,
        status=_find_status(error),
    )


def _find_status(error: AgentRunError | httpx2.HTTPError) -> int | None:
    """Return the HTTP status of a failure; a redirect has it only at the cause of the error."""
    status = getattr(error, "status_code", getattr(error.__cause__, "status_code", None))
    return status if isinstance(status, int) else None


def _find_failure_code(error: AgentRunError | httpx2.HTTPError) -> FailureCode:
    if isinstance(error.__cause__, ValueError) or _find_unusable_response(error):
        # The answer arrived and is not readable, such as half a JSON document.
        return "MODEL_ANSWER_INVALID"

    if isinstance(error, httpx2.TimeoutException | ModelTimeoutError | ModelRequestTimeout):
        return "MODEL_TIMEOUT"
    if isinstance(error, ModelHTTPError) and error.status_code in _GATEWAY_TIMEOUTS:
        return "MODEL_TIMEOUT"

    if isinstance(error, ModelContextWindowExceededError):
        return "CONTEXT_EXCEEDED"
    if isinstance(error, ModelRequestRejectedError) and is_context_exceeded(str(error)):
        return "CONTEXT_EXCEEDED"

    if isinstance(error, UnexpectedModelBehavior):
        return "MODEL_ANSWER_INVALID"

    status = _find_status(error)
    if isinstance(error, ModelAuthenticationError):
        return "MODEL_KEY_REJECTED"
    if isinstance(error, ModelNotFoundError):
        return "MODEL_NOT_FOUND"
    if isinstance(error, ModelRequestRejectedError):
        return classify_refusal(status, str(error))

    # The library has a class for each category of failures; the two bases are for all others.
    has_category = type(error) not in (ModelAPIError, ModelHTTPError)
    if not has_category and status is not None and not is_temporary_status(status):
        return classify_refusal(status, str(error))

    if isinstance(error, ModelAPIError | httpx2.HTTPError):
        return "MODEL_UNAVAILABLE"

    return "INTERNAL"


def _find_unusable_response(error: BaseException | None) -> UnusableResponse | None:
    while error is not None and not isinstance(error, UnusableResponse):
        error = error.__cause__
    return error


@contextmanager
def _reject_unreadable_answers() -> Iterator[None]:
    """Report an exception of the library as a fault of the provider's answer.

    The library reads most fields of an answer without a check of their types.

    Raises:
        ModelFailure: the library raised an exception that is not about models.
    """
    try:
        yield
    except (AgentRunError, httpx2.HTTPError):
        raise
    except Exception as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> ModelFailure:
    reason = f"the answer cannot be read: {type(error).__name__}: {error}"
    return ModelFailure("MODEL_ANSWER_INVALID", reason)


def _pass_event(event: ModelResponseStreamEvent, sink: AnswerSink) -> None:
    piece: Any
    if isinstance(event, PartDeltaEvent):
        piece = event.delta
    elif isinstance(event, PartStartEvent):
        piece = event.part
        sink.count_part(is_call=isinstance(piece, ToolCallPart))
    else:
        return

    if isinstance(piece, TextPartDelta):
        sink.add_text(piece.content_delta)
    elif isinstance(piece, TextPart):
        sink.add_text(piece.content)
    elif isinstance(piece, ThinkingPartDelta):
        sink.count_arriving(_EVENT_OVERHEAD_BYTES)
        sink.add_thinking(piece.content_delta or "")
    elif isinstance(piece, ThinkingPart):
        sink.count_arriving(_EVENT_OVERHEAD_BYTES)
        sink.add_thinking(piece.content)
    else:
        texts = (getattr(piece, name, None) for name in _TEXT_FIELDS)
        size = sum(len(str(text)) for text in texts if text)
        sink.count_arriving(_EVENT_OVERHEAD_BYTES + size)


class _HttpConnection(LibraryConnection):
    """A connection whose client uses the HTTP client of this package."""

    def __init__(self, model: Model, http: LimitedClient) -> None:
        super().__init__(model)
        self._http = http

    async def close(self) -> None:
        await self._http.aclose()


def connect_library(model: config.Model, key: str, run_bytes: int) -> LibraryConnection:
    """Connect a model, from its entry, its API key and the maximum size of a run."""
    connection: LibraryConnection
    if model.provider == "bedrock":
        # boto3 reads the proxy from the environment itself.
        check_proxy(model.base_url)
        connection = _connect_bedrock(model, key)
    else:
        build, native_output = _PROVIDERS[model.provider]
        url = find_url(model)
        http = build_http_client(run_bytes, url=url)
        library_model = build(model.model, key or _PLACEHOLDER_KEY, url, http)
        connection = _HttpConnection(library_model, http)
        connection.native_output = native_output

    connection.secret = key
    connection.takes = model.takes
    connection.ignored_settings += PROVIDERS[model.provider].ignored_settings

    return connection


def _build_anthropic(name: str, key: str, url: str, http: LimitedClient) -> Model:
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    client = AsyncAnthropic(
        api_key=key, base_url=url, max_retries=0, timeout=http.timeout, http_client=http
    )
    return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client))


def _build_google(name: str, key: str, url: str, http: LimitedClient) -> Model:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    return GoogleModel(name, provider=GoogleProvider(api_key=key, base_url=url, http_client=http))


def _build_mistral(name: str, key: str, url: str, http: LimitedClient) -> Model:
    from pydantic_ai.models.mistral import MistralModel
    from pydantic_ai.providers.mistral import MistralProvider

    provider = MistralProvider(api_key=key, base_url=url, http_client=http)
    return MistralModel(name, provider=provider)


_PROVIDERS: dict[str, tuple[Callable[[str, str, str, LimitedClient], Model], NativeOutput]] = {
    "anthropic": (_build_anthropic, "always"),
    "google": (_build_google, "without_tools"),
    "mistral": (_build_mistral, "never"),
}
"""The model of a provider, and when it takes a JSON Schema."""


class _BedrockConnection(LibraryConnection):
    """Amazon Bedrock, which boto3 calls in threads. The timeout of the client applies."""

    ignored_settings = ("timeout_seconds",)

    def __init__(self, model: Model, client: Any) -> None:
        super().__init__(model)
        self._client = client

    async def close(self) -> None:
        await asyncio.to_thread(self._client.close)


def _connect_bedrock(model: config.Model, key: str) -> LibraryConnection:
    """Connect to Bedrock with an API key, or with the credentials that boto3 finds."""
    import boto3
    from botocore.config import Config
    from botocore.session import Session
    from botocore.tokens import FrozenAuthToken
    from pydantic_ai.models.bedrock import BedrockConverseModel
    from pydantic_ai.providers.bedrock import BedrockProvider

    base = Session()
    options = dict[str, Any]()

    if not key and base.get_credentials() is None:
        _log.error("model %s: there are no AWS credentials, and api_key_env is not set", model.id)
        raise ExecutionError(
            "MODEL_UNAVAILABLE",
            f"The AWS credentials of the model {model.id} are not set: set AWS_PROFILE or"
            " AWS_ACCESS_KEY_ID, or api_key_env",
        )

    if key:
        options["signature_version"] = "bearer"
        base.register_component("token_provider", _ApiKeyProvider(FrozenAuthToken(key)))
        # Without any, boto3 would search for credentials, also over the network.
        base.set_credentials(_PLACEHOLDER_KEY, _PLACEHOLDER_KEY)

    client = boto3.Session(botocore_session=base, region_name=model.region).client(
        "bedrock-runtime",
        endpoint_url=model.base_url or None,
        config=Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=model.settings.timeout_seconds or READ_SECONDS,
            retries={"total_max_attempts": 1},
            max_pool_connections=_BEDROCK_CONNECTIONS,
            ignore_configured_endpoint_urls=True,
            **options,
        ),
    )

    provider = BedrockProvider(bedrock_client=client)
    return _BedrockConnection(BedrockConverseModel(model.model, provider=provider), client)


class _ApiKeyProvider:
    """The source of the bearer token of a boto3 session."""

    def __init__(self, token: object) -> None:
        self._token = token

    def load_token(self, **_: Any) -> object:
        return self._token
