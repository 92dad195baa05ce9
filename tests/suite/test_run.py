"""The driver of the suite: stages, retries, environment and report."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.accounting import Account, read_accounts
from tests.layers import Table, read_table
from tests.run import (
    Run,
    Stage,
    build_environment,
    choose_near_stage,
    choose_repeated_stage,
    choose_stages,
    shuffle_files,
)

ROOT = Path(__file__).parents[2]

CHECK = Stage("check", ("check", "doors"), ("a.py",), ("-n", "4"))
ALL = Stage("all", ("process",), ("b.py",), ("-n", "2"))

TABLE = Table(
    {"a.py": "check", "b.py": "doors", "c.py": "process", "d.py": "browser", "e.py": "long"},
    {"e.py": 9.0},
)


class Script:
    """Reports of pytest, call by call, and the arguments that it got.

    Args:
        calls: of each call, the exit code and the outcome of each test.
        layer: of all tests.
    """

    def __init__(self, *calls: tuple[int, dict[str, str]], layer: str = "process") -> None:
        self._calls = list(calls)
        self._layer = layer
        self.arguments: list[Sequence[str]] = []

    def __call__(self, arguments: Sequence[str]) -> tuple[int, list[Account]]:
        self.arguments.append(arguments)
        code, outcomes = self._calls.pop(0)
        accounts = [
            Account(test, self._layer, outcome, "AssertionError: 1\t2", seconds=1.5)
            for test, outcome in outcomes.items()
        ]
        return code, accounts


def start(folder: Path, script: Script) -> Run:
    return Run(script, folder / "cache")


def test_test_that_passes_when_it_is_alone_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script(
        (1, {"b.py::test_a": "failed", "b.py::test_b": "passed"}), (0, {"b.py::test_a": "passed"})
    )
    run = start(tmp_path, script)
    assert run.execute([ALL]) == 0
    assert script.arguments[1] == ["-n", "0", "b.py::test_a"]

    heading, row = (run.folder / "reruns.tsv").read_text().splitlines()
    assert heading.split("\t") == ["commit", "test", "seconds", "load", "outcome", "message"]
    _, test, seconds, _, outcome, message = row.split("\t")
    assert (test, seconds, outcome) == ("b.py::test_a", "1.5", "passed")
    assert message == "AssertionError: 1 2"

    assert read_accounts(run.folder / "accounts.jsonl") == list(run.accounts.values())
    printed = capsys.readouterr().out
    assert "Retries: 1" in printed
    assert "  b.py::test_a (1.5 s): AssertionError: 1" in printed
    assert printed.splitlines()[-1].startswith("==== 2 passed in ")


def test_test_that_fails_twice_fails_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = (1, {"b.py::test_a": "failed"})
    assert start(tmp_path, Script(failed, failed)).execute([ALL]) == 1
    printed = capsys.readouterr().out
    assert "FAILED b.py::test_a failed twice" in printed
    assert printed.splitlines()[-1].startswith("==== 1 failed in ")


def test_more_than_two_failures_are_not_retried(tmp_path: Path) -> None:
    script = Script((1, {f"b.py::test_{number}": "failed" for number in range(3)}))
    run = start(tmp_path, script)
    assert run.execute([ALL]) == 1
    assert run.failures == ["all: 3 tests failed"]
    assert not (run.folder / "reruns.tsv").exists()


def test_failure_in_process_is_not_retried_and_the_next_stage_runs(tmp_path: Path) -> None:
    calls = ((1, {"a.py::test_a": "failed"}), (0, {"b.py::test_b": "passed"}))
    script = Script(*calls, layer="doors")
    run = start(tmp_path, script)
    assert run.execute([CHECK, ALL], ["-q"]) == 1
    assert script.arguments == [
        ["-n", "4", "-m", "check or doors", "-q", "a.py"],
        ["-n", "2", "-m", "process", "-q", "b.py"],
    ]
    assert run.failures == ["check: 1 tests failed"]


@pytest.mark.parametrize("code", [2, 3, 4, 5, -9])
def test_stage_without_a_result_fails(tmp_path: Path, code: int) -> None:
    run = start(tmp_path, Script((code, {})))
    assert run.execute([ALL]) == 1
    assert run.failures == [f"all: pytest ended with {code}"]


def test_stage_without_files_runs_nothing(tmp_path: Path) -> None:
    run = start(tmp_path, Script())
    assert run.execute([Stage("long 8 of 8", ("long",), ())]) == 0


def test_stages_have_the_files_of_their_layers() -> None:
    (check,) = choose_stages("check", TABLE)
    assert check.files == ("a.py",)
    assert check.arguments[:2] == ("-n", "4")

    (test,) = choose_stages("test", TABLE)
    assert test.files == ("a.py", "b.py", "c.py", "d.py")
    assert test.layers == ("check", "doors", "process", "browser")
    assert test.arguments[:2] == ("-n", "6")
    assert test.arguments.count("--layers") == 6

    assert [stage.files for stage in choose_stages("long", TABLE)][:2] == [("e.py",), ()]
    (shard,) = choose_stages("long", TABLE, 1)
    assert shard.files == ("e.py",)


def test_seed_gives_an_order_of_the_same_files() -> None:
    files = tuple(f"test_{number}.py" for number in range(20))
    stage = Stage("check", ("check",), files, ("-n", "3"))
    shuffled = shuffle_files(stage, 1)
    assert shuffled.files != files
    assert sorted(shuffled.files) == sorted(files)
    assert shuffled.arguments == stage.arguments
    assert shuffle_files(stage, 1) == shuffled
    assert shuffle_files(stage, 2) != shuffled


def test_tests_near_a_module_have_its_name_or_folder_or_import_it() -> None:
    files = ("tests/auth/test_accounts.py", "tests/suite/test_layers.py", "tests/suite/test_run.py")
    table = Table({**dict.fromkeys(files, "check"), "tests/service/test_runs.py": "check"}, {})
    assert choose_near_stage(["tests/layers.py"], table).files == files[1:]
    assert choose_near_stage(["agentctl/cli/accounts.py"], table).files == files[:1]
    near = choose_near_stage(["agentctl/service/operations/accounts.py", "README.md"], table)
    assert near.files == (files[0], "tests/service/test_runs.py")
    assert choose_near_stage(["tests/suite/test_run.py"], table).files == files[2:]
    assert choose_near_stage(["tests/suite/test_absent.py"], table).files == ()


def test_environment_is_not_that_of_the_shell() -> None:
    shell = {
        "PATH": "/bin", "HOME": "/root", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1",
        "AGENTCTL_TEST_LONG": "1", "AGENTCTL_URL": "x", "COVERAGE_FILE": "c", "http_proxy": "x",
    }  # fmt: skip
    assert build_environment(shell) == {
        "PATH": "/bin", "HOME": "/root", "LANG": "C.UTF-8",
        "AGENTCTL_TEST_LONG": "1", "COVERAGE_FILE": "c",
    }  # fmt: skip
    assert build_environment({"LANG": "de_DE.UTF-8"}) == {"LANG": "de_DE.UTF-8"}


PROJECT = """
import subprocess, sys
import pytest
from tests.notices import PAGE, tell

