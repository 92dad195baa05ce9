"""Faults, the runs that find their tests, and the reference (`python -m tests.faults`)."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.faults import reference
from tests.faults.__main__ import KNOWN_TESTS, list_known_tests
from tests.faults.copies import REPOSITORY
from tests.faults.forks import CONFTEST, Forks, Outcome
from tests.faults.history import HISTORY, PATCHES
from tests.faults.mutations import Fault, choose_faults, find_faults
from tests.faults.reference import KnownFault, Reference, describe_failures
from tests.faults.trials import (
    EQUIVALENT,
    Result,
    Trial,
    find_deciding_lines,
    find_near_tests,
    list_modules,
)

SOURCE = '''"""A docstring with = and AND."""

FAMILY = int | None
SQL = "SELECT 1 FROM runs WHERE run_id = :id AND seq IS NULL"

def read(rows: list[int], limit: int = 20) -> int | None:
    if (len(rows) > limit
            and rows):
        log.info("a > b")
        rows.append(min(rows), key=limit)
    return rows[limit - 1] if not rows else None

def is_long(row: str) -> bool:
    return row.endswith(f"{row} AND {row}")
'''


@pytest.mark.parametrize(
    ("line", "new"),
    [
        (4, 'SQL = "SELECT 1 FROM runs WHERE run_id <> :id AND seq IS NULL"'),
        (4, 'SQL = "SELECT 1 FROM runs WHERE run_id = :id OR seq IS NULL"'),
        (4, 'SQL = "SELECT 1 FROM runs WHERE run_id = :id AND seq IS NOT NULL"'),
        (6, "def read(rows: list[int], limit: int = 21) -> int | None:"),
        (7, "if (len(rows) >= limit"),
        (8, "or rows):"),
        (10, "rows.append(max(rows), key=limit)"),
        (10, "rows.append(min(rows))"),
        (10, "pass"),
        (11, "return rows[limit + 1] if not rows else None"),
        (11, "return rows[limit - 1] if (rows) else None"),
        (11, "return None"),
        (14, 'return (not (row.endswith(f"{row} AND {row}")))'),
    ],
)
def test_each_kind_of_fault_is_found(line: int, new: str) -> None:
    assert (line, new) in {(fault.line, fault.new) for fault in find_faults(SOURCE)}


def test_types_docstrings_logs_and_other_texts_have_no_faults() -> None:
    faults = find_faults(SOURCE)
    assert not {1, 3, 9} & {fault.line for fault in faults}
    assert [fault.new for fault in faults if fault.line == 14 and "OR" in fault.new] == []


def test_a_seed_chooses_faults_of_different_lines() -> None:
    faults = find_faults(SOURCE)
    chosen = choose_faults(faults, 6, seed=1)
    assert len({fault.line for fault in chosen}) == 6
    assert chosen == choose_faults(faults, 6, seed=1)
    assert chosen != choose_faults(faults, 6, seed=2)
    assert choose_faults(faults, 1_000, seed=1) == faults


def test_an_excluded_fault_is_replaced_and_the_others_stay() -> None:
    faults = find_faults(SOURCE)
    chosen = choose_faults(faults, 6, seed=1)
    excluded = (chosen[0].old, chosen[0].new)
    again = choose_faults(faults, 6, seed=1, without={excluded})
    assert chosen[0] not in again
    assert len(again) == 6
    assert set(chosen[1:]) <= set(again)


NESTED = """LIMIT = 3

def read(rows, size=LIMIT):
    if (
        rows
        and size
    ):
        first = rows[
            0
        ]
        return first
    try:
        with rows:
            match size:
                case 1 if rows:
                    return None
    except KeyError:
        raise
"""


@pytest.mark.parametrize(
    ("line", "deciding"),
    [
        (1, None),
        (3, range(3, 19)),
        (6, [4, 5, 6, 7]),
        (9, [8, 9, 10]),
        (11, [11]),
        (15, [14, 15]),
        (16, [16]),
        (18, [18]),
    ],
)
def test_tests_of_a_fault_execute_its_statement(
    line: int, deciding: list[int] | range | None
) -> None:
    found = find_deciding_lines(NESTED, line)
    assert found == deciding


IMPORTED = """def read(key):
    return TABLE[key]

def build():
    return {"a": 1}

