"""JSON values from models and from code of users, in a form that can be stored and sent."""

from __future__ import annotations

import codecs
import dataclasses
import json
import math
import re
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import orjson

from agentctl.records.text import HOLDS_LARGE_INTEGER, JSON_INTEGERS, quote_text, replace_unstorable

_BATCH = 256
_ROW = 16
_LONG_TEXT = 1_024
_COUNTED = 65_536
_SIZED: set[type] = {list, tuple, set, frozenset, dict}
_TEXTS: set[type] = {str, bytes, bytearray}
_MAXIMUM_ENCODED_DEPTH = 255

_ARRAYS: tuple[type, ...] = (list, tuple, set, frozenset, deque)
MAXIMUM_MODEL_VALUES = 262_144
"""Maximum number of values in a model of pydantic: the library converts all of it in one step, in
which no other thread continues."""

_NUMBERS = {bool, float, int, type(None)}
_SCALARS = {bool, float, int, str, type(None)}

_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


NOT_AN_OBJECT = "INVALID_JSON"
"""The only argument of a call whose arguments are not a JSON object, or one that cannot be stored
without a change; its value is the raw text."""

_MANY_DIGITS = re.compile(r"\d{19}")
"""Integers of more than 64 bits have at least as many digits."""

_MAXIMUM_DEPTH = 100
"""Maximum nesting of a value: JSON writers have a limit."""


def encode_json(value: object, limit: int) -> Iterator[str]:
    """Encode a value like `json.dumps(to_jsonable_python(value))`, but in pieces.

    A tool can return a list of millions of items, of which a run stores the first megabyte. The
    encoders in C convert a whole list in one step, during which no other thread runs.

    The caller may stop at any piece; the rest of the value is not converted. Items of iterators,
    such as generators, are taken one by one. A model of pydantic is one piece.

    Args:
        limit: maximum number of characters that the caller takes; a longer string is cut after
            them, without its closing quotation mark.

    Raises:
        Exception: the value has no JSON form: any exception of its methods, or of pydantic.
    """
    return _encode(value, (), limit)


class _Parts(NamedTuple):
    """The items of a value, or the names and values of its members."""

    items: Iterator[Any]

    batch: int = _BATCH
    """The number of them that is converted at a time."""

    is_object: bool = False


def _open(value: Any, outer: tuple[int, ...]) -> _Parts | None:
    """Return the parts of a value; None for a leaf.

    Args:
        outer: identities of the values that contain it.
    """
    if id(value) in outer or len(outer) > _MAXIMUM_ENCODED_DEPTH:
        raise ValueError("the value contains itself, or is too deep")

    if isinstance(value, _ARRAYS):
        # Call the method of the base class: a subclass can replace it.
        base: Any = next(kind for kind in _ARRAYS if isinstance(value, kind))
        return _Parts(base.__iter__(value))

    if isinstance(value, Iterator):
        return _Parts(value, 1)

    if isinstance(value, dict):
        return _Parts(iter(dict.items(value)), is_object=True)

    if _is_plain_dataclass(value):
        names = (field.name for field in dataclasses.fields(value))
        return _Parts(((name, getattr(value, name)) for name in names), is_object=True)

    return None


def _encode(value: Any, outer: tuple[int, ...], limit: int) -> Iterator[str]:
    parts = _open(value, outer)
    if parts is None:
        return _encode_leaf(value, limit)
    return _encode_parts(parts, (*outer, id(value)), limit)


def _encode_leaf(value: object, limit: int) -> Iterator[str]:
    if isinstance(value, bytes | bytearray) and len(value) > 4 * limit:
        # A character has at most four bytes. The decoder leaves out a last one that is cut.
        value = codecs.getincrementaldecoder("utf-8")().decode(value[: 4 * limit + 4])
    plain = value if type(value) in _SCALARS else _to_jsonable(value)
    if isinstance(plain, str) and len(plain) > limit:
        yield _dumps(plain[:limit])[:-1]
    else:
        yield _dumps(plain)


def _encode_parts(parts: _Parts, outer: tuple[int, ...], limit: int) -> Iterator[str]:
    opening, closing = "{}" if parts.is_object else "[]"
    start = opening
    while batch := [*islice(parts.items, parts.batch)]:
        short = _find_short(batch, is_object=parts.is_object)
        if short is not None:
            yield start + _dumps(short)[1:-1]
            start = ","
            continue

        for item in batch:
            if parts.is_object:
                key, item = item
                start += _dumps(_to_jsonable({key: None}))[1 : -len("null}")]
            yield start
            start = ","
            yield from _encode(item, outer, limit)

    yield opening + closing if start == opening else closing


