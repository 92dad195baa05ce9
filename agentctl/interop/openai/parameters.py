"""The parameters of requests, and the rule for each parameter that is not honoured.

A parameter that is not honoured is refused, unless its value asks for what happens anyway. The
operator can name parameters to ignore (`openai.ignored_parameters`); the response names those that
were ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentctl.errors import ValidationFailed
from agentctl.interop.openai.failures import RefusedParameter
from agentctl.records.text import check_json, check_text
from agentctl.runtime.transcript.answer import MAXIMUM_CHARACTERS, MAXIMUM_TEXTS
from agentctl.server.answers import Call
from agentctl.server.content import parse_pairs
from agentctl.server.given_files import GivenFile, read_data_url

MAXIMUM_MESSAGES = 2_048
"""Maximum number of messages in a request."""

_AGENT_SETS_IT = "it is a setting of the agent"
_NO_TOOLS = "the agent has its own tools and calls them itself"
_NO_FUNCTIONS = "use tools and tool_choice, which replaced it"
_TEXT_ONLY = "answers are text"
_CURE = "; leave it out, or have the operator add it to openai.ignored_parameters"

_Rule = tuple[str, tuple[object, ...]]
"""The reason why a parameter is refused, and the values that are accepted."""

_COMMON: dict[str, _Rule] = {
    "prompt_cache_retention": (_AGENT_SETS_IT, ("in_memory", "in-memory", "24h")),
    "service_tier": (_AGENT_SETS_IT, ("auto", "default")),
    "temperature": (_AGENT_SETS_IT, (1,)),
    "top_logprobs": (_TEXT_ONLY, (0,)),
    "top_p": (_AGENT_SETS_IT, (1,)),
}

CHAT_RULES: dict[str, _Rule] = {
    **_COMMON,
    "audio": (_TEXT_ONLY, ()),
    "frequency_penalty": (_AGENT_SETS_IT, (0,)),
    "function_call": (_NO_FUNCTIONS, ("auto", "none")),
    "functions": (_NO_FUNCTIONS, ([],)),
    "logit_bias": (_AGENT_SETS_IT, ({},)),
    "logprobs": (_TEXT_ONLY, (False,)),
    "max_completion_tokens": (_AGENT_SETS_IT, ()),
    "max_tokens": (_AGENT_SETS_IT, ()),
    "modalities": (_TEXT_ONLY, (["text"],)),
    "n": ("a run has one answer", (1,)),
    "prediction": (_AGENT_SETS_IT, ()),
    "presence_penalty": (_AGENT_SETS_IT, (0,)),
    "reasoning_effort": (_AGENT_SETS_IT, ()),
    "seed": (_AGENT_SETS_IT, ()),
    "verbosity": (_AGENT_SETS_IT, ()),
    "web_search_options": (_NO_TOOLS, ()),
}

RESPONSE_RULES: dict[str, _Rule] = {
    **_COMMON,
    "context_management": (_AGENT_SETS_IT, ([],)),
    "include": (_TEXT_ONLY, ([], ["reasoning.encrypted_content"])),
    "max_output_tokens": (_AGENT_SETS_IT, ()),
    "max_tool_calls": (_AGENT_SETS_IT, ()),
    "prompt": ("the agent has its own instructions", ()),
    "reasoning": (_AGENT_SETS_IT, ({}, {"effort": None}, {"effort": None, "summary": None})),
    "truncation": ("the agent limits its history", ("auto", "disabled")),
}

_HINTS = {"client_metadata": dict, "prompt_cache_key": str, "safety_identifier": str, "store": bool}
"""The types of values for the provider of a model, which do not change an answer. They have no
effect here; `store` is honoured for responses."""

_NESTED = ("image_url", "input_audio", "file")
"""The types of the parts of chat completions that are files; their members are nested."""

_FILE_PARTS = (*_NESTED, "input_image", "input_file")
"""The types of the parts that are files: of chat completions, and of responses."""

_FILE_MEMBERS = ("data", "file_data", "file_id", "filename", "format", "image_url", "url")

_TYPE_NAMES = {bool: "true or false", dict: "an object", list: "an array", str: "a text"}


class OpenAIParameters:
    """The parameters of one request.

    Args:
        rules: the rule of each parameter that is not honoured.
        ignored: the names of `openai.ignored_parameters`.

    Attributes:
        ignored: the parameters of the request that were ignored, in their order.
    """

    def __init__(
        self, body: object, rules: Mapping[str, _Rule], ignored: tuple[str, ...] = ()
    ) -> None:
        if not isinstance(body, dict):
            raise RefusedParameter("The body must be a JSON object", None, "invalid_type")
        self._body = {name: value for name, value in body.items() if value is not None}
        self._rules = rules
        self._ignorable = ignored
        self._honoured: set[str] = set()
        self.ignored: list[str] = []

    def get(self, name: str, kind: type = str) -> Any:
        """Return the value of a parameter, which is honoured then; None if it is not given."""
        value = self.get_any(name)
        return None if value is None else check_type(value, kind, name)

    def get_any(self, name: str) -> Any:
        """Return the value of a parameter of any type; see `get`."""
        self._honoured.add(name)
        return self._body.get(name)

    def replace(self, name: str, value: Any) -> None:
        """Replace the value of a parameter."""
        self._body[name] = value

    def take_rest(self) -> None:
        """Apply the rules to every parameter that was not read."""
        for name, value in self._body.items():
            if name in self._honoured:
                continue

            if name in _HINTS:
                check_type(value, _HINTS[name], name)
                continue

            reason, accepted_values = self._rules.get(name, ("", ()))
            if any(_equals(value, accepted_value) for accepted_value in accepted_values):
                continue

            if name in self._ignorable:
                self.ignored.append(name)
                continue

            if reason:
                text = f"This value of {name} is not supported: {reason}"
                raise RefusedParameter(text + _CURE, name)

            public_name = get_public_name(name)
            if public_name is not None:
                text = f"Unknown parameter: {public_name}"
                raise RefusedParameter(text + _CURE, public_name, "unknown_parameter")
            text = "A parameter whose name is no name is unknown; leave it out"
            raise RefusedParameter(text, None, "unknown_parameter")

    def get_metadata(self) -> dict[str, Any] | None:
        """Return `metadata` with `user` in it, for the metadata of the run."""
        metadata = self.get("metadata", dict)
        user = self.get("user")
        if user is None:
            return metadata  # type: ignore[no-any-return]
        if (metadata or {}).get("user", user) != user:
            raise RefusedParameter("user and metadata.user differ", "user", "invalid_value")
        return {**(metadata or {}), "user": user}

    def get_include_usage(self) -> bool:
        """Return `stream_options.include_usage`."""
        options = self.get("stream_options", dict) or {}
        if options and not self.get("stream", bool):
            raise RefusedParameter("stream_options needs stream = true", "stream_options")

        for name, value in options.items():
            if name == "include_usage":
                continue
            if name == "include_obfuscation" and value in (None, False):
                continue
            if not name.isidentifier():
                raise RefusedParameter("An option of stream_options is unknown", "stream_options")
            raise RefusedParameter(f"stream_options.{name} is not supported", "stream_options")

        return bool(check_type(options.get("include_usage") or False, bool, "include_usage"))


def _equals(value: object, accepted_value: object) -> bool:
    # In Python `1 == True`, in JSON a number is not true.
    return isinstance(value, bool) == isinstance(accepted_value, bool) and value == accepted_value


def get_public_name(name: str) -> str | None:
    """Return the name of a parameter for an error; None for a text that is no name."""
    if name.isascii() and name.isidentifier() and len(name) <= 64:
        return name
    return None


def read_schema(format: object, param: str) -> dict[str, Any] | None:
    """Return the JSON Schema of a response format; None for text.

    Args:
        format: `{"type": "text"}`, `{"type": "json_object"}`, or `{"type": "json_schema", ...}`
            with `schema` in it or in its `json_schema`.
    """
    if format is None:
        return None
    options = check_type(format, dict, param)

    if options.get("type") == "text":
        return None
    if options.get("type") == "json_object":
        return {"type": "object"}

    if options.get("type") != "json_schema":
        raise RefusedParameter(
            f"This type of {param} is not supported: use text, json_object or json_schema",
            f"{param}.type",
        )

    if "json_schema" in options:
        options = check_type(options["json_schema"], dict, f"{param}.json_schema")

    schema: dict[str, Any] = check_type(options.get("schema"), dict, f"{param}.schema")
    return schema


def read_stop(parameters: OpenAIParameters) -> tuple[str, ...]:
    """Return the texts of `stop`: a text, or an array of texts."""
    stop = parameters.get_any("stop")
    texts = [stop] if isinstance(stop, str) else check_type(stop or [], list, "stop")

    for text in texts:
        if not 1 <= len(check_type(text, str, "stop")) <= MAXIMUM_CHARACTERS:
            raise RefusedParameter(
                f"A text of stop must have 1 to {MAXIMUM_CHARACTERS} characters", "stop"
            )

    if len(texts) > MAXIMUM_TEXTS:
        raise RefusedParameter(f"stop must have at most {MAXIMUM_TEXTS} texts", "stop")

    return tuple(texts)


def _read_file(part: Mapping[str, Any], at: str) -> GivenFile:
    """Return the file of a part of a message; RefusedParameter if it has no bytes and no id."""
    members = {
        name: check_type(text, str, f"{at}.{name}")
        for name, text in part.items()
        if text is not None and name in _FILE_MEMBERS
    }

    if "file_id" in members:
        return GivenFile(at, members["file_id"])

    # A sound has no name.
    if "data" in members:
        return GivenFile(at, data=members["data"], name=f"sound.{members.get('format', 'wav')}")

    name = members.get("filename", "")
    url = members.get("url") or members.get("image_url") or members.get("file_data")
    if url is None:
        raise RefusedParameter(f"{at} must have the bytes of the file, or file_id", at)

    # The bytes of a file may come without the head of a `data` URL.
    if "file_data" in members and not url.startswith("data:"):
        return GivenFile(at, data=url, name=name)

    try:
        return read_data_url(at, url, name)
    except ValidationFailed as error:
        raise RefusedParameter(error.detail, at) from None


def read_text(content: object, at: str, files: list[GivenFile] | None = None) -> str:
    """Return the text of a message: a text, or the joined texts of its parts.

    A refusal of a model is text: clients send it back with the history.

    Args:
        content: the content of the message, of any type.
        at: its place in the request, for errors.
        files: receives the parts that are files; None if the message can have none.

    Raises:
        RefusedParameter: the content has another form.
    """
    if isinstance(content, str):
        return check_text(at, content)

    if not isinstance(content, list):
        raise RefusedParameter(f"{at} must be a text or an array of texts", at, "invalid_type")

    texts = list[str]()
    for index, part in enumerate(content):
        where = f"{at}[{index}]"
        kind = check_type(part, dict, where).get("type")

        if kind in ("text", "input_text", "output_text"):
            texts.append(check_type(part.get("text"), str, f"{where}.text"))
        elif kind == "refusal":
            texts.append(check_type(part.get("refusal") or "", str, f"{where}.refusal"))
        elif kind in _FILE_PARTS and files is not None:
            # Chat completions nest the members of a part, responses do not.
            members = part.get(kind, part) if kind in _NESTED else part
            files.append(_read_file(check_type(members, dict, f"{where}.{kind}"), where))
        else:
            raise RefusedParameter(
                f"{where} is not supported: messages are texts, and those of the user files", where
            )

    return "\n".join(texts)


def check_type(value: Any, kind: type, at: str) -> Any:
    """Return the value if it has a JSON type.

    Raises:
        RefusedParameter: it has another type.
        ValidationFailed: a text or an object cannot be stored.
    """
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise RefusedParameter(f"{at} must be {_TYPE_NAMES[kind]}", at, "invalid_type")
    if isinstance(value, str):
        check_text(at, value)
    elif kind is dict:
        check_json(at, value)
    return value


def check_query(call: Call, *known: str) -> None:
    """Refuse a query with a parameter that is not honoured."""
    for name, text in parse_pairs(call.scope["query_string"]):
        if name in known or (name, text) == ("stream", "false"):
            continue
        public_name = get_public_name(name)
        if public_name is None:
            raise RefusedParameter("A parameter is unknown", None)
        raise RefusedParameter(f"{public_name} is not supported here", public_name)
