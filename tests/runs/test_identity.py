"""Which process is which, and whether it is gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentctl.runs.process import ProcessIdentity, has_exited, identify_this_process
from tests.loops import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


GONE = identify_this_process()._replace(process_start=1)


def of(pid: int) -> ProcessIdentity:
    """Another process, as it would describe itself; its start is not known."""
    return identify_this_process()._replace(pid=pid, process_start=0)


def test_this_process_is_there_and_says_which_boot_and_namespace() -> None:
    process = identify_this_process()
    assert process.pid == os.getpid()
    assert process.process_start > 0
    boot, _, namespace = process.boot_id.partition("/")
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert int(namespace) == Path("/proc/self/ns/pid").stat().st_ino
    assert not has_exited(process)


def test_a_pid_that_another_process_has_got_is_not_that_process() -> None:
    process = identify_this_process()
    assert has_exited(process._replace(process_start=process.process_start - 1))


def test_without_a_known_start_the_pid_alone_tells() -> None:
    assert not has_exited(identify_this_process()._replace(process_start=0))


def test_what_has_ended_is_gone_also_before_its_parent_asks() -> None:
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
    [
        GONE._replace(host="another"),
        GONE._replace(boot_id="another/1"),
        GONE._replace(boot_id=""),
    ],
    ids=["host", "boot or container", "unknown boot"],
)
def test_a_process_elsewhere_is_not_judged_by_its_pid(elsewhere: ProcessIdentity) -> None:
    assert has_exited(GONE)
    assert not has_exited(elsewhere)


async def test_the_name_of_a_program_may_hold_anything(tmp_path: Path) -> None:
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
