"""Types of configuration values that several tables share: ids of other entries, paths, secrets.

The descriptions are part of error messages and of the reference page.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from agentctl.records.schema_words import HIDDEN_KEYWORD
from agentctl.records.text import find_json_problem

Mark = TypeVar("Mark")

PROBLEM = "problem"
"""The type of an error whose text is complete: it replaces the words for the allowed values."""

REPEATS: Mapping[str, bool] = {"repeats": True}
"""Metadata of the field of a list whose elements may occur more than once."""

HIDDEN = Field(json_schema_extra={HIDDEN_KEYWORD: True})
"""The mark of values that no error repeats: a secret may have been written in their place."""


@dataclass(frozen=True)
class Reference:
    """The mark of the id of an entry of another table, checked after all tables are read."""

    tables: tuple[str, ...]

    @property
    def notation(self) -> str:
        """The tables as in the file: `[[agents]] or [[teams]]`."""
        return " or ".join(f"[[{table}]]" for table in self.tables)

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(core_schema), "description": f"the id of an entry of {self.notation}"}


def find_mark(annotation: Any, mark: type[Mark]) -> Mark | None:
    """Return the mark of a class in an annotation or an annotation in it; None without a mark."""
    for part in (*getattr(annotation, "__metadata__", ()), *get_args(annotation)):
        if isinstance(part, mark):
            return part
        inner_mark = find_mark(part, mark)
        if inner_mark is not None:
            return inner_mark
    return None


def _make_absolute(value: Any, info: ValidationInfo) -> Path:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return Path(os.path.normpath(cast(Path, info.context) / value))


def _make_absolute_or_none(value: Any, info: ValidationInfo) -> Path | None:
    return None if value == "" else _make_absolute(value, info)


FilePath = Annotated[
    Path,
    PlainValidator(
        _make_absolute,
        json_schema_input_type=Annotated[str, Field(description="the path of a file")],
    ),
]
"""A path, relative to the folder that is the context of the validation; then it is absolute."""

OptionalPath = Annotated[
    Path | None,
    PlainValidator(
        _make_absolute_or_none,
        json_schema_input_type=Annotated[str, Field(description="the path of a file, or empty")],
    ),
]
"""A `FilePath`, or None for an empty text."""


def _as_tuple(value: Any) -> Any:
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(value) if isinstance(value, list) else value


ONE_OR_MORE = BeforeValidator(_as_tuple)
"""Lets a list with one element be written without brackets; an empty text is no element."""


def _check_json(value: dict[str, Any]) -> dict[str, Any]:
    if problem := find_json_problem(value):
        raise PydanticCustomError(PROBLEM, "{problem}", {"problem": problem})
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_check_json)]
"""A table whose members are sent as JSON."""
