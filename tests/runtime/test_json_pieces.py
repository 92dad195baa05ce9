"""JSON of values in pieces."""

from __future__ import annotations

import json
from collections import deque
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from agentctl.runtime.json_values import encode_json
from tests.runtime.sample_tools import Rows


class Place(BaseModel):
    """A model in a value."""

    city: str


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.dates()
    | st.builds(Place, city=st.text(max_size=3))
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(deque)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.builds(Rows, st.text(max_size=3), st.tuples(inner))
    ),
)


@settings(max_examples=40)
@given(VALUES)
def test_pieces_are_the_json_of_the_value(value: Any) -> None:
    # pydantic before 2.14 converts a deque only with a fallback; agentctl does it without pydantic.
    plain = to_jsonable_python(value, fallback=list)
    expected = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))

    assert "".join(encode_json(value, 1_000_000)) == expected


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 1_000])
def test_batches_are_joined(size: int) -> None:
    numbers = list(range(size))
    names = {str(number): number for number in numbers}
    mixed = [number if number % 2 else date(2026, 1, 1) for number in numbers]

    for value in (numbers, names, mixed, set(numbers), iter(numbers)):
        plain = numbers if not isinstance(value, list | dict) else to_jsonable_python(value)
        assert json.loads("".join(encode_json(value, 1_000_000))) == plain


def test_long_text_is_cut() -> None:
    assert "".join(encode_json(["x" * 10_000], 3)) == '["xxx]'
    assert "".join(encode_json("x" * 10_000, 3)) == '"xxx'
