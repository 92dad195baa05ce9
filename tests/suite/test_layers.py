"""The table of layers, and how it is divided into shards."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.layers import Table, find_name, find_problems, read_table

ROOT = Path(__file__).parents[2]

_FUNCTION = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)


def write_table(folder: Path, *rows: str) -> Path:
    path = folder / "layers.tsv"
    lines = ["test\tlayer\tseconds", *(row.replace(" ", "\t") for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_every_file_has_one_layer() -> None:
    files: list[str] = []
    functions: list[str] = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = str(path.relative_to(ROOT))
        files.append(file)
        functions += [f"{file}::{name}" for name in _FUNCTION.findall(path.read_text())]
    problems = find_problems(read_table(), files, functions)
    assert not problems, "write a line of tests/layers.tsv for each:\n" + "\n".join(problems)


def test_missing_unknown_and_needless_lines_are_problems() -> None:
    table = Table({"a.py": "check", "a.py::test_a": "check", "b.py": "long"}, {})
    assert find_problems(table, ["a.py", "c.py"], ["a.py::test_a"]) == [
        "c.py has no layer",
        "b.py does not exist",
        "a.py::test_a has the layer of its file",
    ]


def test_function_has_its_own_layer_or_that_of_its_file(tmp_path: Path) -> None:
    table = read_table(write_table(tmp_path, "a.py check ", "a.py::test_kill process "))
    assert table.find_layer("a.py::test_kill") == "process"
    assert table.find_layer("a.py::test_other") == "check"
    assert table.find_layer("b.py::test_other") is None


def test_file_of_a_chosen_function_is_chosen(tmp_path: Path) -> None:
    rows = ("a.py check ", "a.py::test_kill process ", "b.py process ", "c.py check ")
    table = read_table(write_table(tmp_path, *rows))
    assert table.find_files(["process"]) == ["a.py", "b.py"]
    assert table.find_files(["check"]) == ["a.py", "c.py"]


@pytest.mark.parametrize(
    ("row", "problem"), [("b.py slow ", "no layer 'slow'"), ("a.py long ", "a.py is listed twice")]
)
def test_wrong_line_is_refused(tmp_path: Path, row: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_table(write_table(tmp_path, "a.py check ", row))


def test_shards_have_all_files_once_and_similar_times(tmp_path: Path) -> None:
    rows = [f"test_{number:02}.py long {number}" for number in range(1, 21)]
    table = read_table(write_table(tmp_path, *rows, "other.py check 99"))
    shards = table.divide_files("long", 4)
    assert sorted(file for shard in shards for file in shard) == sorted(table.find_files(["long"]))
    times = [sum(table.seconds[file] for file in shard) for shard in shards]
    assert max(times) - min(times) < 5, times


def test_name_has_no_parameters() -> None:
    assert find_name("a.py::test_key[x::y]") == "a.py::test_key"


def test_every_helper_of_all_folders_is_described() -> None:
    page = (ROOT / "docs" / "internals" / "testing.md").read_text()
    tests = ROOT / "tests"
    modules = {path.name for path in (*tests.glob("*.py"), *tests.glob("kit/*.py"))}
    modules -= {"__init__.py", "conftest.py"}
    described = set(re.findall(r"`(\w+\.py)`", page))
    assert modules <= described, modules - described
