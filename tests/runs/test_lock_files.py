"""Lock files of workers: a locked file shows a live worker."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentctl.runs.workers.liveness import WorkerLock, is_lock_free, remove_lock, remove_stale_locks


def test_lock_file_is_private_and_locked(tmp_path: Path) -> None:
    folder = tmp_path / "workers"
    lock = WorkerLock.acquire(folder, "w1")
    file = folder / "w1.lock"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not is_lock_free(folder, "w1")
    lock.remove()
    assert not file.exists()


def test_released_lock_is_free_and_tests_do_not_lock_it(tmp_path: Path) -> None:
    WorkerLock.acquire(tmp_path, "w1").release()
    assert is_lock_free(tmp_path, "w1")
    assert is_lock_free(tmp_path, "w1")
    remove_lock(tmp_path, "w1")
    remove_lock(tmp_path, "w1")
    assert list(tmp_path.iterdir()) == []


def test_missing_lock_file_is_not_a_free_lock(tmp_path: Path) -> None:
    assert not is_lock_free(tmp_path, "w1")
    assert not is_lock_free(tmp_path / "nowhere", "w1")


def test_worker_id_has_only_one_lock(tmp_path: Path) -> None:
    lock = WorkerLock.acquire(tmp_path, "w1")
    with pytest.raises(FileExistsError):
        WorkerLock.acquire(tmp_path, "w1")
    lock.remove()


def test_child_programs_do_not_inherit_the_lock(tmp_path: Path) -> None:
    lock = WorkerLock.acquire(tmp_path, "w1")
    program = [sys.executable, "-c", "print('up', flush=True); input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, close_fds=False) as child:
        # Wait until the program runs: only then inherited files are really open.
        assert child.stdout is not None
        child.stdout.readline()
        lock.release()
        free = is_lock_free(tmp_path, "w1")
        child.communicate(b"\n")
    assert free


def test_old_files_without_a_worker_are_removed(tmp_path: Path) -> None:
    held = WorkerLock.acquire(tmp_path, "held")
    for name in ("stray", "known", "young"):
        WorkerLock.acquire(tmp_path, name).release()
    for name in ("held", "stray", "known"):
        os.utime(tmp_path / f"{name}.lock", times=(time.time() - 3600,) * 2)
    remove_stale_locks(tmp_path, {"known"})
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["held", "known", "young"]
    held.remove()
    remove_stale_locks(tmp_path / "nowhere", ())
