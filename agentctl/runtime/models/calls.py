"""The interface of models: a call, its answer, and its failure, independent of any library.

A connection sends a call to its provider and passes text, thinking and usage to a sink while they
arrive. `openai_chat` implements it for OpenAI-compatible endpoints, `library_model` for the models
of the model library, `demo` for the models without a network (decision 48).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from agentctl.records.sessions import TOKEN_COUNTERS
from agentctl.records.strict import has_too_many_values
from agentctl.records.text import new_id, replace_unstorable
from agentctl.runtime.failures import MODEL_FAILURES, ExecutionError, FailureCode
from agentctl.runtime.files import FileAccess, FileKind, LoadedFile
from agentctl.runtime.json_values import NOT_AN_OBJECT, clean_json_value, find_large_integer
from agentctl.runtime.tracing import MAXIMUM_TOKENS, bound_count

if TYPE_CHECKING:
    from agentctl.config import settings as config
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.models.structured_output import OutputSchema


Message = Mapping[str, Any]
"""A neutral message (`runtime.transcript.transcript`) with the role user, assistant or tool. An
assistant message of the current run may have `native`: a `NativeMessage`."""

MAXIMUM_ARGUMENT_BYTES = 1_048_576
"""Maximum size of the arguments of all tool calls of one answer. They are parsed in one step of the
event loop."""

CALL_OPTIONS = ("parallel_tool_calls", "presence_penalty", "frequency_penalty", "logit_bias")
"""Options of a call that the code of an agent can set, and the configuration cannot."""

UNKNOWN_REASON = "unknown"
"""Finish reason of an answer if the reason of its provider has no neutral name."""


class NativeMessage(NamedTuple):
    """An answer in the form of its provider, which may have data that the neutral form lacks."""

    connection: ModelConnection
    """The connection that received it; no other connection can send it back."""

    value: Any
    """The answer."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call of a model."""

    instructions: str
    """Instructions of the model; `""` without instructions."""

    messages: Sequence[Message]
    """The messages before the answer, oldest first; each tool call has its result."""

    tools: Sequence[ToolRecord]
    """The tools that the model may call."""

    settings: config.ModelSettings
    """Settings of the model, overridden by the settings of the component."""

    tool_choice: str | None = None
    """`required` if the model has to call a tool, or the name of the tool that it has to call; None
    for its own choice."""

    output: OutputSchema | None = None
    """The schema of the answer; None for text."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Further members of a request by their names in the interface of OpenAI. A provider with
    another interface gets only the members of `CALL_OPTIONS` that it has."""

    files: FileAccess | None = None
    """The bytes of the files in the messages; None if no message has files."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """A complete answer."""

    text: str
    """Its text, without the thinking, made storable."""

    calls: list[dict[str, Any]]
    """`id`, `name` and `arguments` of its tool calls, cleaned (`clean_calls`)."""

    finish_reason: str | None
    """The neutral finish reason, or `UNKNOWN_REASON`; None if the provider sent no reason: the
    answer was cut off."""

    native: NativeMessage | None = None
    """See `NativeMessage`; None if the neutral form has everything."""

    response_model: str | None = None
    """The name of the model as the provider has reported it; None if it has not."""

    response_id: str | None = None
    """The id of the answer as the provider has reported it; None if it has not."""

    @property
    def message(self) -> Message:
        """The answer as a message of the following calls."""
        return build_answer(self.text, self.calls, self.native)


class AnswerSink(Protocol):
    """The receiver of an answer while it arrives; see the methods of `Conversation`.

    Each method raises ExecutionError if the answer exceeds a limit.
    """

    def add_text(self, text: str) -> None: ...
    def add_thinking(self, text: str) -> None: ...
    def count_part(self, *, is_call: bool) -> None: ...
    def count_arriving(self, size: int) -> None: ...
    def set_usage(self, usage: Mapping[str, int]) -> None: ...


class ModelFailure(Exception):
    """A model call that failed.

    Args:
        code: error code of the run if no further attempt is made.
        reason: the reason for the log; may contain text of the provider.
        retry_after: seconds after which the provider asks for the next attempt, if it does.
        is_repeatable: False if the provider states that the same request would fail again.
        status: HTTP status of the response of the provider; None if there is none.
    """

    def __init__(
        self,
        code: FailureCode,
        reason: str,
        *,
        retry_after: float | None = None,
        is_repeatable: bool = True,
        status: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.status = status
        self.retry_after = retry_after
        self.is_repeatable = is_repeatable


class ModelConnection(ABC):
    """A model that is ready for use, with connections that all runs share."""

    secret = ""
    """The API key that the provider receives and may repeat in errors; `""` without a key."""

    takes: Sequence[FileKind] = ()
    """The kinds of files that the model takes besides text."""

    @abstractmethod
    async def answer(self, call: ModelCall, sink: AnswerSink) -> ModelAnswer:
        """Call the model and pass its answer to the sink while it arrives.

        Raises:
            ModelFailure: the call failed, or the answer cannot be read.
            ExecutionError: the sink refused a part of the answer.
        """

    def dump_native(self, value: Any) -> Any:
        """Return the value of a `NativeMessage` as a JSON value."""
        return value

    def load_native(self, stored_value: Any) -> Any:
        """Return the value that `dump_native` has stored; None if it cannot be read any more."""
        return stored_value

    @abstractmethod
    async def close(self) -> None:
        """Close the connections to the provider."""


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model that is ready for the calls of a component."""

    id: str
    connection: ModelConnection

    settings: config.ModelSettings
    """Settings of the model, overridden by the settings of the component."""

    source: config.Model
    """The model in the configuration."""


