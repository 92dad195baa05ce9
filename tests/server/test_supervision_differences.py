"""The supervisor of worker processes compared with uvicorn's (decision 18)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.server.supervision import (
    WATCHED,
    break_file,
    kill_parent,
    replace_worker,
    supervise,
    wait_for,
)


@pytest.mark.parametrize("name", ["agentctl", "uvicorn"])
def test_killed_worker_is_replaced_and_requests_are_answered(name: str, tmp_path: Path) -> None:
    with supervise(name, tmp_path) as server:
        assert replace_worker(server, signal.SIGKILL) is not None
        assert server.answers()


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    with supervise("agentctl", tmp_path) as server:
        assert kill_parent(server) is not None
        assert not server.answers()


def test_workers_of_uvicorn_serve_without_their_parent(tmp_path: Path) -> None:
    """If this fails, uvicorn has lost the difference for which agentctl has its own supervisor."""
    with supervise("uvicorn", tmp_path) as server:
        assert kill_parent(server, seconds=3.0) is None
        assert server.answers()


def test_invalid_file_does_not_end_a_reloading_server(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with supervise("agentctl", tmp_path, "--reload") as server:
        assert break_file(server, tmp_path / WATCHED["agentctl"], seconds=0.5) is None
        reported = wait_for(lambda: "the previous process continues" in log.read_text())
        assert reported is not None
        assert server.answers()
