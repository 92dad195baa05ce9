"""Tools: plain typed Python functions, named `package.module:function` (contract.md 7).

What a model and a listing are told of a tool comes from its signature and its docstring, with
pydantic's TypeAdapter and without pydantic_ai (design.md 3).

What a tool returned, as the text that its model is told.

A tool may return anything: what has no end, no JSON form, or more than a run may keep. It is made
into text where the tool ran, within the tool's time.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import JsonSchemaMode

from agentctl.errors import InvalidConfiguration
from agentctl.records.text import replace_unstorable

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord

__all__ = ["InvalidArguments", "NotSerializable", "Tool", "load_tools", "result_to_text"]

_TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""What providers take as the name of a tool."""

_REFUSED_KINDS = {
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
    inspect.Parameter.POSITIONAL_ONLY,
}


class InvalidArguments(Exception):
    """Arguments that do not fit the tool's signature. Its text is meant for the model."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    Attributes:
        name: the function's name.
        description: its docstring, `""` without one.
        parameters: JSON Schema of its arguments, an object.
        function: the function itself.
        is_async: whether calling it gives something to await.
        arguments: for each parameter what checks and converts its value.
        required: the parameters without a default.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., Any]
    is_async: bool
    arguments: Mapping[str, TypeAdapter[Any]]
    required: frozenset[str]

    def record(self) -> ToolRecord:
        """The tool as listings show it."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments from a model as the function's types.

        Raises:
            BadArguments: one is missing, unknown or of another type; says which.
        """
        unknown = [name for name in values if name not in self.arguments]
        missing = [name for name in self.arguments if name in self.required and name not in values]
        if unknown or missing:
            faults = [f"{name} is unknown" for name in unknown]
            faults += [f"{name} is missing" for name in missing]
            raise InvalidArguments(", ".join(faults))
        return {name: self._convert(name, value) for name, value in values.items()}

    def _convert(self, name: str, value: object) -> Any:
        try:
            return self.arguments[name].validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join([name, *(str(part) for part in first["loc"])])
            raise InvalidArguments(f"{place}: {first['msg']}") from error


def load_tools(owner: str, references: tuple[str, ...], folder: Path | None) -> tuple[Tool, ...]:
    """The tools that a component names.

    Args:
        owner: the component as refusals name it (`agent writer`).
        references: `package.module:function`.
        folder: the configuration's folder, looked into before `sys.path`; None: `sys.path` only.

    Raises:
        InvalidConfiguration: one line naming the owner and the tool.
    """
    tools: dict[str, Tool] = {}
    for reference in references:
        try:
            tool = _build_tool(_resolve_function(reference, folder))
        except _UnusableTool as error:
            raise _configuration_error(owner, reference, error) from error.__cause__
        if tool.name in tools:
            raise _configuration_error(
                owner, reference, _UnusableTool(f"it has two tools named {tool.name}")
            )
        tools[tool.name] = tool
    return tuple(tools.values())


class _UnusableTool(Exception):
    """Why a reference is no tool."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


def _configuration_error(owner: str, reference: str, error: _UnusableTool) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"The {owner} cannot use the tool {reference!r}: {error.what}",
        hint=error.hint
        or "a tool is named package.module:function and is a function with typed parameters",
    )


def _resolve_function(reference: str, folder: Path | None) -> Callable[..., Any]:
    module_name, colon, name = reference.partition(":")
    if not (colon and module_name and name):
        raise _UnusableTool("it is not of the form package.module:function")
    module = _import_module(module_name, folder)
    function = getattr(module, name, None)
    if function is None:
        raise _UnusableTool(f"the module {module_name} has no {name}")
    if not callable(function) or inspect.isclass(function):
        raise _UnusableTool(f"{name} is not a function")
    return typing.cast("Callable[..., Any]", function)


def _import_module(name: str, folder: Path | None) -> ModuleType:
    try:
        with _first_on_path(folder):
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        what = f"its module cannot be imported ({reason})"
        raise _UnusableTool(what, _missing_module_hint(name, error)) from error