def _to_jsonable(value: object) -> Any:
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value)


def _find_short(batch: list[Any], *, is_object: bool) -> Any:
    """Return a batch as a value that is encoded in one short step; None if it has long values."""
    if is_object:
        is_short = all(type(key) is str and _is_short(item) for key, item in batch)
        return dict(batch) if is_short else None
    is_short = _NUMBERS.issuperset(map(type, batch)) or all(map(_is_short, batch))
    return batch if is_short else None


def _is_short(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        return len(value) <= _ROW and all(
            type(key) is str and _is_short_scalar(item) for key, item in value.items()
        )
    if kind is list or kind is tuple:
        return len(value) <= _ROW and all(map(_is_short_scalar, value))
    return _is_short_scalar(value)


def _is_short_scalar(value: Any) -> bool:
    kind = type(value)
    return kind in _SCALARS and not (kind is str and len(value) > _LONG_TEXT)


def _is_plain_dataclass(value: object) -> bool:
    kind = type(value)
    return dataclasses.is_dataclass(kind) and not hasattr(kind, "__pydantic_serializer__")


NO_JSON_FORM = "The result has no JSON form"
"""The recorded result of a call that was made and gave such a value."""


class NotSerializable(Exception):
    """A value of a tool or of an agent has no JSON form. The cause has the reason."""


class ValueTooLarge(NotSerializable):
    """The JSON of a value has more characters than allowed. The rest was not converted.

    Also for a model of pydantic with more than `MAXIMUM_MODEL_VALUES` values.
    """


def to_json_value(value: object, limit: int) -> Any:
    """Convert a value to JSON: pydantic models, dataclasses, dates and so on.

    Args:
        limit: maximum number of characters of its JSON.

    Raises:
        ValueTooLarge: the JSON is longer.
        NotSerializable: the value has no JSON form, or is nested too deeply.
    """
    steps = convert_in_steps(value, limit)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def convert_in_steps(value: object, limit: int) -> Generator[None, None, Any]:
    """Convert a value as `to_json_value`, and yield after each short step.

    The rest of a value that is too large is not converted.
    """
    try:
        if _is_surely_larger(value, limit):
            raise ValueTooLarge
        return (yield from _Converter(limit).convert(value, ()))
    except (GeneratorExit, ValueTooLarge):
        raise
    except Exception as error:
        raise NotSerializable from error


def _is_surely_larger(value: Any, limit: int) -> bool:
    """Return True if the JSON of a value surely has more characters than allowed.

    It adds two for each item, and the length of each text: most values that are too large are
    refused before the copy. The items of a list are counted without a look at each.
    """
    level: list[Any] = [value]
    size = items = 0
    for _ in range(_MAXIMUM_DEPTH):
        size += sum(len(item) for item in level if type(item) in _TEXTS)
        containers = [parts for item in level if (parts := _list_parts(item)) is not None]
        count = sum(map(len, containers))
        size = size + 2 * count
        items = items + count
        if size > limit:
            return True

        if not containers or items > _COUNTED:
            break

        level = [
            part
            for item in containers
            for part in ((*item, *item.values()) if isinstance(item, dict) else item)
        ]
    return False


def _list_parts(value: object) -> Any:
    """Return the list, set or dictionary with the parts of a value; None if it has none."""
    kind: Any = type(value)
    if kind in _SIZED:
        return value
    if kind.__module__ != "builtins" and _is_plain_model(kind):
        return value.__dict__
    return None


def _count_values(value: object) -> Iterator[None]:
    """Raise ValueTooLarge if a model has too many values; yield after each short step."""
    count = 0
    pending = [value]

    while pending:
        if len(pending) % _BATCH == 0:
            yield

        parts = _list_parts(pending.pop())
        if parts is None:
            continue

        count += len(parts)
        if count > MAXIMUM_MODEL_VALUES:
            raise ValueTooLarge

        yield

        values = parts.values() if isinstance(parts, dict) else parts
        if not _SCALARS.issuperset(map(type, values)):
            pending.extend(values)


@lru_cache(1_024)
def _is_plain_model(kind: type) -> bool:
    """Return True for a model of pydantic or a plain dataclass that has all fields in its JSON."""
    if dataclasses.is_dataclass(kind):
        return not hasattr(kind, "__pydantic_serializer__") and hasattr(kind, "__dict__")
    fields = getattr(kind, "__pydantic_fields__", None)
    decorators = getattr(kind, "__pydantic_decorators__", None)

    if fields is None or decorators is None:
        return False

    return not (decorators.model_serializers or decorators.field_serializers) and not any(
        field.exclude or any("Serialize" in type(item).__name__ for item in field.metadata)
        for field in fields.values()
    )


class _Converter:
    def __init__(self, limit: int) -> None:
        self._left = limit

    def convert(self, value: Any, outer: tuple[int, ...]) -> Generator[None, None, Any]:
        if (parts := _open(value, outer)) is not None:
            convert = self._convert_object if parts.is_object else self._convert_array
            return (yield from convert(parts, (*outer, id(value))))

        if isinstance(value, str):
            self._spend(len(value) + 2)
            return replace_unstorable(str.__str__(value))

        if isinstance(value, bytes | bytearray) and len(value) > self._left:
            raise ValueTooLarge

        plain = value
        if type(value) not in _SCALARS:
            yield from _count_values(value)
            plain = _to_jsonable(value)

        if isinstance(plain, list | dict):
            yield
            return (yield from self.convert(plain, outer))

        self._spend(len(_dumps(plain)))
        return clean_json_value(plain, len(outer) + 1)

    def _convert_array(self, array: _Parts, outer: tuple[int, ...]) -> Generator[None, None, Any]:
        converted: list[Any] = []
        self._spend(2)

        while batch := [*islice(array.items, array.batch)]:
            yield

            if len(batch) == 1 and _is_short_scalar(item := batch[0]):
                self._spend(len(_dumps(item)) + 1)
                converted.append(clean_json_value(item, len(outer) + 1))
                continue

            if _find_short(batch, is_object=False) is not None:
                converted += self._convert_short(batch, outer)
                continue

            for item in batch:
                self._spend(1)
                converted.append((yield from self.convert(item, outer)))

        return converted

    def _convert_object(
        self, members: _Parts, outer: tuple[int, ...]
    ) -> Generator[None, None, Any]:
        converted: dict[str, Any] = {}
        self._spend(2)

        while batch := [*islice(members.items, members.batch)]:
            yield

            if (short := _find_short(batch, is_object=True)) is not None:
                converted |= self._convert_short(short, outer)
                continue

            for key, item in batch:
                text = _dumps(_to_jsonable({key: None}))
                self._spend(len(text) - len("null}"))
                (name,) = json.loads(text)
                converted[replace_unstorable(name)] = yield from self.convert(item, outer)

        return converted

    def _convert_short(self, value: Any, outer: tuple[int, ...]) -> Any:
        text = _dumps(value)
        self._spend(len(text) - 1)
        # The copy of a tuple is a list.
        return clean_json_value(json.loads(text), len(outer))

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ValueTooLarge


def find_large_integer(raw: str) -> str | None:
    """Return the name of the first argument that has an integer of more than 64 bits.

    None if there is none, or if the text is not a JSON object.
    """
    # Few calls have such a number, or need to be parsed twice.
    if _MANY_DIGITS.search(raw) is None:
        return None
    try:
        arguments = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(arguments, dict):
        return None
    return next((name for name, value in arguments.items() if _has_large_integer(value)), None)


def write_json_arguments(arguments: Mapping[str, Any]) -> str:
    """Return the arguments of a call as the JSON text of an object.

    Integers keep any size. Text that is no JSON stays under `NOT_AN_OBJECT`:
    many readers refuse or complete it.
    """
    raw = arguments.get(NOT_AN_OBJECT)
    if isinstance(raw, str) and find_large_integer(raw) is not None:
        return raw
    return orjson.dumps(arguments).decode()


def explain_refusal(raw: str) -> str:
    """Return why the arguments under `NOT_AN_OBJECT` are refused, for the model."""
    name = find_large_integer(raw)
    if name is None:
        return "The arguments are not a JSON object"
    quoted = quote_text(replace_unstorable(name))
    return f"The call was not made: the argument {quoted} {HOLDS_LARGE_INTEGER}"


def _has_large_integer(value: Any) -> bool:
    """Return True if a JSON value has an integer that `clean_json_value` makes a text."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list):
            pending += item
        elif isinstance(item, int) and item not in JSON_INTEGERS:
            return True
    return False


def clean_json_value(value: Any, depth: int = 1) -> Any:
    """Return a JSON value that can be written again; an integer that is too large becomes text.

    Raises:
        ValueError: nested deeper than `_MAXIMUM_DEPTH`, or with a number that JSON does not have.
    """
    if depth > _MAXIMUM_DEPTH or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError

    if isinstance(value, str):
        return replace_unstorable(value)
    if isinstance(value, dict):
        return {
            replace_unstorable(name): clean_json_value(item, depth + 1)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [clean_json_value(item, depth + 1) for item in value]

    return str(value) if isinstance(value, int) and value not in JSON_INTEGERS else value