TABLE = build()
"""


def test_fault_of_an_import_is_tried_with_all_tests_of_the_module(tmp_path: Path) -> None:
    """No test executes the statement: coverage counts it for none of them."""
    module = Path("module.py")
    (tmp_path / module).write_text(IMPORTED)
    outcome = Outcome(
        seconds={"t.py::test_a": 0.1, "t.py::test_b": 0.1},
        reached={1: [], 2: ["t.py::test_a"], 4: [], 5: [], 7: []},
    )
    copy: Any = SimpleNamespace(root=tmp_path)
    forks: Any = SimpleNamespace(
        run=lambda tests, **options: outcome, import_libraries=lambda: None
    )
    trial = Trial(copy, forks, module, ["t.py"])
    (fault,) = [each for each in find_faults(IMPORTED) if each.new == 'return {"a": 2}']
    assert trial.find_tests(fault) == ["t.py::test_a"]


WAITING = """async def wait(event):
    while await is_silent(event):
        if event.is_set():
            raise TimeoutError
"""


def test_fault_of_a_line_that_coverage_lost_is_tried_with_the_tests_of_its_function(
    tmp_path: Path,
) -> None:
    """Coverage loses what follows an await that an exception has ended."""
    module = Path("module.py")
    (tmp_path / module).write_text(WAITING)
    outcome = Outcome(seconds={"t.py::test_a": 0.1}, reached={1: [], 2: ["t.py::test_a"]})
    copy: Any = SimpleNamespace(root=tmp_path)
    forks: Any = SimpleNamespace(
        run=lambda tests, **options: outcome, import_libraries=lambda: None
    )
    trial = Trial(copy, forks, module, ["t.py"])
    (fault,) = [each for each in find_faults(WAITING) if each.new == "pass"]
    assert trial.find_tests(fault) == ["t.py::test_a"]


def test_test_that_never_ends_is_repeated_without_the_fault(tmp_path: Path) -> None:
    """On a busy machine a test may take long although the fault does nothing to it."""
    module = Path("module.py")
    (tmp_path / module).write_text(WAITING)
    usual = Outcome(seconds={"t.py::test_a": 0.1}, reached={2: ["t.py::test_a"]})
    stuck = Outcome(stuck="t.py::test_a")
    copy: Any = SimpleNamespace(root=tmp_path, write=lambda module, source: None)
    (fault,) = [each for each in find_faults(WAITING) if each.new == "pass"]
    for without in (usual, stuck):
        outcomes = [usual, usual, stuck, without]
        forks: Any = SimpleNamespace(
            run=lambda tests, outcomes=outcomes, **options: outcomes.pop(0),
            import_libraries=lambda: None,
        )
        trial = Trial(copy, forks, module, ["t.py"])
        if without is stuck:
            with pytest.raises(SystemExit, match="the machine is too busy"):
                trial.try_fault(fault)
        else:
            assert trial.try_fault(fault).stuck == "t.py::test_a"


SEEN = {"tests/a.py": {"test_a": 2, "test_b": 1}, "tests/b.py": {"(not imported)": 1}}


def test_failed_tests_are_listed_by_function_with_their_cases() -> None:
    failed = ["tests/a.py::test_a[1]", "tests/a.py::test_b", "tests/a.py::test_a[a::b]"]
    assert describe_failures([*failed, "tests/b.py"]) == SEEN


def test_reference_is_read_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "FOLDER", tmp_path)
    module = Path("agentctl/store/listing.py")
    first, second = find_faults(SOURCE)[:2]
    known = Reference(module)
    known.seed = 1
    known.tests = ["tests/a.py"]
    known.left_out = {"tests/a.py::test_slow": "takes long"}
    known.add(second, Result(["tests/a.py::test_a"], None, 3, 0.5))
    known.add(first, Result([], "tests/a.py::test_b", 3, 0.5))
    assert known.path == tmp_path / "store.listing.json"
    # Each fault is one line.
    assert len([line for line in known.path.read_text().splitlines() if '"old"' in line]) == 2

    again = Reference(module)
    assert (again.seed, again.tests, again.left_out) == (1, known.tests, known.left_out)
    assert again.faults == known.faults
    assert [fault.is_noticed for fault in again.faults] == [True, True]
    found = again.find(second)
    assert found is not None
    assert found.is_test("tests/a.py::test_a[3]")
    assert not found.is_test("tests/a.py::test_b")

    faults = find_faults("\n" + SOURCE)
    again.follow(faults)
    assert [fault.line for fault in again.faults] == [first.line + 1, second.line + 1]
    again.follow(find_faults(SOURCE.replace("run_id = :id", "run_id")))
    assert again.find(first) is None


def test_faults_that_only_deleted_tests_noticed_are_forgotten() -> None:
    known = Reference(Path("agentctl/store/listing.py"))
    both = {"tests/a.py": {"test_a": 1}, "tests/b.py": {"test_b": 1}}
    known.faults = [
        KnownFault(1, "a", "b", both),
        KnownFault(2, "a", "b", {"tests/b.py": {"test_b": 1}}),
        KnownFault(3, "a", "b", stuck="tests/b.py::test_b"),
        KnownFault(4, "a", "b"),
    ]
    known.keep_tests(["tests/a.py"])
    assert known.faults == [
        KnownFault(1, "a", "b", {"tests/a.py": {"test_a": 1}}),
        KnownFault(4, "a", "b"),
    ]


def test_fault_that_no_test_noticed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "FOLDER", tmp_path)
    faults = find_faults(SOURCE)
    noticed, unnoticed, equivalent = faults[:3]
    known = Reference(Path("agentctl/store/listing.py"))
    known.add(noticed, Result(["tests/a.py::test_a"], None, 3, 0.5))
    for fault in (unnoticed, equivalent):
        known.add(fault, Result([], None, 3, 0.5))

    known.follow(faults, {(equivalent.old, equivalent.new)})
    assert known.list_unnoticed(faults) == [unnoticed]
    known.add(unnoticed, Result(["tests/b.py::test_b"], None, 3, 0.5))
    assert known.list_unnoticed(faults) == []
    assert [bool(each.tests) for each in known.faults] == [True, True]


def test_fault_of_the_reference_is_found_after_its_line_has_moved() -> None:
    (fault,) = [each for each in find_faults(SOURCE) if each.new == "pass"]
    known = KnownFault(fault.line, fault.old, fault.new)
    moved = "\n" * 7 + SOURCE
    found = known.find(find_faults(moved))
    assert found is not None
    assert (found.line, found.new) == (fault.line + 7, "pass")
    assert known.find(find_faults(SOURCE.replace("append", "extend"))) is None


READS = """class Reader:
    def read(self, rows):
        self.count = 0
        rows.close()

    def skip(self, rows):
        rows.close()
        self.count = 1
        rows.close()
