"""Types of values: one description of an annotation that parses texts and names its values.

Parameters and forms of requests use it, and the records of a remote server are compared with it.
The configuration and the bodies of requests are checked by pydantic, with the same words
(`records/schema_words.py`). An annotation is compiled once (decision 32).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from agentctl.records.strict import parse_json
from agentctl.records.text import UNSTORABLE, is_storable
from agentctl.records.times import ParsedTimestamp, Timestamp, parse_rfc3339

_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)

_NUMBER = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,40})?(e[+-]?[0-9]{1,3})?", re.ASCII | re.IGNORECASE)

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}

_WORDS: dict[Any, str] = {
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    dict: "a JSON object",
    Any: "a JSON value",
    ParsedTimestamp: "an RFC 3339 date-time, such as 2026-11-20T08:18:10Z",
}

_CLASSES: dict[Any, tuple[type, ...]] = {
    str: (str,),
    bool: (bool,),
    int: (int,),
    float: (float, int),
    Literal: (str,),
    Timestamp: (str, int, float, bool, NoneType),
}


class WrongValue(ValueError):
    """Raised for a text of another type, or one that breaks a rule."""

    problem: str
    """The rest of a sentence: "must be an integer". It never repeats the text."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


@dataclass(frozen=True, slots=True, eq=False)
class ValueType:
    """The type of a value; `compile_type` makes it of an annotation."""

    kind: Any
    """A scalar type, `list`, `tuple`, `dict`, `Literal`, `Union`, `Any`, one of the two timestamps,
    or the class of a record."""

    parse_text: Callable[[str], Any]
    """The function of `parse`; raises ValueError or KeyError."""

    optional: bool = False
    """True if None is allowed."""

    required: bool | None = None
    """True if a field of a typed dictionary must be present; None for the default of its record."""

    parts: tuple[ValueType, ...] = ()
    """The type of the elements of a list, the types of the names and the values of a dictionary, or
    the alternatives of a union."""

    choices: tuple[Any, ...] = ()
    """The values of a `Literal`."""

    classes: tuple[type, ...] = ()
    """The classes of its parsed values, if these are scalars."""

    @property
    def is_list(self) -> bool:
        """True for a list or a tuple."""
        return self.kind in (list, tuple)

    @property
    def is_table(self) -> bool:
        """True for a dictionary whose values have a type."""
        return self.kind is dict and self.item.kind is not Any

    @property
    def is_record(self) -> bool:
        """True for a typed dictionary."""
        return hasattr(self.kind, "__total__")

    @property
    def item(self) -> ValueType:
        """The type of the elements of a list, or of the values of a dictionary."""
        return self.parts[-1]

    @property
    def description(self) -> str:
        """The words for the allowed values: "an integer from 1 to 10"."""
        words = _WORDS.get(self.kind, "a JSON object" if self.is_record else "a table")
        if self.choices:
            words = f"one of: {', '.join(self.choices)}"
        elif self.is_list:
            words = f"a list, each element {self.item.description}"
        elif self.is_table:
            words = f"a table, each value {self.item.description}"
        return words

    def parse(self, text: str) -> Any:
        """Parse the text of a query parameter, a header field or a form field.

        Raises:
            WrongValue: it is not a text of this type, or cannot be stored.
        """
        if not is_storable(text):
            raise WrongValue(UNSTORABLE)
        try:
            return self.parse_text(text)
        except (ValueError, KeyError):
            problem = f"must be {self.description}"
            if " " in text and self._is_valid(text.replace(" ", "+")):
                problem += ". A + in a query is a space: write it as %2B"
            raise WrongValue(problem) from None

    def _is_valid(self, text: str) -> bool:
        try:
            self.parse_text(text)
        except (ValueError, KeyError):
            return False
        return True


def compile_type(annotation: Any) -> ValueType:
    """Return the type of an annotation, also of one with `Required` or `NotRequired`."""
    if hasattr(annotation, "__value__"):
        return compile_type(annotation.__value__)

    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if annotation in (Timestamp, ParsedTimestamp):
        # Both are annotations themselves, and must not become the type that they annotate.
        origin = annotation
        arguments = ()

    if origin is Annotated:
        return compile_type(arguments[0])
    if origin in (Required, NotRequired):
        return replace(compile_type(arguments[0]), required=origin is Required)
    if origin in (Union, UnionType):
        origin = Union
        if NoneType in arguments:
            alternatives = tuple(part for part in arguments if part is not NoneType)
            return replace(compile_type(Union[alternatives]), optional=True)  # noqa: UP007

    kind = origin or annotation
    parts: tuple[ValueType, ...] = ()
    choices: tuple[Any, ...] = ()
    if origin is Literal:
        choices = arguments
    else:
        # `tuple[str, ...]` has the type of its elements.
        parts = tuple(compile_type(part) for part in arguments if part is not ...)

    parse_text = _PARSERS.get(kind)
    if parse_text is None:
        parse_text = {choice: choice for choice in choices}.__getitem__
    return ValueType(kind, parse_text, parts=parts, choices=choices, classes=_CLASSES.get(kind, ()))


