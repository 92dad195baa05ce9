"""Values of parameters are converted without pydantic as Typer converts them with it."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer

from agentctl.cli.plain_values import convert_plainly
from tests.differential.comparison import report

TEXTS = [
    "", " ", "a", "A", "b", "-", "auto", "1", "-1", "+1", " 1", "1 ", "1_0", "01", "1.0", "1.5",
    "-0", ".5", "5.", "1e3", "nan", "inf", "0x1", "٣", "100", "101", "9" * 20, "true",
    "yes", "None", "é", "a\nb",
]  # fmt: skip


def declare(
    text: Annotated[str, typer.Option()] = "",
    maybe: Annotated[str | None, typer.Option()] = None,
    number: Annotated[int, typer.Option()] = 3,
    bounded: Annotated[int | None, typer.Option(min=-1, max=100)] = None,
    seconds: Annotated[float | None, typer.Option(min=0.5)] = None,
    clamped: Annotated[int, typer.Option(max=50, clamp=True)] = 3,
    choice: Annotated[Literal["auto", "a"], typer.Option()] = "auto",
    any_case: Annotated[Literal["auto", "A"] | None, typer.Option(case_sensitive=False)] = None,
    path: Annotated[Path | None, typer.Option()] = None,
    folder: Annotated[Path | None, typer.Option(file_okay=False)] = None,
    existing: Annotated[Path | None, typer.Option(exists=True)] = None,
    parsed: Annotated[str | None, typer.Option(parser=str.upper)] = None,
    many: Annotated[list[str] | None, typer.Option()] = None,
    paths: Annotated[list[Path] | None, typer.Option()] = None,
    numbers: Annotated[list[int] | None, typer.Argument()] = None,
) -> None:
    """Declare a parameter of each kind."""


def _convert(convert: Any, parameter: Any, value: Any) -> object:
    try:
        result = convert(value, param=parameter, ctx=None)
    except Exception as error:
        return type(error), str(error)
    return type(result), repr(result)


def test_values_are_converted_as_typer_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").touch()
    (tmp_path / "b").mkdir()
    app = typer.Typer(add_completion=False)
    app.command()(declare)
    plain, standard = (typer.main.get_command(app).params for _ in range(2))
    convert_plainly(plain)
    exchanges = 0
    several = [[], ["a"], ("b", "a"), ["1", "2"], ["1", "x"]]
    for value, (ours, theirs) in itertools.product(
        [None, *TEXTS, *several, 3, 3.5, True, "a/b", os.fspath(tmp_path)],
        zip(plain, standard, strict=True),
    ):
        if isinstance(value, list | tuple) == (ours.multiple or ours.nargs == -1) or value is None:
            found, expected = (
                _convert(each.get_runtime_param().coerce, each, value) for each in (ours, theirs)
            )
            assert found == expected, (ours.name, value)
            exchanges += 1
    report("values of options", exchanges)
