"""Checks of a body's fields against its type, with refusals of ours that name the field.

Types only; what a value may be is decided behind the port (see `parameters`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Required,
    get_args,
    get_origin,
    get_type_hints,
)

from typing_extensions import is_typeddict

from agentctl.errors import ValidationFailed
from agentctl.server.parameters import flag, integer, without_none
from agentctl.service.access import checked_text

__all__ = ["Shape"]

MEDIA_FIELDS = frozenset({"audio", "files", "images", "videos"})
"""Fields of AgentOS's form that this server does not take (contract.md 5)."""

MAXIMUM_DEPTH = 64
"""How deep free-form objects may nest."""

_FORM: dict[Any, tuple[Callable[[str], str | bool | int], str]] = {
    bool: (flag, "true or false"),
    int: (integer, "an integer"),
}
"""How a form spells what is no text."""

_INTEGERS = range(-(2**63), 2**63)
_PLAIN = re.compile(r"[A-Za-z0-9_]{1,64}", re.ASCII)


class _Field(NamedTuple):
    """What a field may hold; `item` is the shape of an array's elements, None for texts."""

    kind: Any
    nullable: bool
    required: bool
    item: Shape | None = None


class Shape:
    """What one kind of body may hold.

    Args:
        body: a typed dictionary of `requests`.
    """

    def __init__(self, body: type) -> None:
        hints = get_type_hints(body, include_extras=True)
        self.fields = {name: _field(hint) for name, hint in hints.items()}
        self.names = ", ".join(self.fields)

    def of_json(self, body: object, at: str = "") -> dict[str, Any]:
        """The fields of a parsed JSON body; media fields are let through when empty.

        Args:
            body: what was parsed.
            at: where in the body it stands, `scopes[0]`; empty: it is the body.

        Raises:
            ValidationFailed: a field that is unknown, missing, or not of its type.
        """
        if not isinstance(body, dict):
            raise ValidationFailed(f"{at or 'The body'} must be a JSON object")
        given = body if at else _without_media(body)
        for name in given.keys() - self.fields.keys():
            shown = _at(at, name) if _PLAIN.fullmatch(name) else f"A field of {at or 'the body'}"
            raise ValidationFailed(f"{shown} is not known; known are: {self.names}")
        return self._checked(given, at)

    def of_form(self, pairs: list[tuple[str, str]]) -> dict[str, Any]:
        """The fields of an urlencoded form; unknown ones are ignored (contract.md 5).

        A field that may be null is absent when it is empty: a form has no other way to say so.

        Raises:
            ValidationFailed: a field that is missing, repeated, or not of its type.
        """
        given = dict[str, Any]()
        for name, text in pairs:
            field = self.fields.get(name)
            if field is None:
                _without_media({name: text})
                continue
            if name in given:
                raise ValidationFailed(f"{name} is given more than once")
            given[name] = _of_text(name, field, text)
        return self._checked(given)

    def _checked(self, given: Mapping[str, Any], at: str = "") -> dict[str, Any]:
        for name, field in self.fields.items():
            if name in given:
                _check(_at(at, name), field, given[name])
            elif field.required:
                raise ValidationFailed(f"{_at(at, name)} is required")
        return dict(given)


def _at(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _without_media(body: Mapping[str, Any]) -> dict[str, Any]:
    for name in MEDIA_FIELDS & body.keys():
        if body[name]:
            raise ValidationFailed(f"{name} is not supported: only text is taken")
    return {name: value for name, value in body.items() if name not in MEDIA_FIELDS}


def _of_text(name: str, field: _Field, text: str) -> str | bool | int | None:
    if field.nullable and not text:
        return None
    convert, expected = _FORM.get(field.kind, (str, "text"))
    try:
        return convert(text)
    except ValueError:
        raise ValidationFailed(f"{name} must be {expected}") from None


def _field(hint: Any) -> _Field:
    required = get_origin(hint) is Required
    if get_origin(hint) in (Required, NotRequired):
        (hint,) = get_args(hint)
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    plain = without_none(hint)
    kind = get_origin(plain) or plain
    items = [Shape(item) for item in get_args(plain) if kind is list and is_typeddict(item)]
    return _Field(kind, plain is not hint, required, *items)


def _check(name: str, field: _Field, value: object) -> None:
    if value is None and field.nullable:
        return
    if field.item is not None:
        _check_objects(name, field.item, value)
    else:
        _CHECKS[field.kind](name, value)


def _check_objects(name: str, shape: Shape, value: object) -> None:
    if not isinstance(value, list):
        raise ValidationFailed(f"{name} must be an array of objects")
    for place, item in enumerate(value):
        shape.of_json(item, f"{name}[{place}]")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ValidationFailed(f"{name} must be a string")
    checked_text(name, value)


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValidationFailed(f"{name} must be true or false")


def _check_integer(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value not in _INTEGERS:
        raise ValidationFailed(f"{name} must be an integer")


def _check_list(name: str, value: object) -> None:
    if not isinstance(value, list):
        raise ValidationFailed(f"{name} must be an array of strings")
    for item in value:
        _check_text(name, item)


def _check_object(name: str, value: object) -> None:
    """A free-form object: what the store and its JSON can hold, and no deeper than we write it."""
    if not isinstance(value, dict):
        raise ValidationFailed(f"{name} must be an object")
    level: list[Any] = [value]
    for _ in range(MAXIMUM_DEPTH):
        level = [part for item in level for part in _parts(name, item)]
        if not level:
            return
    raise ValidationFailed(f"{name} nests deeper than {MAXIMUM_DEPTH} levels")


def _parts(name: str, item: object) -> list[Any]:
    """What `item` holds, after a check of `item` itself."""
    if isinstance(item, dict):
        return [*item.keys(), *item.values()]
    if isinstance(item, list):
        return item
    if isinstance(item, str):
        _check_text(name, item)
    elif isinstance(item, int) and item not in _INTEGERS:
        raise ValidationFailed(f"{name} holds an integer of more than 64 bits")
    return []


_CHECKS: dict[Any, Callable[[str, object], None]] = {
    Literal: _check_text,
    str: _check_text,
    bool: _check_flag,
    int: _check_integer,
    list: _check_list,
    dict: _check_object,
}
