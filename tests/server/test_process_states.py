"""The report of processes that should have ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import process_states
from tests.kit.process_states import STACKS, is_alive, wait_for_ends

HANG = "import time; print(flush=True); time.sleep(600)"


def test_process_that_nobody_waits_for_is_not_alive() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    os.kill(process.pid, 0)  # It exists.
    assert not is_alive(process.pid)
    process.wait()
    assert not is_alive(process.pid)


def test_process_that_hangs_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_states, "PATIENCE", 0.0)
    log = tmp_path / "log"
    command = [sys.executable, "-S", "-c", HANG]
    with (
        log.open("wb") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=STACKS) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        assert is_alive(process.pid)
        with pytest.raises(AssertionError) as failed:
            wait_for_ends([process.pid], log)
    report = str(failed.value)
    assert report.startswith(f"processes did not end:\n{process.pid}: State: ")
    assert 'File "<string>", line 1 in <module>' in report