"""

CHECKS = """class Reader:
    def check(self, rows):
        rows.close()

"""


def list_closes(source: str) -> list[Fault]:
    """Return the faults that leave out a line `rows.close()`."""
    return [fault for fault in find_faults(source) if fault.old == "rows.close()"]


def record_all(faults: list[Fault]) -> list[KnownFault]:
    return [
        KnownFault(
            fault.line, fault.old, fault.new, function=fault.function, repetition=fault.repetition
        )
        for fault in faults
    ]


def test_moved_fault_is_found_in_its_function_among_equal_lines() -> None:
    recorded = record_all(list_closes(READS))
    assert [known.function for known in recorded] == ["Reader.read", "Reader.skip", "Reader.skip"]

    # A new method moves each line to where another equal one was.
    moved = list_closes(READS.replace("class Reader:\n", CHECKS))
    assert [fault.function for fault in moved[:2]] == ["Reader.check", "Reader.read"]
    assert [known.find(moved) for known in recorded] == moved[1:]


def test_fault_whose_place_is_gone_is_found_at_the_nearest_line() -> None:
    _, first, second = record_all(list_closes(READS))

    without_second = list_closes(READS.replace("= 1\n        rows.close()", "= 1"))
    assert second.find(without_second) == without_second[1]

    under_another_name = list_closes(READS.replace("skip", "leave"))
    assert first.find(under_another_name) == under_another_name[1]


def test_few_test_functions_try_the_faults_of_a_changed_module() -> None:
    here = "tests/faults/test_faults.py"
    first = "test_each_kind_of_fault_is_found"
    second = "test_a_seed_chooses_faults_of_different_lines"
    gone = {"tests/faults/test_gone.py": {"test_a": 1}, here: {"test_gone": 1}}
    noticed = [
        KnownFault(1, "a", "b", {here: {second: 1}}),
        KnownFault(2, "a", "b", {here: {first: 4, second: 1}}, stuck=f"{here}::{first}[1]"),
        KnownFault(3, "a", "b", gone),
        KnownFault(4, "a", "b"),
    ]
    assert list_known_tests(noticed) == [f"{here}::{second}", f"{here}::{first}"]
    tree = ast.parse(Path(__file__).read_text())
    everything = [each.name for each in tree.body if isinstance(each, ast.FunctionDef)]
    all_of_a_file = KnownFault(1, "a", "b", {here: dict.fromkeys(everything, 1)})
    assert len(list_known_tests([all_of_a_file])) == KNOWN_TESTS


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[tuple[Path, Forks]]:
    """Open a folder with a test file, and the process that runs tests there."""
    root = tmp_path / "root"
    root.mkdir()
    # Plugins of libraries need newer releases of other libraries than this package.
    (root / "pytest.ini").write_text(
        "[pytest]\naddopts = -p no:langsmith_plugin -p no:schemathesis\n"
    )
    (root / ".venv").symlink_to(sys.prefix)
    (root / "tests").symlink_to(Path(__file__).parents[1])
    opened = Forks(root, tmp_path / "t")
    yield root, opened
    opened.close()


COUNTED = """import pathlib, pytest, time, module

