"""The folder in memory for the files of a run of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import memory
from tests.memory import call_in_memory, has_room


@pytest.fixture
def with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(memory, "ENOUGH_BYTES", 1)


class Work:
    """A run of tests that leaves a file."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.folder: str | None = None

    def __call__(self) -> int:
        self.folder = os.environ.get("TMPDIR")
        if self.folder is not None:
            Path(self.folder, "test.db").touch()
        return self.code


def test_files_of_a_run_that_passes_are_removed(with_room: None, tmp_path: Path) -> None:
    work = Work(code=0)
    assert call_in_memory(work, tmp_path) == 0
    assert work.folder is not None
    assert work.folder.startswith(str(tmp_path / f"agentctl-tests-{os.getpid()}-"))
    assert [*tmp_path.iterdir()] == []
    assert "TMPDIR" not in os.environ


def test_files_of_a_run_that_is_interrupted_are_removed(with_room: None, tmp_path: Path) -> None:
    def interrupt() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_in_memory(interrupt, tmp_path)
    assert [*tmp_path.iterdir()] == []
    assert "TMPDIR" not in os.environ


def test_files_of_a_run_that_fails_stay_until_the_next_run(
    with_room: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = tmp_path / f"agentctl-tests-{ended.pid}-x"
    (left / "pytest-of-me").mkdir(parents=True)
    work = Work(code=1)
    assert call_in_memory(work, tmp_path) == 1

    assert not left.exists()
    assert work.folder is not None
    assert Path(work.folder, "test.db").exists()
    assert f"failed are in {work.folder} until the next run" in capsys.readouterr().out


def test_files_of_a_run_that_goes_on_stay(with_room: None, tmp_path: Path) -> None:
    other = tmp_path / f"agentctl-tests-{os.getppid()}-x"
    other.mkdir()
    call_in_memory(Work(code=0), tmp_path)
    assert [*tmp_path.iterdir()] == [other]


def test_folder_that_the_caller_has_chosen_stays_in_use(
    with_room: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/tmp")
    work = Work(code=0)
    call_in_memory(work, tmp_path)
    assert work.folder == "/tmp"


def test_small_or_missing_file_system_is_not_used(
    with_room: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert has_room(tmp_path)
    assert not has_room(tmp_path / "missing")

    monkeypatch.setattr(memory, "ENOUGH_BYTES", 1 << 60)
    work = Work(code=0)
    call_in_memory(work, tmp_path)
    assert work.folder is None
    assert [*tmp_path.iterdir()] == []