def _missing_module_hint(name: str, error: BaseException) -> str | None:
    """What to do when it is the module itself that is not there, and not what it imports."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    if not f"{name}.".startswith(f"{error.name}."):
        return None
    top = name.partition(".")[0]
    place = f"{name}.py" if name == top else f"the package {top}"
    return f"put {place} beside the configuration file, or install it"


@contextmanager
def _first_on_path(folder: Path | None) -> Iterator[None]:
    """Look into `folder` first while importing, and last afterwards.

    It stays on the path for imports that a tool makes when it runs, behind everything else, so
    that a file beside the configuration never stands in for a library that is imported later.
    """
    if folder is None:
        yield
        return
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        importlib.invalidate_caches()
        yield
    finally:
        sys.path.remove(entry)
        if entry not in sys.path:
            sys.path.append(entry)


def _build_tool(function: Callable[..., Any]) -> Tool:
    name = getattr(function, "__name__", "")
    if not _TOOL_NAME.fullmatch(name):
        raise _UnusableTool("its name is not of ASCII letters, digits and underscores, at most 64")
    if inspect.isasyncgenfunction(function):
        raise _UnusableTool("it is an asynchronous generator")
    parameters = _read_parameters(function)
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
    )


def _read_parameters(
    function: Callable[..., Any],
) -> dict[str, tuple[Any, inspect.Parameter]]:
    """Annotation and parameter by name."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        signature = inspect.signature(function)
    except (NameError, TypeError, ValueError, AttributeError) as error:
        raise _UnusableTool(f"its annotations cannot be read ({type(error).__name__})") from error
    for parameter in signature.parameters.values():
        if parameter.kind in _REFUSED_KINDS:
            raise _UnusableTool(f"its parameter {parameter.name} cannot be given by name")
        if parameter.name not in hints:
            raise _UnusableTool(f"its parameter {parameter.name} has no type")
    return {name: (hints[name], parameter) for name, parameter in signature.parameters.items()}


def _build_adapter(name: str, annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation)
    except (PydanticUserError, TypeError) as error:
        raise _UnusableTool(f"its parameter {name} has a type without a JSON form") from error


def _build_schema(
    adapters: Mapping[str, TypeAdapter[Any]], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """JSON Schema of an object with these properties; shared definitions stand in `$defs`."""
    mode: JsonSchemaMode = "validation"
    inputs = [(name, mode, adapter) for name, adapter in adapters.items()]
    try:
        parts, shared = TypeAdapter.json_schemas(inputs)
    except PydanticUserError as error:
        raise _UnusableTool("a parameter has a type without a JSON form") from error
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
    """The `default` keyword, when the default has a JSON form."""
    if name not in defaults:
        return {}
    try:
        return {"default": adapter.dump_python(defaults[name], mode="json", warnings="error")}
    except ValueError:
        return {}


class NotSerializable(Exception):
    """A result that cannot be told to a model. The cause says why."""


def result_to_text(result: object, limit: int) -> str:
    """A result as text: a string as it is, anything else as JSON, cut at `limit` bytes of UTF-8.

    Of an iterator, such as a generator, as many items are taken as fit. What cannot be stored is
    replaced by U+FFFD.

    Raises:
        NoJsonForm: it is nothing that JSON can hold.
    """
    if isinstance(result, str):
        # An exact string, whatever a subclass makes of its methods.
        return _truncate(str.__str__(result), limit)
    try:
        value = _take_items(result, limit) if isinstance(result, Iterator) else _to_jsonable(result)
        return _truncate(json.dumps(value, ensure_ascii=False, separators=(",", ":")), limit)
    except Exception as error:
        raise NotSerializable from error
    finally:
        if inspect.iscoroutine(result):
            result.close()


def _to_jsonable(result: object) -> Any:
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(result)


def _take_items(items: Iterator[object], limit: int) -> list[Any]:
    """Items until they are longer than `limit`; each is at least a comma."""
    taken: list[Any] = []
    size = 0
    for item in items:
        taken.append(_to_jsonable(item))
        size += 1 + len(json.dumps(taken[-1]))
        if size > limit:
            break
    return taken


def _truncate(text: str, limit: int) -> str:
    """At most `limit` bytes, never half a character."""
    text = replace_unstorable(text[:limit])
    data = text.encode()
    return text if len(data) <= limit else data[:limit].decode("utf-8", "ignore")