@cache
def field_types(record: type) -> Mapping[str, ValueType]:
    """Return the types of the fields of a typed dictionary, in order."""
    hints = get_type_hints(record, include_extras=True)
    types = {name: compile_type(hint) for name, hint in hints.items()}
    total = getattr(record, "__total__", True)
    return {
        name: replace(field, required=total) if field.required is None else field
        for name, field in types.items()
    }


def _match(pattern: re.Pattern[str], text: str) -> str:
    if pattern.fullmatch(text) is None:
        raise ValueError
    return text


_PARSERS: dict[Any, Callable[[str], Any]] = {
    str: str,
    bool: lambda text: _BOOLEANS[text.lower()],
    int: lambda text: int(_match(_INTEGER, text)),
    float: lambda text: float(_match(_NUMBER, text)),
    dict: parse_json,
    tuple: lambda text: tuple(word for word in text.split(",") if word),
    ParsedTimestamp: parse_rfc3339,
}

REQUIRED_FIELDS = frozenset(
    {
        "admin", "agent_id", "allowed", "cancel", "data", "decided_by", "id", "meta",
        "name", "operation", "outcome", "principal", "required_scopes", "run_id", "scopes", "seq",
        "session_id", "status", "steps", "team_id", "workflow_id",
    }
)  # fmt: skip
"""Fields that a command reads without a default, if their record type requires them."""

_compile_known = cache(compile_type)


def find_mismatch(value: object, expected: Any) -> str | None:
    """Return the place of the first value of a server that is not of the expected type.

    It is as strict as a command needs, so that servers of other versions can be used: unknown
    fields are allowed, and only the fields in `REQUIRED_FIELDS` must be present.

    Args:
        value: parsed JSON.
        expected: the type: a `TypedDict`, or what the fields of one have. A `Literal` means
            the types of its values, because later versions have more values.

    Returns:
        `data[0].status`, an empty text for the whole value, or None if everything matches.
    """
    try:
        place = _find(value, _compile_known(expected), "")
    except RecursionError:
        # The type contains itself, and the value is as deep.
        return ""
    return None if place is None else place.removeprefix(".")


def _find(value: object, expected: ValueType, path: str) -> str | None:
    kind = expected.kind
    if kind is Any or (value is None and expected.optional):
        return None
    if expected.classes:
        return None if type(value) in expected.classes else path
    if kind is Union:
        return _find_in_union(value, expected.parts, path)

    if not isinstance(value, list if kind is list else dict):
        return path

    places: Iterable[str | None]
    if isinstance(value, list):
        places = (_find(part, expected.item, f"{path}[{at}]") for at, part in enumerate(value))
    elif kind is dict:
        places = (_find(part, expected.item, f"{path}.{name}") for name, part in value.items())
    else:
        places = _find_in_record(value, kind, path)
    return next((place for place in places if place is not None), None)


def _find_in_record(value: Mapping[str, Any], record: type, path: str) -> Iterator[str | None]:
    """Yield the place of a mismatch in each field of a record; None for a field that matches."""
    for name, field in field_types(record).items():
        if name in value:
            yield _find(value[name], field, f"{path}.{name}")
        elif name in REQUIRED_FIELDS and field.required:
            yield f"{path}.{name}"


def _find_in_union(value: object, parts: tuple[ValueType, ...], path: str) -> str | None:
    records = [part for part in parts if part.is_record]
    if isinstance(value, dict) and records:
        # The record that shares most fields with the value is the one that is meant.
        names = value.keys()
        best = max(records, key=lambda record: len(field_types(record.kind).keys() & names))
        return _find(value, best, path)

    # The alternative that matches longest has the deepest place.
    places = [_find(value, part, path) for part in parts]
    if None in places:
        return None
    return max(places, key=lambda place: len(place or ""))