def build_usage(**counters: int) -> dict[str, int]:
    """Return the nine counters of an answer, totals included, each from 0 to `MAXIMUM_TOKENS`.

    Args:
        counters: the counters that the provider has reported, by name, without totals.
    """
    usage = {**dict.fromkeys(TOKEN_COUNTERS, 0), **counters}
    usage["total_tokens"] = usage["input_tokens"] + usage["output_tokens"]
    usage["audio_total_tokens"] = usage["audio_input_tokens"] + usage["audio_output_tokens"]
    if min(usage.values()) >= 0 and max(usage.values()) <= MAXIMUM_TOKENS:
        return usage
    return {name: bound_count(count) for name, count in usage.items()}


def build_answer(text: str, calls: Sequence[Mapping[str, Any]], native: Any) -> dict[str, Any]:
    """Return the neutral message of an answer.

    Args:
        native: the form of its provider: a `NativeMessage`, or `native` of `Answered`.
    """
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = calls
    if native:
        message["native"] = native
    return message


def build_result(call_id: str, name: str, text: str) -> dict[str, Any]:
    """Return the neutral message with the result of a tool call."""
    return {"role": "tool", "content": text, "tool_call_id": call_id, "tool_name": name}


def clean_calls(received_calls: Iterable[tuple[str, str, Any]]) -> list[dict[str, Any]]:
    """Clean the tool calls of an answer for storage.

    The calls get different ids: some servers repeat one id, and a result belongs to one call.

    Args:
        received_calls: id (`""` without an id), name and arguments of each call.

    Raises:
        ModelFailure: the arguments are too large, or have too many values.
    """
    calls = list(received_calls)
    if not calls:
        return []

    texts = [arguments for _, _, arguments in calls if isinstance(arguments, str)]
    if sum(map(len, texts)) > MAXIMUM_ARGUMENT_BYTES:
        raise ModelFailure("MODEL_ANSWER_INVALID", "the arguments of the tool calls are too large")

    if has_too_many_values("".join(texts).encode(errors="replace")):
        raise ModelFailure("MODEL_ANSWER_INVALID", "the arguments have too many values")

    cleaned_calls: list[dict[str, Any]] = []
    ids: set[str] = set()
    for received_id, name, arguments in calls:
        call_id = replace_unstorable(received_id)
        if not call_id or call_id in ids:
            call_id = new_id()
        ids.add(call_id)

        call = {
            "id": call_id,
            "name": replace_unstorable(name),
            "arguments": keep_arguments(arguments),
        }
        cleaned_calls.append(call)

    return cleaned_calls


