"""Tables of examples: all rows are one test."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

__all__ = ["every_row"]

Check = Callable[..., None]


def every_row(
    names: str, rows: Iterable[Any] | Callable[[], Iterable[Any]]
) -> Callable[[Check], Check]:
    """Check all rows of a table in one test, which is written like one with `parametrize`.

    As a case of its own, a row costs milliseconds in each process of the suite, more than most rows
    need to be checked. The test reports every wrong row with its own traceback, not only the first.

    All rows get the same fixtures. A test that needs another folder, database or environment for
    each row takes `parametrize`.

    Args:
        names: of the arguments, separated by commas.
        rows: the values of the argument; tuples if there are several arguments. A function is
            called by the test: every process collects all tests, and most do not run this one.
    """
    columns = [name.strip() for name in names.split(",")]
    given = rows if callable(rows) else list(rows)

    def decorate(check: Check) -> Check:
        @functools.wraps(check)
        def test(**fixtures: Any) -> None:
            values = given() if callable(given) else given
            table = [row if len(columns) > 1 else (row,) for row in values]
            assert table, "the table has no rows"
            wrong: list[BaseException] = []
            for row in table:
                try:
                    check(**dict(zip(columns, row, strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"Row: {', '.join(map(str, row))}")
                    wrong.append(error)
            if wrong:
                raise BaseExceptionGroup(f"{len(wrong)} of {len(table)} rows are wrong", wrong)

        # pytest looks for the fixtures in the signature; it finds the source by `__wrapped__`.
        signature = inspect.signature(check)
        parameters = [signature.parameters[name] for name in signature.parameters]
        fixtures = [parameter for parameter in parameters if parameter.name not in columns]
        test.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return test

    return decorate
