"""The types that agents declare: schemas of their input, and values for their deps or context."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from typing_extensions import TypedDict

from agentctl.agents import RunContext
from agentctl.runtime.imports import UnusableObject
from agentctl.runtime.pauses import InputSchema, WrongInput

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_MAPPINGS = (dict, Mapping, MutableMapping)

_OLD_TYPED_DICT = "typed-dict-version"
"""The code of pydantic's error for a typed dictionary of `typing` before Python 3.12."""

_RAISED_BY_CODE = ("value_error", "assertion_error")
"""Errors of pydantic with the text of an exception, which may contain a secret."""


def read_input_schema(annotation: Any) -> InputSchema | None:
    """Return the input schema of an annotation; None if it is not the type of an object.

    Types of objects are pydantic models, dataclasses, typed dictionaries, `dict` and `Mapping`, and
    each of them in a union with `str`: then a message alone is possible, too.

    Args:
        annotation: an evaluated annotation; None without annotation.

    Raises:
        UnusableObject: the type has no JSON Schema of an object.
    """
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    object_types = [part for part in parts if part is not str]

    if len(object_types) != 1 or not _is_object_type(object_types[0]):
        return None

    return build_input_schema(object_types[0], is_required=len(parts) == 1)


def build_input_schema(annotation: Any, *, is_required: bool) -> InputSchema:
    """Build the input schema of a type, whose value the code receives.

    Raises:
        UnusableObject: the type has no JSON Schema of an object.
    """
    name = getattr(annotation, "__name__", "the type")

    try:
        adapter = build_adapter(annotation)
        schema = adapter.json_schema()
    except Exception as error:
        is_old = getattr(error, "code", None) == _OLD_TYPED_DICT
        hint = "import TypedDict from typing_extensions, not from typing" if is_old else None
        raise UnusableObject(
            f"its input {name} has no JSON Schema ({type(error).__name__})", hint
        ) from error

    if schema.get("type", "object") != "object":
        raise UnusableObject(f"its input {name} is no object: its schema has another type")

    return InputSchema(schema, is_required=is_required, convert=build_converter(adapter))


def build_adapter(annotation: Any) -> TypeAdapter[Any]:
    """Build the adapter of a type that may be, or contain, a typed dictionary of `typing`.

    Before Python 3.12 pydantic takes only typed dictionaries of typing_extensions.

    Raises:
        Exception: the type has no schema: any exception of pydantic.
    """
    from pydantic import PydanticUserError, TypeAdapter

    try:
        return TypeAdapter(annotation)
    except PydanticUserError as error:
        if error.code != _OLD_TYPED_DICT:
            raise
    return TypeAdapter(_renew_typed_dicts(annotation))


def is_typed_dict(annotation: Any) -> bool:
    """Return True for a typed dictionary of `typing` or of typing_extensions."""
    return hasattr(annotation, "__total__") and hasattr(annotation, "__required_keys__")


def list_required_keys(declared: Any) -> list[str]:
    """Return the keys of a typed dictionary that are marked with `Required`."""
    hints = get_type_hints(declared, include_extras=True)
    return [name for name, hint in hints.items() if _is_marked(hint)]


def _is_marked(hint: Any) -> bool:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return get_origin(hint) is Required


def _renew_typed_dicts(annotation: Any) -> Any:
    """Replace the typed dictionaries of `typing` in a type by ones of typing_extensions."""
    if is_typed_dict(annotation):
        required = annotation.__required_keys__
        fields = {}

        for name, hint in get_type_hints(annotation, include_extras=True).items():
            fields[name] = _renew_typed_dicts(hint)
            if get_origin(hint) not in (Required, NotRequired):
                fields[name] = (Required if name in required else NotRequired)[fields[name]]

        return TypedDict(annotation.__name__, fields)  # type: ignore[operator]

    arguments = get_args(annotation)
    renewed = tuple(_renew_typed_dicts(argument) for argument in arguments)

    if renewed == arguments:
        return annotation

    origin: Any = get_origin(annotation)
    if origin is UnionType:
        origin = Union

    return origin[renewed if len(renewed) > 1 else renewed[0]]


def _is_object_type(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return _is_object_type(get_args(annotation)[0])
    origin = get_origin(annotation) or annotation
    return isinstance(origin, type) and (
        origin in _MAPPINGS
        or dataclasses.is_dataclass(origin)
        or hasattr(origin, "model_json_schema")
        or is_typed_dict(origin)
    )


def build_converter(adapter: TypeAdapter[Any]) -> Callable[[dict[str, Any]], Any]:
    """Build a function that makes the value of a type; it raises WrongInput for a wrong object."""
    from pydantic import ValidationError

    def convert(value: dict[str, Any]) -> Any:
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = "".join(
            f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]
        )
        text = "is not valid" if first["type"] in _RAISED_BY_CODE else f"is wrong: {first['msg']}"
        raise WrongInput(text, place)

    return convert


def find_default(declared: Any) -> Callable[[RunContext], Any] | None:
    """Return a function that creates a value for each run; None if the class needs values.

    Args:
        declared: a dataclass, a pydantic model, a typed dictionary or another class.
    """
    if getattr(declared, "__required_keys__", None) or not _can_make(declared):
        return None
    return lambda _: declared()


def _can_make(declared: Any) -> bool:
    if getattr(declared, "__module__", "builtins") == "builtins" and declared is not dict:
        # Such as `str`, whose value without arguments has no meaning.
        return False
    try:
        declared()
    except Exception:
        return False
    return True
