"""Tools: plain typed Python functions, named `package.module:function` (docs/contract.md
"Configuration").

The name, the description and the schema of a tool come from its signature and its docstring. They
are built with pydantic's TypeAdapter, without pydantic_ai. A server without tools does not import
pydantic.

A tool may return any value: an endless iterator, a value without a JSON form, or more data than a
run may store. The result is converted to text in the thread or task of the tool, within its time
limit.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentctl.agents import ToolOptions, get_tool_options
from agentctl.errors import InvalidConfiguration
from agentctl.records.text import replace_unstorable
from agentctl.runtime.context import is_run_context
from agentctl.runtime.imports import UnusableObject, load_object
from agentctl.runtime.json_values import NotSerializable, encode_json

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic.json_schema import JsonSchemaMode

    from agentctl.records.components import ToolRecord

TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""Names of tools that providers accept."""

_REFUSED_KINDS = {
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
    inspect.Parameter.POSITIONAL_ONLY,
}


class InvalidArguments(Exception):
    """The arguments of a call do not match the signature. The text is for the model."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call."""

    name: str

    description: str
    """The docstring, `""` if there is none."""

    parameters: dict[str, Any]
    """JSON Schema of its arguments, an object."""

    function: Callable[..., Any]
    is_async: bool

    arguments: Mapping[str, TypeAdapter[Any]]
    """Validator of each parameter."""

    required: frozenset[str]
    """The parameters without a default."""

    contexts: tuple[str, ...] = ()
    """The parameters that the server fills with a `RunContext`. They are neither in `arguments` nor
    in the schema."""

    options: ToolOptions = ToolOptions()

    def record(self) -> ToolRecord:
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the arguments of a model to the types of the function.

        Raises:
            InvalidArguments: one is missing, unknown or of another type; the text names it.
        """
        faults = [f"{name} is unknown" for name in values if name not in self.arguments]
        faults += [
            f"{name} is missing"
            for name in self.arguments
            if name in self.required and name not in values
        ]
        if faults:
            raise InvalidArguments(", ".join(faults))

        return {name: self._convert(name, value) for name, value in values.items()}

    def _convert(self, name: str, value: object) -> Any:
        from pydantic import ValidationError

        try:
            return self.arguments[name].validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join([name, *(str(step) for step in first["loc"])])
            raise InvalidArguments(f"{place}: {first['msg']}") from error


def load_tools(owner: str, references: tuple[str, ...], folder: Path | None) -> tuple[Tool, ...]:
    """Load the tools of a component.

    Args:
        owner: name of the component in errors (`agent writer`).
        references: names of the form `package.module:function`.
        folder: folder of the configuration, searched before `sys.path`; None for `sys.path` only.

    Raises:
        InvalidConfiguration: a tool is not usable; one line with the owner and the tool.
    """
    tools: dict[str, Tool] = {}

    for reference in references:
        try:
            function = load_object(reference, folder)
            if not callable(function) or inspect.isclass(function):
                raise UnusableObject(f"{reference.partition(':')[2]} is not a function")
            tool = _build_tool(function)
        except UnusableObject as error:
            raise _configuration_error(owner, reference, error) from error.__cause__

        if tool.name in tools:
            raise _configuration_error(
                owner, reference, UnusableObject(f"it has two tools named {tool.name}")
            )
        tools[tool.name] = tool

    return tuple(tools.values())


def _configuration_error(owner: str, reference: str, error: UnusableObject) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"The {owner} cannot use the tool {reference!r}: {error.what}",
        hint=error.hint
        or "a tool is named package.module:function and is a function with typed parameters",
    )


def _build_tool(function: Callable[..., Any]) -> Tool:
    name = getattr(function, "__name__", "")
    if not TOOL_NAME.fullmatch(name):
        raise UnusableObject("its name must have at most 64 ASCII letters, digits and underscores")

    if inspect.isasyncgenfunction(function):
        raise UnusableObject("it is an asynchronous generator")

    parameters = _read_parameters(function)
    contexts = tuple(name for name, (hint, _) in parameters.items() if is_run_context(hint))
    for context in contexts:
        del parameters[context]

    adapters = {
        name: _build_adapter(name, annotation) for name, (annotation, _) in parameters.items()
    }

    defaults = {
        name: parameter.default
        for name, (_, parameter) in parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }

    return Tool(
        name=name,
        description=inspect.getdoc(function) or "",
        parameters=_build_schema(adapters, defaults),
        function=function,
        is_async=inspect.iscoroutinefunction(function),
        arguments=adapters,
        required=frozenset(adapters) - frozenset(defaults),
        contexts=contexts,
        options=get_tool_options(function),
    )


def _read_parameters(function: Callable[..., Any]) -> dict[str, tuple[Any, inspect.Parameter]]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        signature = inspect.signature(function)
    except (NameError, TypeError, ValueError, AttributeError) as error:
        raise UnusableObject(f"its annotations cannot be read ({type(error).__name__})") from error

    for parameter in signature.parameters.values():
        if parameter.kind in _REFUSED_KINDS:
            raise UnusableObject(f"its parameter {parameter.name} cannot be given by name")
        if parameter.name not in hints:
            raise UnusableObject(f"its parameter {parameter.name} has no type")

    return {name: (hints[name], parameter) for name, parameter in signature.parameters.items()}


def _build_adapter(name: str, annotation: Any) -> TypeAdapter[Any]:
    from pydantic import PydanticUserError, TypeAdapter

    try:
        return TypeAdapter(annotation)
    except (PydanticUserError, TypeError) as error:
        raise UnusableObject(f"its parameter {name} has a type without a JSON form") from error


def _build_schema(
    adapters: Mapping[str, TypeAdapter[Any]], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    from pydantic import PydanticUserError, TypeAdapter

    mode: JsonSchemaMode = "validation"
    inputs = [(name, mode, adapter) for name, adapter in adapters.items()]

    try:
        parts, shared = TypeAdapter.json_schemas(inputs)
    except PydanticUserError as error:
        raise UnusableObject("a parameter has a type without a JSON form") from error

    properties = {
        name: {**parts[(name, mode)], **_default_keyword(adapter, defaults, name)}
        for name, adapter in adapters.items()
    }

    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": [name for name in adapters if name not in defaults],
        "additionalProperties": False,
    }

    return {**schema, "$defs": shared["$defs"]} if "$defs" in shared else schema


def _default_keyword(
    adapter: TypeAdapter[Any], defaults: Mapping[str, Any], name: str
) -> dict[str, Any]:
    if name not in defaults:
        return {}
    try:
        return {"default": adapter.dump_python(defaults[name], mode="json", warnings="error")}
    except ValueError:
        return {}


def result_to_text(result: object, limit: int) -> str:
    """Convert a result to text of at most `limit` bytes: a string unchanged, other values as JSON.

    From a list, an object or an iterator, such as a generator, as many items are taken as fit.
    Characters that cannot be stored are replaced by U+FFFD.

    Raises:
        NotSerializable: the value has no JSON form.
    """
    if isinstance(result, str):
        # `str.__str__` returns an exact string, even for a subclass with other methods.
        return _truncate(str.__str__(result), limit)

    pieces: list[str] = []
    size = 0
    try:
        for piece in encode_json(result, limit):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                break
        return _truncate("".join(pieces), limit)
    except Exception as error:
        raise NotSerializable from error
    finally:
        if inspect.iscoroutine(result):
            result.close()


def _truncate(text: str, limit: int) -> str:
    text = replace_unstorable(text[:limit])
    data = text.encode()
    return text if len(data) <= limit else data[:limit].decode("utf-8", "ignore")