@pytest.mark.parametrize("number", [1, 2])
def test_double(number):
    assert module.double(number) == 2 * number

def test_name():
    assert module.get_name() == "name"

def test_end():
    if module.get_name() != "name":
        time.sleep(600)
"""

MODULE = """def double(number):
    return 2 * number

def get_name():
    return "name"
"""


def test_all_failures_of_a_changed_module_are_found_in_forks(forks: tuple[Path, Forks]) -> None:
    root, opened = forks
    (root / "module.py").write_text(MODULE)
    (root / "test_module.py").write_text(COUNTED)
    ids = [f"test_module.py::{name}" for name in ("test_double[1]", "test_double[2]", "test_name")]
    first = opened.run(["test_module.py"], seconds=60, measured=Path("module.py"))
    assert (first.failed, first.stuck, first.exit) == ({}, None, 0)
    assert first.reached == {1: [], 2: ids[:2], 4: [], 5: ["test_module.py::test_end", ids[2]]}
    opened.import_libraries()

    (root / "module.py").write_text(MODULE.replace("2 *", "20 *"))
    again = opened.run(["test_module.py"], seconds=60, only=ids)
    assert list(again.failed) == ids[:2]
    assert list(again.seconds) == ids

    (root / "module.py").write_text(MODULE.replace('"name"', '"other name"'))
    for seconds, test_seconds in ((5, 60), (60, 5)):
        stuck = opened.run(["test_module.py"], seconds=seconds, test_seconds=test_seconds)
        assert list(stuck.failed) == ids[2:]
        assert (stuck.stuck, stuck.exit) == ("test_module.py::test_end", -9)

    (root / "module.py").write_text("import nothing_like_this")
    broken = opened.run(["test_module.py"], seconds=60)
    assert list(broken.failed) == ["test_module.py"]

    (root / "conftest.py").write_text("import module")
    broken = opened.run(["test_module.py"], seconds=60)
    assert list(broken.failed) == [CONFTEST]


def test_each_real_fault_has_a_patch_and_tests_that_exist() -> None:
    listed = tomllib.loads(HISTORY.read_text())
    assert {path.stem for path in PATCHES.glob("*.patch")} == set(listed)
    for fault in listed.values():
        assert fault["subject"]
        for test in fault["tests"]:
            file, _, function = test.partition("::")
            assert f"def {function.partition('[')[0]}(" in (REPOSITORY / file).read_text()


def test_lines_of_faults_that_no_test_can_notice_exist() -> None:
    listed = tomllib.loads(EQUIVALENT.read_text())["fault"]
    for fault in listed:
        lines = {line.strip() for line in (REPOSITORY / fault["module"]).read_text().splitlines()}
        assert fault["old"] in lines, f"{fault['module']}: remove it from equivalent.toml"
        assert fault["reason"]


def test_modules_of_the_reference_and_their_near_tests_exist() -> None:
    modules = list_modules()
    assert len(modules) == 10
    for module in modules:
        assert (REPOSITORY / module).is_file()
        for test in find_near_tests(module):
            assert (REPOSITORY / test).is_file(), f"{test}: name its new place in modules.toml"
