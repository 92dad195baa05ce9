"""Lock files: who holds one lives."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentctl.runs.process import WorkerLock, is_lock_free, remove_lock, remove_stale_locks


def test_a_lock_is_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "workers"
    lock = WorkerLock.acquire(folder, "w1")
    file = folder / "w1.lock"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not is_lock_free(folder, "w1")
    lock.remove()
    assert not file.exists()


def test_a_lock_that_is_dropped_is_free_and_asking_leaves_it_so(tmp_path: Path) -> None:
    WorkerLock.acquire(tmp_path, "w1").release()
    assert is_lock_free(tmp_path, "w1")
    assert is_lock_free(tmp_path, "w1")
    remove_lock(tmp_path, "w1")
    remove_lock(tmp_path, "w1")
    assert list(tmp_path.iterdir()) == []


def test_no_file_decides_nothing(tmp_path: Path) -> None:
    assert not is_lock_free(tmp_path, "w1")
    assert not is_lock_free(tmp_path / "nowhere", "w1")


def test_an_id_has_one_lock(tmp_path: Path) -> None:
    lock = WorkerLock.acquire(tmp_path, "w1")
    with pytest.raises(FileExistsError):
        WorkerLock.acquire(tmp_path, "w1")
    lock.remove()


def test_programs_that_are_started_do_not_inherit_it(tmp_path: Path) -> None:
    lock = WorkerLock.acquire(tmp_path, "w1")
    program = [sys.executable, "-c", "print('up', flush=True); input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, close_fds=False) as child:
        # Only once the program itself runs is what it may not have closed.
        assert child.stdout is not None
        child.stdout.readline()
        lock.release()
        free = is_lock_free(tmp_path, "w1")
        child.communicate(b"\n")
    assert free


def test_files_of_nobody_are_removed_once_they_are_old(tmp_path: Path) -> None:
    held = WorkerLock.acquire(tmp_path, "held")
    for name in ("stray", "known", "young"):
        WorkerLock.acquire(tmp_path, name).release()
    for name in ("held", "stray", "known"):
        os.utime(tmp_path / f"{name}.lock", times=(time.time() - 3600,) * 2)
    remove_stale_locks(tmp_path, {"known"})
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["held", "known", "young"]
    held.remove()
    remove_stale_locks(tmp_path / "nowhere", ())