def keep_arguments(arguments: Any) -> dict[str, Any]:
    """Parse the arguments of a call as `parse_arguments`, without any change of an integer.

    With an integer of more than 64 bits their text is stored under `NOT_AN_OBJECT`: records have no
    such integers, and a text in its place would be another call.
    """
    json_text = arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)
    if find_large_integer(json_text) is not None:
        return {NOT_AN_OBJECT: replace_unstorable(json_text)}
    return parse_arguments(arguments)


def parse_arguments(arguments: Any) -> dict[str, Any]:
    """Parse the arguments of a call: JSON text, a dictionary, or None.

    An empty text and white space are a call without arguments: models write them for tools without
    parameters. Any other value is stored under `NOT_AN_OBJECT`.
    """
    if isinstance(arguments, str) and not arguments.strip():
        return {}

    value: Any
    if isinstance(arguments, dict):
        value = arguments
        text = ""
    else:
        text = replace_unstorable(str(arguments or "{}"))
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None

    if isinstance(value, dict):
        try:
            return {
                replace_unstorable(name): clean_json_value(item) for name, item in value.items()
            }
        except (ValueError, RecursionError):
            # Too deep, or a number that JSON does not have.
            pass
    return {NOT_AN_OBJECT: text or str(arguments)}


NATIVE = "agentctl_native"
"""Name under which the messages of libraries keep `Answered.native`."""


class NeutralMessages:
    """The messages of a request, without system messages."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        """Neutral messages, in their order."""

        self._instructions: list[str] = []
        # The names of the tools by the ids of their calls.
        self._names: dict[str, str] = {}

    @property
    def instructions(self) -> str:
        """The texts of the system."""
        return "\n\n".join(filter(None, self._instructions))

    def add_system(self, text: str) -> None:
        self._instructions.append(text)

    def add_user(self, text: str, files: Sequence[LoadedFile] = ()) -> None:
        message: dict[str, Any] = {"role": "user", "content": text}
        self.messages.append({**message, "files": files} if files else message)

    def add_answer(
        self,
        text: str,
        calls: Iterable[tuple[str, str, Any]],
        library_values: Mapping[str, Any] | None,
    ) -> None:
        """Add an answer of a model.

        Args:
            calls: the id, the name and the arguments of each call.
            library_values: the values that the library keeps with the message, such as `NATIVE`.
        """
        self.messages.append({"role": "assistant", "content": text})
        self.extend_answer(calls=calls, library_values=library_values)

    def extend_answer(
        self,
        text: str = "",
        calls: Iterable[tuple[str, str, Any]] = (),
        library_values: Mapping[str, Any] | None = None,
    ) -> None:
        """Add to the answer before, for a library whose answers have several items."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        answer = self.messages[-1]

        answer["content"] += text

        for call_id, name, arguments in calls:
            self._names[call_id] = name
            call = {"id": call_id, "name": name, "arguments": arguments}
            answer.setdefault("tool_calls", []).append(call)

        native = (library_values or {}).get(NATIVE)
        if native:
            answer["native"] = native

    def add_result(self, call_id: str, text: str, name: str | None = None) -> None:
        """Add the result of a call; without a name, the answer that requested the call names it."""
        tool_name = self._names.get(call_id, "") if name is None else name
        self.messages.append(build_result(call_id, tool_name, text))


def check_model_failure(failure: ExecutionError) -> None:
    """Raise a failure that no model has caused, such as a cancel.

    Called where a library catches failures of models, for its own retries and fallbacks.
    """
    if failure.code not in MODEL_FAILURES:
        raise failure
