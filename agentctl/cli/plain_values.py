"""Conversion of the values of parameters without pydantic.

Typer imports pydantic for that: a sixth of the time of a short command, and 14 MB of a server
(docs/decisions/0127). Values in their usual form are converted here. Typer converts all others, and
reports those that are wrong.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, get_args

_NUMBERS = {int: re.compile("-?[0-9]{1,18}"), float: re.compile("-?[0-9]{1,18}([.][0-9]{1,18})?")}

_UNUSUAL = object()
"""The result for a value that Typer has to convert."""


def convert_plainly(
    parameters: Iterable[Any], check: Callable[[Any, Any, Any], None] = lambda *_: None
) -> None:
    """Let parameters of Typer convert values in their usual form without pydantic.

    Args:
        check: is called with a value as it was typed, its parameter and its context.
    """
    for parameter in parameters:
        parameter.get_runtime_param = partial(_PlainConversion, check)


class _PlainConversion:
    """The conversion of a parameter, in place of the one that Typer builds with pydantic."""

    def __init__(self, check: Callable[[Any, Any, Any], None]) -> None:
        self._check = check

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the converted value; without a value None, or () if there can be several."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        self._check(value, param, ctx)
        descriptor = param.type_descriptor
        if descriptor.is_list:
            (kind,) = get_args(descriptor.annotation)
            found: Any = [_convert(each, kind, descriptor) for each in value]
            is_plain = _UNUSUAL not in found
        else:
            found = _convert(value, descriptor.annotation, descriptor)
            is_plain = found is not _UNUSUAL
        if is_plain:
            return found
        return type(param).get_runtime_param(param).coerce(value, param=param, ctx=ctx)


def _convert(value: Any, kind: Any, descriptor: Any) -> Any:
    about = descriptor.parameter_info
    choices = descriptor.choices
    if about.parser is not None:
        return _UNUSUAL
    if choices is not None:
        return value if value in choices else _UNUSUAL
    if kind is str and isinstance(value, str):
        return value
    if kind in _NUMBERS:
        if isinstance(value, str) and _NUMBERS[kind].fullmatch(value):
            value = kind(value)
        return value if type(value) is kind and _is_inside(value, about) else _UNUSUAL
    if kind is Path and isinstance(value, str | Path) and not _has_path_rules(about):
        path = Path(value)
        if os.access(path, os.R_OK) or not os.access(path, os.F_OK):
            return path
    return _UNUSUAL


def _is_inside(number: float, about: Any) -> bool:
    return (about.min is None or number >= about.min) and (about.max is None or number <= about.max)


def _has_path_rules(about: Any) -> bool:
    allowed = about.file_okay and about.dir_okay
    more = about.exists, about.writable, about.resolve_path, about.allow_dash, about.path_type
    return not allowed or any(more)
