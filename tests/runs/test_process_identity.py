"""Identities of processes and their exit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentctl.runs.workers.liveness import ProcessIdentity, has_exited, identify_this_process
from tests.kit.conditions import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc: run on Linux")


GONE = identify_this_process()._replace(process_start=1)


def of(pid: int) -> ProcessIdentity:
    """Build the identity of another process without its start time."""
    return identify_this_process()._replace(pid=pid, process_start=0)


def test_this_process_is_alive_and_has_boot_id_and_namespace() -> None:
    process = identify_this_process()
    assert process.pid == os.getpid()
    assert process.process_start > 0
    boot, _, namespace = process.boot_id.partition("/")
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert int(namespace) == Path("/proc/self/ns/pid").stat().st_ino
    assert not has_exited(process)


def test_reused_pid_is_another_process() -> None:
    process = identify_this_process()
    assert has_exited(process._replace(process_start=process.process_start - 1))


def test_pid_decides_without_a_known_start_time() -> None:
    assert not has_exited(identify_this_process()._replace(process_start=0))


def test_zombie_process_has_exited() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not has_exited(of(child.pid))
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert has_exited(of(child.pid))
    finally:
        child.communicate()
    assert has_exited(of(child.pid))


@pytest.mark.parametrize(
    "elsewhere",
    [GONE._replace(host="another"), GONE._replace(boot_id="another/1"), GONE._replace(boot_id="")],
    ids=["host", "boot or container", "unknown boot"],
)
def test_pid_of_another_machine_is_not_judged(elsewhere: ProcessIdentity) -> None:
    assert has_exited(GONE)
    assert not has_exited(elsewhere)


async def test_program_name_may_contain_any_character(tmp_path: Path) -> None:
    program = tmp_path / "a) Z 1 (b"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    child = subprocess.Popen([program, "60"])
    try:
        named = f"/proc/{child.pid}/comm"
        await wait_until(lambda: Path(named).read_text().strip() == program.name)
        assert not has_exited(of(child.pid))
    finally:
        child.kill()
        child.wait()
