"""Validation of JSON values by the JSON Schemas of tools and questions, which may be hostile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class SchemaProblem(NamedTuple):
    """The first place of a value that does not match a schema.

    Attributes:
        place: the place inside the value: `.to[0]`; empty for the value itself.
        text: the difference from the schema.
    """

    place: str
    text: str


def is_usable_schema(schema: Mapping[str, Any]) -> bool:
    """Return True if values can be validated by a JSON Schema."""
    return _build_validator(schema) is not None


def find_schema_problem(
    schema: Mapping[str, Any], value: Any, *, mask: str | None = None
) -> SchemaProblem | None:
    """Return the first problem of a JSON value, or None.

    Patterns are matched in linear time, and no other document is read. A schema that is not usable
    allows every value: a tool with one is called as its model asks, too.

    Args:
        mask: replaces the value in the text, for texts that reach the log.
    """
    validator = _build_validator(schema, mask)
    if validator is None:
        return None
    for problem in validator.iter_errors(value):
        place = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem.instance_path
        )
        return SchemaProblem(place, str(problem.message))
    return None


def _build_validator(schema: Mapping[str, Any], mask: str | None = None) -> Any:
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(
            dict(schema), offline=True, pattern_options=jsonschema_rs.RegexOptions(), mask=mask
        )
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
        return None
