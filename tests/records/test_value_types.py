"""Types of values: checks of parsed values, texts of parameters, and the words of errors."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, Required

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import TypeAliasType, TypedDict

from agentctl.records.times import ParsedTimestamp, format_rfc3339
from agentctl.records.value_types import WrongValue, compile_type, field_types, find_mismatch

Size = TypeAliasType("Size", Literal["small", "large"])


class Grant(TypedDict):
    scope: Required[str]
    effect: NotRequired[Literal["allow"]]


class Order(TypedDict, total=False):
    name: Required[Annotated[str | None, "a comment"]]
    size: Size
    count: int | None
    grants: list[Grant]
    extra: dict[str, Any]
    labels: dict[str, str]


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
integers = st.integers(-(2**63), 2**63 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | integers | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    bool: st.booleans(),
    int: integers,
    float: integers | st.floats(),
    Size: st.sampled_from(["small", "large"]),
    dict[str, Any]: st.dictionaries(texts, json_values, max_size=3),
}
annotations = st.recursive(
    st.sampled_from(list(VALUES)).map(lambda annotation: (annotation, VALUES[annotation])),
    lambda inner: (
        inner.map(lambda pair: (list[pair[0]], st.lists(pair[1], max_size=3)))
        | inner.map(lambda pair: (pair[0] | None, pair[1] | st.none()))
    ),
    max_leaves=3,
)


@settings(max_examples=40)
@given(st.data())
def test_values_of_an_annotation_match_it(data: st.DataObject) -> None:
    annotation, values = data.draw(annotations)
    assert find_mismatch(data.draw(values), annotation) is None


@given(integers.filter(lambda number: len(str(abs(number))) <= 18), st.booleans())
def test_texts_of_parameters_are_parsed(number: int, truth: bool) -> None:
    assert compile_type(int).parse(str(number)) == number
    assert compile_type(bool | None).parse(str(truth)) is truth
    assert compile_type(Annotated[str, "text"]).parse(str(number)) == str(number)
    time = abs(number) % 10**15
    assert compile_type(ParsedTimestamp | None).parse(format_rfc3339(time)) == time


@pytest.mark.parametrize(
    ("annotation", "text", "problem"),
    [
        (int, "1.0", "must be an integer"),
        (int, "9" * 19, "must be an integer"),
        (int | None, "", "must be an integer"),
        (float, "nan", "must be a number"),
        (bool, "yes", "must be true or false"),
        (Size | None, "medium", "must be one of: small, large"),
        (ParsedTimestamp, "today", "must be an RFC 3339 date-time, such as 2026-11-20T08:18:10Z"),
        (dict[str, Any], "{", "must be a JSON object"),
        (list[str], "a", "must be a list, each element a string"),
        (str, "\ud800", "must not contain NUL or lone surrogates"),
    ],
)
def test_wrong_text_gets_the_words_of_the_type(annotation: Any, text: str, problem: str) -> None:
    with pytest.raises(WrongValue) as wrong:
        compile_type(annotation).parse(text)
    assert wrong.value.problem == problem


def test_fields_of_a_record_state_what_must_be_present() -> None:
    assert [name for name, field in field_types(Order).items() if field.required] == ["name"]
    assert [name for name, field in field_types(Grant).items() if field.required] == ["scope"]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"data": [{"id": "a", "size": 1}]}, "data[0].size"),
        ({"data": [{"size": "huge", "more": 1}]}, "data[0].id"),
        ({"data": {}}, "data"),
        ({"data": [{"id": "a", "size": "huge", "more": 1}]}, None),
        ({}, "data"),
        (None, ""),
    ],
)
def test_record_of_a_later_version_matches(value: object, place: str | None) -> None:
    assert find_mismatch(value, Listing) == place


class Row(TypedDict):
    id: str
    size: NotRequired[Literal["small", "large"]]


class Listing(TypedDict):
    data: list[Row]
