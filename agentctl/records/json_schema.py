"""Validation of JSON values by the JSON Schemas of tools and questions, which may be hostile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from agentctl.errors import ValidationFailed

MAXIMUM_SUBSCHEMAS = 1_000
"""Maximum number of subschemas of a request's schema, each counted wherever it is referred to."""

_FOREIGN = ("$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor")


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


def is_valid_schema(schema: Mapping[str, Any]) -> bool:
    """Return True for a JSON Schema, also for one with patterns that need backtracking."""
    import jsonschema_rs

    try:
        jsonschema_rs.validator_for(dict(schema), offline=True)
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
        return False
    return True


def check_subschemas(name: str, schema: Mapping[str, Any]) -> bool:
    """Check the references of a request's schema and the number of its subschemas.

    Args:
        name: the field, for the error.

    Returns:
        True if the schema is recursive.

    Raises:
        ValidationFailed: it has too many subschemas, refers to another document or to something
            that it does not have.
    """
    count, is_recursive = 0, False
    waiting: list[tuple[Any, tuple[str, ...]]] = [(schema, ())]
    while waiting:
        node, above = waiting.pop()
        count += 1
        if count > MAXIMUM_SUBSCHEMAS:
            raise ValidationFailed(f"{name} has more than {MAXIMUM_SUBSCHEMAS} subschemas")
        if isinstance(node, dict):
            if any(key in node for key in _FOREIGN):
                raise ValidationFailed(f"{name} must use no references except $ref")
            reference = node.get("$ref")
            if isinstance(reference, str) and reference in above:
                is_recursive = True
            elif isinstance(reference, str):
                waiting.append((_resolve(name, schema, reference), (*above, reference)))
        children = node.values() if isinstance(node, dict) else node
        waiting += [(child, above) for child in children if isinstance(child, dict | list)]
    return is_recursive


def _resolve(name: str, root: Mapping[str, Any], reference: str) -> Mapping[str, Any]:
    """Return the subschema of a reference within the document (RFC 6901)."""
    pointer, node = reference.removeprefix("#/"), root
    if pointer != reference:
        for segment in pointer.split("/"):
            child = node.get(segment.replace("~1", "/").replace("~0", "~"))
            if not isinstance(child, dict):
                break
            node = child
        else:
            return node
    raise ValidationFailed(f"{name} refers to something that it does not have")


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
