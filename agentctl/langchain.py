"""A chat model for LangChain and LangGraph (docs/models.md "Models in code")."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from operator import itemgetter
from typing import Any, Literal

import orjson
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from pydantic import BaseModel, ConfigDict

from agentctl.runtime.files import LoadedFile, build_inline
from agentctl.runtime.json_values import NOT_AN_OBJECT, find_large_integer, write_json_arguments
from agentctl.runtime.models import answering
from agentctl.runtime.models.access import check_model, is_known_call
from agentctl.runtime.models.calls import NATIVE, NeutralMessages, keep_arguments

_SYSTEM_ROLES = ("system", "developer")
_ROLES = ("user", "assistant", *_SYSTEM_ROLES)


class ChatModel(BaseChatModel):  # type: ignore[misc]
    """A model of the configuration as a chat model of LangChain.

    It can be called by the code of a run, such as the nodes and tools of a hosted graph. The model
    has the key, retries, fallbacks and limits of its entry in `[[models]]`; settings that are not
    None override those of the entry.

    Example:
        create_agent(ChatModel(model="fast"), tools=[list_orders])

    Args:
        model: id of the model in the configuration.
        timeout: maximum time in seconds without data from the provider.
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    stop: Sequence[str] | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    timeout: float | None = None

    def __init__(self, **fields: Any) -> None:
        check_model(fields.get("model"))
        super().__init__(**fields)

    @property
    def _llm_type(self) -> str:
        return "agentctl"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        return {"model": self.model}

    def bind_tools(
        self,
        tools: Sequence[Mapping[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return the model with tools.

        Args:
            tool_choice: name of the tool that the model has to call, `any`, `required` or True for
                one of the tools, `none` for no tool, `auto` or None for its own choice.
            kwargs: further arguments of each call.
        """
        functions = [_convert_tool(tool) for tool in tools]
        return self.bind(tools=functions, tool_choice=tool_choice, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: Literal["function_calling", "json_schema"] = "function_calling",
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Return the model with answers that follow a schema.

        Args:
            method: `function_calling` lets the model call a tool with the schema, `json_schema`
                sends the schema to the provider.
            kwargs: as for `BaseChatModel`.

        Raises:
            ValueError: the method is another one.
        """
        if method == "function_calling":
            return super().with_structured_output(schema, include_raw=include_raw, **kwargs)
        if method != "json_schema":
            raise ValueError(f"agentctl.langchain.ChatModel has no method {method!r}")

        json_schema = convert_to_json_schema(schema)
        named_schema = {"name": json_schema.get("title") or "", "schema": json_schema}
        model = self.bind(
            response_format={"type": "json_schema", "json_schema": named_schema},
            # LangSmith shows the schema by this argument.
            ls_structured_output_format={"kwargs": {"method": method}, "schema": json_schema},
        )

        is_model = isinstance(schema, type) and issubclass(schema, BaseModel)
        parser = PydanticOutputParser(pydantic_object=schema) if is_model else JsonOutputParser()
        if not include_raw:
            return model | parser

        # As the base class does: an object with the answer, its value and the error of its parser.
        parsed = RunnablePassthrough.assign(
            parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
        )
        failed = RunnablePassthrough.assign(parsed=lambda _: None)
        return RunnableMap(raw=model) | parsed.with_fallbacks(
            [failed], exception_key="parsing_error"
        )

    def get_num_tokens(self, text: str) -> int:
        """Return the approximate number of tokens: the provider has the exact one."""
        return int(count_tokens_approximately([text]))

    def get_num_tokens_from_messages(
        self, messages: list[BaseMessage], tools: Sequence[Any] | None = None
    ) -> int:
        """Return the approximate number of tokens of messages."""
        functions = [_convert_tool(tool) for tool in tools or ()]
        return int(count_tokens_approximately(messages, tools=functions))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        request = self._build_request(messages, stop, kwargs)
        async with aclosing(answering.stream_answer(request)) as pieces:
            async for piece in pieces:
                chunk = _build_chunk(piece)
                if run_manager is not None:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        request = self._build_request(messages, stop, kwargs)
        with closing(answering.stream_to_thread(request)) as pieces:
            for piece in pieces:
                chunk = _build_chunk(piece)
                if run_manager is not None:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        request = self._build_request(messages, stop, kwargs)
        return _build_result(*await answering.fetch_answer(request))

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        request = self._build_request(messages, stop, kwargs)
        return _build_result(*answering.fetch_to_thread(request))

    def _build_request(
        self, messages: Sequence[BaseMessage], stop: list[str] | None, options: Mapping[str, Any]
    ) -> answering.AnswerRequest:
        """Build a request from messages and the arguments of a call, which override the fields."""
        choice = options.get("tool_choice")
        choice = "required" if choice in (True, "any") else choice
        tools, choice = answering.select_tools(options.get("tools") or (), choice)

        settings = {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "top_p": self.top_p,
            "stop": tuple(stop or self.stop or ()) or None,
            "seed": self.seed,
            "reasoning_effort": self.reasoning_effort,
            "timeout_seconds": self.timeout,
        }
        settings |= {name: options[name] for name in settings if options.get(name) is not None}

        converted = _convert_messages(messages)
        return answering.AnswerRequest(
            self.model,
            converted.instructions,
            converted.messages,
            tools,
            settings,
            choice,
            _read_format(options.get("response_format")),
            answering.select_options(options),
            is_reported=is_known_call.get(),
        )


def _convert_tool(tool: Any) -> Any:
    """Return the function of a tool in the form of OpenAI."""
    converted = convert_to_openai_tool(tool)
    if "function" not in converted:
        kind = converted.get("type")
        raise ValueError(f"agentctl.langchain.ChatModel takes functions, and no tool {kind!r}")
    return converted["function"]


def _read_format(response_format: object) -> answering.AnswerSchema | None:
    """Return the schema of a `response_format` in the form of OpenAI, or of a pydantic model."""
    if isinstance(response_format, type) and issubclass(response_format, BaseModel):
        model = response_format
        return answering.AnswerSchema(model.model_json_schema(), model.__name__, model.__doc__)
    return answering.read_format(response_format)


def _convert_messages(messages: Sequence[BaseMessage]) -> NeutralMessages:
    converted = NeutralMessages()
    for message in messages:
        text = _read_text(message)
        role = message.role if isinstance(message, ChatMessage) else "user"
        if role not in _ROLES:
            raise ValueError(f"agentctl.langchain.ChatModel takes no message of the role {role!r}")

        if isinstance(message, SystemMessage) or role in _SYSTEM_ROLES:
            converted.add_system(text)
        elif isinstance(message, AIMessage):
            calls = [
                (call["id"] or "", call["name"], keep_arguments(call["args"]))
                for call in message.tool_calls
            ]
            converted.add_answer(text, calls, message.additional_kwargs)
        elif isinstance(message, ToolMessage):
            converted.add_result(message.tool_call_id, text, message.name or None)
        elif role == "assistant":
            converted.add_answer(text, (), None)
        elif isinstance(message, HumanMessage | ChatMessage):
            converted.add_user(text, _read_files(message))
        else:
            raise ValueError(f"agentctl.langchain.ChatModel takes no {type(message).__name__}")

    return converted


def _read_text(message: BaseMessage) -> str:
    """Return the text of a message; a tool's result has its other blocks as JSON."""
    if isinstance(message.content, str):
        return message.content

    texts: list[str] = []
    for block in message.content:
        if isinstance(block, str):
            texts.append(block)
        elif block.get("type") == "text":
            texts.append(block["text"])
        elif isinstance(message, ToolMessage):
            texts.append(orjson.dumps(block).decode())
    return "".join(texts)


def _read_files(message: BaseMessage) -> list[LoadedFile]:
    if isinstance(message.content, str):
        return []

    files: list[LoadedFile] = []
    blocks: list[Any] = message.content_blocks
    for block in blocks:
        if block["type"] == "text":
            continue
        if not block.keys() >= {"base64", "mime_type"}:
            kind = block.get("value", block).get("type")
            raise ValueError(
                f"agentctl.langchain.ChatModel takes text, bytes, and no content of type {kind!r}"
            )
        name = (block.get("extras") or block).get("filename")
        files.append(build_inline(block["base64"], block["mime_type"], name))
    return files


def _build_chunk(piece: answering.Delta | answering.Answered) -> ChatGenerationChunk:
    if isinstance(piece, answering.Answered):
        # LangChain completes arguments that are not JSON, such as those of an answer that was cut:
        # it would call the tool with half a text. So they stay the value of `INVALID_JSON`.
        calls = [
            tool_call_chunk(
                name=call["name"],
                args=write_json_arguments(call["arguments"]),
                id=call["id"],
                index=index,
            )
            for index, call in enumerate(piece.answer.calls)
        ]

        details = _build_details(piece, {})
        message = AIMessageChunk(
            content="", tool_call_chunks=calls, chunk_position="last", **details
        )
    elif piece.is_thinking:
        thinking = {"reasoning_content": piece.text}
        message = AIMessageChunk(content="", additional_kwargs=thinking)
    else:
        message = AIMessageChunk(content=piece.text)
    return ChatGenerationChunk(message=message)


def _build_result(thinking: str, answered: answering.Answered) -> ChatResult:
    calls: list[dict[str, Any]] = []
    malformed: list[dict[str, Any]] = []
    for call in answered.answer.calls:
        identity = {"id": call["id"], "name": call["name"]}
        arguments = call["arguments"]
        raw = arguments.get(NOT_AN_OBJECT)
        if raw is None:
            calls.append({**identity, "args": arguments})
        elif find_large_integer(raw) is not None:
            # The text is an object: only the records of a run cannot keep its integer.
            calls.append({**identity, "args": json.loads(raw)})
        else:
            malformed.append({**identity, "args": raw, "error": "not a JSON object"})

    extra = {"reasoning_content": thinking} if thinking else {}
    message = AIMessage(
        content=answered.answer.text,
        tool_calls=calls,
        invalid_tool_calls=malformed,
        **_build_details(answered, extra),
    )
    return ChatResult(generations=[ChatGeneration(message=message)])


def _build_details(answered: answering.Answered, extra: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a message about its answer: all but its content and its calls.

    Args:
        extra: further values that LangChain keeps for the provider, such as the thinking.
    """
    if answered.native is not None:
        extra[NATIVE] = answered.native

    reason = answered.answer.finish_reason
    return {
        "additional_kwargs": extra,
        "usage_metadata": _convert_usage(answered.usage),
        "response_metadata": {
            "model_provider": answering.PROVIDER,
            "model_name": answered.model,
            "finish_reason": "tool_calls" if reason == "tool_call" else reason,
        },
    }


def _convert_usage(usage: Mapping[str, int] | None) -> UsageMetadata | None:
    if usage is None:
        return None
    return UsageMetadata(
        input_tokens=usage["input_tokens"],
        output_tokens=usage["output_tokens"],
        total_tokens=usage["total_tokens"],
        input_token_details={
            "audio": usage["audio_input_tokens"],
            "cache_read": usage["cache_read_tokens"],
            "cache_creation": usage["cache_write_tokens"],
        },
        output_token_details={
            "audio": usage["audio_output_tokens"],
            "reasoning": usage["reasoning_tokens"],
        },
    )
