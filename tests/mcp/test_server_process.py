"""The programs of MCP servers and the processes of `agentctl serve`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.kit.conditions import wait_for
from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.process import serve_config
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


def test_programs_end_with_their_worker_and_with_the_server(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    deployment = create_deployment(tmp_path, model_endpoint.base_url, extra=MCP_SERVER)

    def find_guards() -> set[int]:
        """Return the guards of the programs, which are the children of the workers."""
        return find_programs(find_children(server.process.pid))

    with serve_config(deployment.path, "--workers", "2") as server:
        wait_for(lambda: len(find_programs(find_guards())) == 2)
        killed = next(pid for pid in find_children(server.process.pid) if find_programs({pid}))
        lost_guards = find_programs({killed})
        lost_programs = find_programs(lost_guards)
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: not exist(lost_guards | lost_programs))

        # Another worker has replaced it.
        wait_for(lambda: len(find_programs(find_guards() - lost_guards)) == 2)
        guards = find_guards()
        programs = find_programs(guards)
        assert server.stop(signal.SIGTERM) == 0
        wait_for(lambda: not exist(guards | programs))
