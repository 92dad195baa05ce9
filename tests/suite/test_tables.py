"""Tables of examples that are one test."""

from __future__ import annotations

import pytest

from tests.kit.tables import every_row


@pytest.fixture(scope="module")
def least() -> int:
    return 2


@every_row("number, text", [(2, "2"), (3, "3")])
def test_rows_get_fixtures_and_their_values(number: int, least: int, text: str) -> None:
    assert number >= least
    assert str(number) == text


def test_every_wrong_row_is_reported() -> None:
    @every_row("text", ["1", "x", "2", "y"])
    def check(text: str, least: int) -> None:
        if text == "y":
            with pytest.raises(ValueError, match="never"):
                int("1")
        assert int(text) >= least

    with pytest.raises(BaseExceptionGroup, match="3 of 4 rows are wrong") as caught:
        check(least=2)

    shown = [(type(error), error.__notes__) for error in caught.value.exceptions]
    assert shown == [
        (AssertionError, ["Row: 1"]),
        (ValueError, ["Row: x"]),
        (pytest.fail.Exception, ["Row: y"]),
    ]


def test_function_is_called_by_the_test() -> None:
    steps: list[str] = []

    def build_rows() -> list[int]:
        steps.append("build")
        return [1, 2]

    @every_row("number", build_rows)
    def check(number: int) -> None:
        steps.append(f"check {number}")

    assert steps == []
    check()
    assert steps == ["build", "check 1", "check 2"]


def test_table_without_rows_fails() -> None:
    @every_row("name", [])
    def check(name: str) -> None:
        raise NotImplementedError

    with pytest.raises(AssertionError, match="the table has no rows"):
        check()
