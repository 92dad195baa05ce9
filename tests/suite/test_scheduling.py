"""The division of the tests of processes and browsers among workers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.layers import Table
from tests.run import build_environment
from tests.scheduling import find_group

ROOT = Path(__file__).parents[2]

TABLE = Table({"a.py": "process", "b.py": "browser", "c.py": "browser", "c.py::test_a": "long"}, {})

TEST = """
import os

def test_writes_its_worker():
    with open("workers.txt", "a") as file:
        print(__name__, os.environ["PYTEST_XDIST_WORKER"], file=file)
"""


def test_tests_in_the_browser_are_one_group_and_others_one_a_file() -> None:
    assert find_group(TABLE, "a.py::test_a[x::y]") == "a.py"
    assert find_group(TABLE, "b.py::test_b[x]") == "browser"
    assert find_group(TABLE, "c.py::test_b") == "browser"
    assert find_group(TABLE, "c.py::test_a") == "c.py"


def test_one_worker_has_all_tests_in_the_browser(tmp_path: Path) -> None:
    package = tmp_path / "tests"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in ("scheduling.py", "layers.py"):
        shutil.copy(ROOT / "tests" / name, package)
    rows = ["test\tlayer\tseconds"]
    for number in range(6):
        layer = "browser" if number < 4 else "process"
        rows.append(f"test_{number}.py\t{layer}\t")
        (tmp_path / f"test_{number}.py").write_text(TEST)
    (package / "layers.tsv").write_text("\n".join(rows) + "\n")

    words = ["-n", "2", "--dist", "loadfile", "-p", "tests.scheduling", "-p", "no:cacheprovider"]
    plugins = ["-p", "no:langsmith_plugin", "-p", "no:schemathesis"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *words, *plugins],
        cwd=tmp_path,
        env=build_environment(os.environ),
        check=True,
        capture_output=True,
    )

    lines = (tmp_path / "workers.txt").read_text().splitlines()
    workers = dict(line.split() for line in lines)
    assert len(workers) == 6
    assert len({workers[f"test_{number}"] for number in range(4)}) == 1
    assert len(set(workers.values())) == 2
