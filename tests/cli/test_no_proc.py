"""A server on a system without `/proc`, such as macOS: an empty folder takes its place."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from agentctl.remote import RemoteOperations
from tests.cli.demo import serving
from tests.kit.process import AGENTCTL

WITHOUT_PROC = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro none /proc && exec "$@"', "sh")


@pytest.fixture(autouse=True)
def _can_mount() -> None:
    try:
        subprocess.run([*WITHOUT_PROC, "test", "!", "-e", "/proc/self"], check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a user who may mount: run as root")


def test_demo_answers_and_restarts_without_proc(tmp_path: Path) -> None:
    program = (*WITHOUT_PROC, *AGENTCTL)
    with serving(tmp_path / "demo", program=program) as demo:
        first = demo.run("s1", "hello")
    with serving(tmp_path / "demo", program=program) as demo:
        second = demo.run("s1", "again")

        async def list_states() -> list[str]:
            async with RemoteOperations(demo.url, demo.token) as operations:
                found = [await operations.runs.get(each) for each in (first, second)]
            return [each.value["status"] for each in found]

        assert asyncio.run(list_states()) == ["COMPLETED", "COMPLETED"]
