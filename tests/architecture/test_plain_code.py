"""The check of packed code, which `make lint` executes: what it finds, and what it permits."""

from __future__ import annotations

import textwrap

import pytest

from tests.architecture.plain_code import find_problems


def find_lines(source: str) -> list[int]:
    return [problem.line for problem in find_problems(textwrap.dedent(source))]


@pytest.mark.parametrize(
    "statement",
    [
        "first, second = 1, 2",
        "(self.count, self.name) = 0, ''",
        "rows, total = [], count_rows()",
        "[first, second] = [1, 2]",
        "point = x, y = 1, 2",
    ],
)
def test_packed_assignment_is_found(statement: str) -> None:
    assert find_lines(statement) == [1]


@pytest.mark.parametrize(
    "statement",
    [
        "first, second = second, first",
        "rows[i], rows[j] = rows[j], rows[i]",
        "self.first, self.second = self.second, self.first",
        "low, high = high, low + high",
        "name, value = read_pair()",
        "first, *rest = 1, 2, 3",
        "pair = 1, 2",
    ],
)
def test_swap_and_unpacking_are_permitted(statement: str) -> None:
    assert find_lines(statement) == []


def test_nested_condition_is_found_at_its_line() -> None:
    assert find_lines("x = 1 if a else 2 if b else 3") == [1]
    assert find_lines("x = [1 if a else 2 for a in b] if b else []") == [1]
    assert find_lines("x = (\n    1\n    if a\n    else (2 if b else 3)\n)") == [4]


def test_conditions_next_to_each_other_are_permitted() -> None:
    assert find_lines("x = read(1 if a else 2, 3 if b else 4)") == []


@pytest.mark.parametrize(
    "statement",
    [
        "x = build(\n    1, name() if y else 2,\n)  # fmt: skip",
        "x = [\n    name for name in names\n]  # fmt: skip",
        "def read():\n    x = build(\n        1, 2,\n    )  # fmt: skip",
        "def read():\n    x = (\n        'a', name,\n    )  # fmt: skip",
        "def read(\n    a, b,\n):  # fmt: skip\n    pass",
        "return build([\n    1, 2,\n],\n    3)  # fmt: skip",
        "total += (y\n     + 1)  #fmt:skip",
    ],
)
def test_code_with_its_own_layout_is_found(statement: str) -> None:
    comment_line = 1 + statement[: statement.index("fmt:")].count("\n")
    assert find_lines(statement) == [comment_line]


def test_formatter_is_never_off() -> None:
    assert find_lines("# fmt: off\nX = {\n    1: 2,\n}\n# fmt: on\n") == [1]


@pytest.mark.parametrize(
    "statement",
    [
        "X = {\n    'a': 1, 'b': -2,\n}  # fmt: skip",
        "X: Final = (\n    Kind.ONE, OTHER, str | None, *MORE,\n)  # fmt: skip",
        "X = frozenset({\n    'a', 'b',\n})  # fmt: skip",
        "X = Machine(\n    Step('a', f'{KIND} b'), Step('c', math.nan, end=read),\n)  # fmt: skip",
        "X = Literal[\n    'a', 'b',\n]  # fmt: skip",
        "assert names == [\n    'a', 'b',\n]  # fmt: skip",
    ],
)
def test_table_of_constants_may_keep_its_layout(statement: str) -> None:
    assert find_lines(statement) == []
