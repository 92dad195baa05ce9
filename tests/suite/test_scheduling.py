"""The division of the tests among workers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.layers import Table
from tests.run import build_environment
from tests.scheduling import cut_files

ROOT = Path(__file__).parents[2]

CONFTEST = """
import pytest
from tests.layers import find_name, read_table

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(read_table().find_layer(find_name(item.nodeid)))
"""

TEST = """
import os

def write_worker(file, name):
    with open(file, "a") as lines:
        print(__name__, name, os.environ.get("PYTEST_XDIST_WORKER"), file=lines)

write_worker("imports.txt", "")

def test_a():
    write_worker("tests.txt", "a")

def test_b():
    write_worker("tests.txt", "b")
"""


def test_files_are_cut_into_parts_of_about_the_same_time() -> None:
    files = [f"test_{number}.py" for number in range(8)]
    seconds = dict(zip(files, [9.0, 1.0, 1.0, 1.0, 30.0, 1.0, 8.0, 9.0], strict=True))
    table = Table(dict.fromkeys(files, "check"), seconds)
    parts = cut_files(table, files, ["check"], 3)
    assert parts == [files[:4], files[4:5], files[5:]]


def test_only_files_with_tests_of_the_layers_are_divided() -> None:
    layers = {"a.py": "check", "b.py": "process", "b.py::test_b": "doors", "c.py": "browser"}
    table = Table(layers, {})
    files = ["a.py", "b.py", "c.py"]
    assert cut_files(table, files, ["check", "doors"], 2) == [["a.py"], ["b.py"]]
    assert cut_files(table, files, ["process"], 1) == [["b.py"]]
    assert cut_files(table, files, ["long"], 2) == [[], []]


def test_chosen_test_goes_where_its_file_would() -> None:
    table = Table({"a.py": "check", "b.py": "check"}, {"a.py": 5.0, "b.py": 5.0})
    arguments = ["b.py::test_b[x::y]", "a.py::test_a"]
    assert cut_files(table, arguments, ["check"], 2) == [arguments[:1], arguments[1:]]


def test_each_worker_runs_its_layers_and_imports_no_other_files(tmp_path: Path) -> None:
    rows = {
        "test_0.py": "check", "test_1.py": "doors", "test_2.py": "check", "test_3.py": "browser",
        "test_3.py::test_b": "check",
    }  # fmt: skip
    write_suite(tmp_path, rows)

    inside = ("--layers", "check or doors")
    output = run_suite(tmp_path, "-n", "3", *inside, "--layers", "browser", *inside)

    assert read_lines(tmp_path / "imports.txt") == [
        "test_0  gw0", "test_1  gw0", "test_2  gw2", "test_3  gw1", "test_3  gw2",
    ]  # fmt: skip
    assert read_lines(tmp_path / "tests.txt") == [
        "test_0 a gw0", "test_0 b gw0", "test_1 a gw0", "test_1 b gw0",
        "test_2 a gw2", "test_2 b gw2", "test_3 a gw1", "test_3 b gw2",
    ]  # fmt: skip
    assert "[100%]" in output


def test_each_process_loads_the_fixtures_of_its_own_files_alone(tmp_path: Path) -> None:
    write_suite(tmp_path, {"first/test_0.py": "check", "second/test_1.py": "check"})
    text, _, _ = TEST.partition("def test_a")
    for name in ("first", "second"):
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "conftest.py").write_text(text.replace("imports.txt", "loads.txt"))

    run_suite(tmp_path, "-n", "2", "--layers", "check", "--layers", "check")

    assert read_lines(tmp_path / "loads.txt") == ["first.conftest  gw0", "second.conftest  gw1"]


def write_suite(folder: Path, rows: Mapping[str, str]) -> None:
    """Write files with two tests each, and a table with their layers."""
    package = folder / "tests"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in ("scheduling.py", "layers.py"):
        shutil.copy(ROOT / "tests" / name, package)

    lines = ["test\tlayer\tseconds"]
    for name, layer in rows.items():
        lines.append(f"{name}\t{layer}\t")
        if "::" not in name:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(TEST)
    (package / "layers.tsv").write_text("\n".join(lines) + "\n")
    (folder / "conftest.py").write_text(CONFTEST)


def run_suite(folder: Path, *words: str) -> str:
    """Run the tests of a folder; return the output of pytest."""
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("test_*.py"))
    plugins = ["-p", "no:cacheprovider", "-p", "no:langsmith_plugin", "-p", "no:schemathesis"]
    pytest = [sys.executable, "-m", "pytest", "--dist", "each", "-p", "tests.scheduling", *plugins]
    result = subprocess.run(
        [*pytest, *words, *files],
        cwd=folder,
        env=build_environment(os.environ),
        check=True,
        capture_output=True,
        text=True,
    )
    return result.stdout


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file that several workers write, in a fixed order."""
    return sorted(path.read_text().splitlines())