@pytest.fixture
def broken():
    raise KeyError("no fixture")

@pytest.mark.check
def test_passes():
    sum(range(3_000_000))

@pytest.mark.check
def test_fails():
    assert 1 == 2

@pytest.mark.doors
def test_breaks(broken):
    pass

@pytest.mark.doors
def test_skips():
    pytest.skip("not here")

@pytest.mark.process
def test_starts_a_program():
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))", "serve"], check=True)
    tell(PAGE, "https://example.org")
"""


def test_repeated_tests_are_those_in_process_of_some_paths() -> None:
    table = read_table()
    stage = choose_repeated_stage(["tests/suite", "tests/runs/test_queue.py"], table, 7)
    suite = {file for file in table.find_files(["check"]) if file.startswith("tests/suite/")}
    assert set(stage.files) == {"tests/runs/test_queue.py", *suite}
    assert stage.layers == ("check", "doors")
    assert stage.arguments[stage.arguments.index("--rounds") + 1] == "7"


REPEATED = """
import pytest

@pytest.fixture(scope="session")
def shared():
    print("shared begins")
    yield
    print("shared ends")

@pytest.fixture
def own(shared):
    print("own begins")
    yield
    print("own ends")

numbers = iter(range(10))

def test_passes(own):
    print("test")

def test_fails_in_the_second_round(own):
    assert next(numbers) != 1
"""


def test_all_tests_run_in_each_round_and_share_a_session(tmp_path: Path) -> None:
    package = tmp_path / "tests"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(ROOT / "tests" / "repeating.py", package)
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_project.py").write_text(REPEATED)
    plugins = ["-p", "no:langsmith_plugin", "-p", "no:schemathesis", "-p", "no:cacheprovider"]
    words = ["-s", "-n", "0", "-p", "tests.repeating", "--rounds", "3", *plugins]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env=build_environment(os.environ),
        check=False,
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 1
    assert ended.stdout.count("shared begins") == ended.stdout.count("shared ends") == 1
    assert ended.stdout.count("own begins") == ended.stdout.count("own ends") == 6
    failed = re.findall(r"Round (\d) of 3: (\d) of 2 tests failed", ended.stdout)
    assert failed == [("1", "0"), ("2", "1"), ("3", "0")]


@pytest.mark.parametrize("workers", ["0", "1"])
def test_costs_of_each_test_are_written(tmp_path: Path, workers: str) -> None:
    package = tmp_path / "tests"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in ("accounting.py", "notices.py", "layers.py"):
        shutil.copy(ROOT / "tests" / name, package)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  check\n  doors\n  process\n")
    (tmp_path / "test_project.py").write_text(PROJECT)
    path = tmp_path / "accounts.jsonl"
    words = ["-p", "tests.accounting", "--account", str(path), "-n", workers]
    plugins = ["-p", "no:langsmith_plugin", "-p", "no:schemathesis", "-p", "no:cacheprovider"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *words, *plugins],
        cwd=tmp_path,
        env=build_environment(os.environ),
        check=False,
        capture_output=True,
    )

    accounts = {each.test.partition("::")[2]: each for each in read_accounts(path)}
    shown = {name: (each.layer, each.outcome) for name, each in accounts.items()}
    assert shown == {
        "test_passes": ("check", "passed"),
        "test_fails": ("check", "failed"),
        "test_breaks": ("doors", "failed"),
        "test_skips": ("doors", "skipped"),
        "test_starts_a_program": ("process", "passed"),
    }
    assert accounts["test_fails"].message == "assert 1 == 2"
    assert accounts["test_breaks"].message == "KeyError: 'no fixture'"
    assert accounts["test_passes"].cpu > 0.01

    program = accounts["test_starts_a_program"]
    assert (program.programs, program.servers, program.pages) == (1, 1, 1)
    assert program.cpu > 0.01
