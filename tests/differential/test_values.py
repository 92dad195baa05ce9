"""Types of values against pydantic."""

from __future__ import annotations

import json
from random import Random
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic

from agentctl.records.value_types import WrongValue, compile_type
from tests.differential.comparison import Comparison, attempt

ANNOTATIONS: list[Any] = [
    str, int, float, bool, str | None, int | None, list[str], list[int | None], dict[str, Any],
    Literal["a", "b"], Literal["a", "b"] | None, list[Literal["a"]], list[list[bool]],
    dict[str, int] | None, list[dict[str, Any]], dict[str, list[str]],
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 5, 2**63 - 1, 2**63, 10**30, 1.0, 1.5, -0.0, 1e300, "", "a", "b",
    "c", "1", "true", "é", "\0", "\ud800", " ", "info", "echo", "/x/a", "a" * 300,
]  # fmt: skip


def check_text(text: str) -> str:
    """Refuse a text that no database stores: NUL and lone surrogates (docs/contract.md)."""
    text.encode()
    if "\0" in text:
        raise ValueError("NUL")
    return text


def check_number(number: Any) -> Any:
    """Refuse an integer of more than 64 bits (docs/contract.md)."""
    if isinstance(number, int) and not -(2**63) <= number < 2**63:
        raise ValueError("too large")
    return number


def check_json_number(number: int) -> int:
    """Refuse an integer of more than 64 bits, with or without a sign."""
    if not -(2**63) <= number < 2**64:
        raise ValueError("too large")
    return number


def check_json(value: Any) -> Any:
    """Refuse a value with such a text or number in it."""
    text = json.dumps(value, ensure_ascii=False)
    json.loads(text, parse_int=lambda digits: check_json_number(int(digits)))
    check_text(text.replace("\\u0000", "\0"))
    return value


LEAVES: dict[Any, Any] = {
    str: Annotated[str, pydantic.AfterValidator(check_text)],
    int: Annotated[int, pydantic.AfterValidator(check_number)],
    float: Annotated[float, pydantic.BeforeValidator(check_number)],
    Any: Annotated[pydantic.JsonValue, pydantic.AfterValidator(check_json)],
}


def for_pydantic(annotation: Any) -> Any:
    """Return the annotation with the rules of the project as those of pydantic."""
    if hasattr(annotation, "__value__"):
        return for_pydantic(annotation.__value__)
    if annotation in LEAVES:
        return LEAVES[annotation]
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin in (Union, UnionType):
        return Union[tuple(map(for_pydantic, arguments))]  # noqa: UP007
    if origin in (list, tuple):
        return list[for_pydantic(arguments[0])]  # type: ignore[misc]
    if origin is dict:
        return dict[for_pydantic(arguments[0]), for_pydantic(arguments[1])]  # type: ignore[misc]
    return annotation


def random_value(chance: Random, depth: int = 0) -> Any:
    kind = chance.random()
    if depth == 3 or kind < 0.6:
        return chance.choice(VALUES)
    inner = [random_value(chance, depth + 1) for _ in range(chance.choice([0, 1, 2]))]
    return inner if kind < 0.8 else {chance.choice("abé"): value for value in inner}


def to_json(value: Any) -> Any:
    """Return a value as JSON has it: no tuples or differences of 1 and 1.0."""
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    return float(value) if type(value) is int else value


def test_checked_values_are_those_of_pydantic() -> None:
    """Nothing is converted: strict mode."""
    types = [
        (str(annotation), compile_type(annotation), pydantic.TypeAdapter(for_pydantic(annotation)))
        for annotation in ANNOTATIONS
    ]
    with Comparison("types of values") as comparison:
        for number in comparison.rounds(20_000):
            name, own, library = types[number % len(types)]
            value = random_value(comparison.chance)

            def by_library(value: Any = value, library: Any = library) -> Any:
                return to_json(library.validate_python(value, strict=True))

            comparison.compare(
                (name, value),
                attempt(lambda own=own, value=value: to_json(own.check(value)), WrongValue),  # type: ignore[misc]
                attempt(by_library, ValueError),
            )
        assert comparison.accepted > 1_000
