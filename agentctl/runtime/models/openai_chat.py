"""Models of endpoints with the chat completions interface of OpenAI.

The client of the vendor and the model library build an object tree for each token. This client
reads the events of a stream with orjson, and keeps what the run needs (decision 48).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import httpx2
import orjson

from agentctl.config.providers import find_url
from agentctl.records.files import FileReference
from agentctl.records.run_spec import REQUIRED
from agentctl.runtime.files import (
    FileAccess,
    LoadedFile,
    encode_base64,
    find_format,
    find_kind,
    get_reference,
    measure_base64,
    show_files,
    stream_bytes,
)
from agentctl.runtime.json_values import write_json_arguments
from agentctl.runtime.models.calls import (
    Message,
    ModelAnswer,
    ModelCall,
    ModelConnection,
    NativeMessage,
    clean_calls,
)
from agentctl.runtime.models.openai_answer import THINKING_TAGS, OpenAIAnswer, UnreadableAnswer
from agentctl.runtime.models.openai_errors import build_status_failure, build_transport_failure
from agentctl.runtime.models.provider import (
    build_http_client,
    build_stream_transport,
    iterate_events,
    limit_response,
)
from agentctl.runtime.models.stream_transport import encode_head, find_origin
from agentctl.runtime.tracing import HEADER, find_traceparent
from agentctl.runtime.transcript.history import clean_name

if TYPE_CHECKING:
    from agentctl.config import settings as config
    from agentctl.config.settings import Provider
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.models.calls import AnswerSink
    from agentctl.runtime.models.structured_output import OutputSchema

DRAIN_SECONDS = 0.1
"""Maximum time from the last event to the end of a response whose connection is kept."""

_OUTPUT_NAME = "final_result"
"""Name of a schema that has none: the interface requires one."""

_PROMPTED_OUTPUT = (
    "Always respond with a JSON object that is compatible with this schema:\n\n{schema}\n\n"
    "Do not include any text or Markdown fencing before or after."
)

_SCHEMA_VENDORS = ("openai/", "anthropic/", "google/", "x-ai/")
"""Vendors of models at OpenRouter that take a schema for the answer."""

_STRICT_KEYWORDS = {
    "$defs", "$ref", "additionalProperties", "anyOf", "const", "description", "enum", "items",
    "properties", "required", "title", "type",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dialect:
    """The differences of a provider from the interface of OpenAI."""

    token_limit: str = "max_completion_tokens"
    """Name of the member with the maximum number of tokens."""

    nests_effort: bool = False
    """True if the effort is a member of the object `reasoning`."""

    takes_strict: bool = True
    """True if schemas may have the member `strict`."""


DIALECTS: dict[Provider, Dialect] = {
    "openai": Dialect(),
    "azure": Dialect(),
    "groq": Dialect(),
    "openrouter": Dialect("max_tokens", nests_effort=True),
    "ollama": Dialect(takes_strict=False),
}


class OpenAIConnection(ModelConnection):
    """An endpoint with the interface of OpenAI.

    Args:
        key: the API key; `""` without a key.
        run_bytes: maximum size of a run, and therefore of an answer.
    """

    def __init__(self, model: config.Model, key: str, run_bytes: int) -> None:
        self.secret = key
        self.takes = model.takes
        self._run_bytes = run_bytes

        # Takes the place of the bytes of a file until a body is sent; no one else knows it.
        self._mark = secrets.token_hex(16)

        self._model = model.model
        self._dialect = DIALECTS[model.provider]
        self._takes_schemas = _takes_schemas(model)

        url = _build_url(model)
        self._transport = build_stream_transport(url)
        # This client knows proxies, and sends a body while it is read: no file is whole in memory.
        self._http = build_http_client(run_bytes, url=url)

        self._url = httpx2.URL(url)
        self._origin = find_origin(self._url)
        self._timeouts = self._http.timeout.as_dict()

        headers = self._http.headers.copy()
        headers["Content-Type"] = "application/json"
        headers["Accept"] = "text/event-stream, application/json"

        if key and model.api_version:
            headers["api-key"] = key
        elif key:
            headers["Authorization"] = f"Bearer {key}"

        # The fields are merged once: for each request that was half of the CPU time to build it.
        # A GET, because the length of a body is not part of them; not built by the client, which
        # adds the trace of the run that opens this connection.
        request = httpx2.Request("GET", self._url, headers=headers)
        self._fields = request.headers.raw

    async def answer(self, call: ModelCall, sink: AnswerSink) -> ModelAnswer:
        answer = OpenAIAnswer(sink)
        try:
            response = await self._send(call)
            try:
                await _read_response(response, answer)
            finally:
                await response.aclose()
        except httpx2.HTTPError as error:
            raise build_transport_failure(error) from error
        return self._complete(answer)

    async def close(self) -> None:
        await self._http.aclose()
        if self._transport is not None:
            await self._transport.aclose()

    async def _send(self, call: ModelCall) -> httpx2.Response:
        seconds = call.settings.timeout_seconds
        timeouts = self._timeouts if seconds is None else httpx2.Timeout(seconds).as_dict()

        messages = await show_files(call.messages, self.takes, call.files)
        files = [file for message in messages for file in message.get("files", ())]

        body = orjson.dumps(self._build_body(call, messages))
        fields = [*self._fields]
        traceparent = find_traceparent("models")
        if traceparent is not None:
            fields.append((HEADER.encode(), traceparent.encode()))

        if files or self._transport is None:
            pieces = body.split(self._mark.encode())
            sizes = (measure_base64(get_reference(file).size) for file in files)
            length = sum(map(len, pieces)) + sum(sizes)
            request = httpx2.Request(
                "POST",
                self._url,
                headers=[*fields, (b"Content-Length", b"%d" % length)],
                content=_stream_body(pieces, files, call.files),
                extensions={"timeout": timeouts},
            )
            return await self._http.send(request, stream=True)

        # Without the layers of a client: they take 100 of the 230 CPU us of a request.
        fields.append((b"Content-Length", b"%d" % len(body)))

        data = encode_head("POST", self._url, fields) + body
        response = await self._transport.send(self._origin, data, timeouts)
        return limit_response(response, self._run_bytes)

    def _build_body(self, call: ModelCall, messages: Sequence[Message]) -> dict[str, Any]:
        instructions = call.instructions
        body: dict[str, Any] = {
            "model": self._model,
            "messages": None,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

        if call.output is not None and self._takes_schemas:
            body["response_format"] = self._build_format(call.output)
        elif call.output is not None:
            schema = _PROMPTED_OUTPUT.format(schema=orjson.dumps(call.output.json_schema).decode())
            instructions = f"{instructions}\n\n{schema}" if instructions else schema

        if call.tools:
            body["tools"] = [self._build_tool(tool) for tool in call.tools]
            body["tool_choice"] = _build_choice(call.tool_choice)

        body["messages"] = [*_build_messages(instructions, messages, self, self._mark)]

        options = dict(call.options)
        if not call.tools:
            # OpenAI refuses it without tools.
            options.pop("parallel_tool_calls", None)

        return {**body, **options, **self._build_settings(call.settings)}

    def _build_format(self, output: OutputSchema) -> dict[str, Any]:
        schema: dict[str, Any] = {"name": output.name or _OUTPUT_NAME, "schema": output.json_schema}
        if output.description:
            schema["description"] = output.description
        if self._dialect.takes_strict:
            schema["strict"] = is_strict(output.json_schema)
        return {"type": "json_schema", "json_schema": schema}

    def _build_tool(self, tool: ToolRecord) -> dict[str, Any]:
        function: dict[str, Any] = {
            "name": tool["name"],
            "description": tool["description"] or "",
            "parameters": tool["parameters"],
        }
        if self._dialect.takes_strict and is_strict(tool["parameters"]):
            function["strict"] = True
        return {"type": "function", "function": function}

    def _build_settings(self, settings: config.ModelSettings) -> dict[str, Any]:
        effort: dict[str, Any] = {"reasoning_effort": settings.reasoning_effort}
        if self._dialect.nests_effort and settings.reasoning_effort is not None:
            effort = {"reasoning": {"effort": settings.reasoning_effort}}

        candidates = {
            "temperature": settings.temperature,
            self._dialect.token_limit: settings.max_tokens,
            "top_p": settings.top_p,
            "stop": list(settings.stop) or None,
            "seed": settings.seed,
            **effort,
        }

        chosen = {name: value for name, value in candidates.items() if value is not None}
        return {**chosen, **(settings.extra_body or {})}

    def _complete(self, answer: OpenAIAnswer) -> ModelAnswer:
        received_calls = [call for call in answer.calls if not call.is_empty]
        if not all(call.name for call in received_calls):
            raise UnreadableAnswer("a tool call has no name")
        calls = clean_calls((call.id, call.name, call.given_arguments) for call in received_calls)

        # The thinking and the data of calls that a later request has to repeat.
        fields: dict[str, Any] = {
            field: "".join(pieces) for field, pieces in answer.thinking.items()
        }
        details = answer.details.join()
        if details:
            fields["reasoning_details"] = details
        extras = dict[str, Any]()
        for call, received_call in zip(calls, received_calls, strict=True):
            if received_call.extra is not None:
                extras[call["id"]] = received_call.extra

        native = None
        if fields or extras:
            native = NativeMessage(self, (fields, extras))
        return ModelAnswer(
            text="".join(answer.texts),
            calls=calls,
            finish_reason=answer.finish_reason,
            native=native,
            response_model=answer.model,
            response_id=answer.id,
        )


async def _read_response(response: httpx2.Response, answer: OpenAIAnswer) -> None:
    """Read a response to its end, so that its connection can be kept."""
    if not response.is_success:
        raise build_status_failure(response, await response.aread())

    if response.headers.get("content-type", "").startswith("application/json"):
        answer.add_completion(await response.aread())
        return

    portions = iterate_events(response)
    async for events in portions:
        answer.add_events(events)
        if answer.done:
            break

    # The answer is complete: a failure now costs only the connection.
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in portions:
                pass
    except (TimeoutError, httpx2.HTTPError):
        pass


def _build_url(model: config.Model) -> str:
    base = find_url(model).rstrip("/")
    if not model.api_version:
        return f"{base}/chat/completions"
    deployment = quote(model.model, safe="")
    version = quote(model.api_version, safe="")
    return f"{base}/openai/deployments/{deployment}/chat/completions?api-version={version}"


def _takes_schemas(model: config.Model) -> bool:
    """Return True if a model takes a JSON Schema for the answer, else it gets instructions."""
    if model.provider == "openrouter":
        return model.model.startswith(_SCHEMA_VENDORS)
    if model.provider != "ollama":
        return True
    # The models in the cloud of Ollama take none.
    host = urlsplit(model.base_url).hostname or ""
    return not model.model.endswith("-cloud") and not f".{host}".endswith(".ollama.com")


def _build_choice(choice: str | None) -> str | dict[str, Any]:
    if choice in (None, REQUIRED):
        return choice or "auto"
    return {"type": "function", "function": {"name": choice}}


def _build_messages(
    instructions: str, messages: Iterable[Message], connection: ModelConnection, mark: str
) -> Iterable[dict[str, Any]]:
    if instructions:
        yield {"role": "system", "content": instructions}

    for message in messages:
        role = message["role"]
        content = message["content"]

        if role == "tool":
            yield {"role": role, "tool_call_id": message["tool_call_id"], "content": content}
        elif role == "assistant":
            native: NativeMessage | None = message.get("native")
            own_fields = native.value if native and native.connection is connection else ({}, {})
            assistant_message = _build_assistant_message(message, *own_fields)
            if assistant_message is not None:
                yield assistant_message
        elif files := message.get("files"):
            text = [{"type": "text", "text": content}] if content else []
            parts = (_build_part(get_reference(file), mark) for file in files)
            yield {"role": role, "content": [*text, *parts]}
        else:
            yield {"role": role, "content": content}


def _build_part(file: FileReference, mark: str) -> dict[str, Any]:
    """Build the part of a file, with `mark` in the place of its base64 form."""
    kind = find_kind(file.media_type)
    url = f"data:{file.media_type};base64,{mark}"
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "pdf":
        return {"type": "file", "file": {"filename": file.name, "file_data": url}}
    return {"type": "input_audio", "input_audio": {"data": mark, "format": find_format(file)}}


async def _stream_body(
    pieces: Sequence[bytes], files: Sequence[FileReference | LoadedFile], access: FileAccess | None
) -> AsyncIterator[bytes]:
    """Yield a body: its pieces, with the base64 form of a file between two of them."""
    for piece, file in zip(pieces, files, strict=False):
        yield piece
        async for part in encode_base64(stream_bytes(file, access)):
            yield part
    yield pieces[-1]


def _build_assistant_message(
    message: Message, fields: Mapping[str, Any], extras: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Build an answer; None for an empty one, which the interface refuses.

    Args:
        fields: the thinking by its field, `""` for tags in the text.
        extras: further data of the calls by their ids.
    """
    content = message["content"]
    calls = message.get("tool_calls", ())

    if "" in fields:
        start, end = THINKING_TAGS
        content = f"{start}\n{fields['']}\n{end}\n\n{content}"
    if not content.strip() and not calls:
        return None

    assistant_message: dict[str, Any] = {"role": "assistant", "content": content or None}
    assistant_message |= {name: value for name, value in fields.items() if name}
    if calls:
        assistant_message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {
                    "name": clean_name(call["name"]),
                    "arguments": write_json_arguments(call["arguments"]),
                },
                **({"extra_content": extras[call["id"]]} if call["id"] in extras else {}),
            }
            for call in calls
        ]

    return assistant_message


def is_strict(schema: object) -> bool:
    """Return True if a provider can enforce a schema as it is written.

    Every object lists all of its properties as required and allows no others, and no keyword is
    used that providers refuse in this mode.
    """
    if not isinstance(schema, dict) or not schema.keys() <= _STRICT_KEYWORDS:
        return False

    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties")
        if schema.get("additionalProperties") is not False or not isinstance(properties, dict):
            return False
        if set(schema.get("required", ())) != properties.keys():
            return False

    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    inner += schema.get("anyOf", ())

    if "items" in schema:
        inner.append(schema["items"])

    return all(map(is_strict, inner))
