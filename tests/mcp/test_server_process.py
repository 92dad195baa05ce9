"""The programs of MCP servers and the processes of `agentctl serve`."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.kit.conditions import wait_for
from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.process import ServerProcess, serve_config
from tests.server.observed_server import MCP_SERVER

PROGRAM = b"mcp/stdio_server.py"


def find_programs(parents: set[int]) -> set[int]:
    """Return the pids of programs of the test server whose parent is one of the processes."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[1]) in parents and PROGRAM in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
        except (OSError, ValueError, IndexError):
            continue
    return found


def find_children(pid: int) -> set[int]:
    return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def exist(pids: set[int]) -> bool:
    """Return True if one of the processes runs and is not a zombie."""
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        if state != b"Z":
            return True
    return False


def end_and_check(server: ServerProcess, number: int, workers: int) -> None:
    """End the server with a signal and check that the programs of all processes end."""
    pid = server.process.pid
    parents = {pid} if workers == 1 else find_children(pid)
    # The child of a worker is the guard of the program.
    wait_for(lambda: len(find_programs(find_programs(parents))) == workers)
    guards = find_programs(parents)
    programs = find_programs(guards)
    server.stop(number)
    wait_for(lambda: not exist(guards | programs))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_programs_end_with_the_server(
    tmp_path: Path, model_endpoint: ModelEndpoint, number: int, workers: int
) -> None:
    deployment = create_deployment(tmp_path, model_endpoint.base_url, extra=MCP_SERVER)
    with serve_config(deployment.path, "--workers", str(workers)) as server:
        end_and_check(server, number, workers)
