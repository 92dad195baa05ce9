"""The server of the tests of stops, and the times of the work of runs, by its ledger."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from agentctl.interface.operations import Operations
from agentctl.interface.requests import CancelRequest, RunRequest
from agentctl.records.times import parse_rfc3339
from agentctl.remote.client import RemoteOperations
from tests.deployment import Deployment, create_deployment
from tests.endpoint import ModelEndpoint
from tests.loops import wait_until
from tests.process import ServerProcess, serve_config

SCOPES = ("agents:read", "agents:run", "teams:read", "teams:run", "sessions:read")

MODULE = "working_agents"

AGENTS = (
    "function", "synchronous", "generator", "pydantic_ai", "langgraph", "langgraph_branches",
    "agno_agent", "agno_team_hang", "agno_team_tool", "agno_team_again", "agno_nested_hang",
    "agno_nested_tool", "openai_agent", "openai_called", "openai_hang",
)  # fmt: skip
"""The agents in code, with their ids."""


@dataclass(frozen=True)
class StopServer:
    """A running server with the agents of `working_agents`."""

    process: ServerProcess
    deployment: Deployment
    ledger: Path

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[Operations]:
        """Open the operations of a user."""
        token = self.deployment.token("ann", *SCOPES)
        async with RemoteOperations(self.process.url, token) as operations:
            yield operations

    def read_beats(self, tag: str) -> list[int]:
        """Return the times of the work with a tag, in microseconds."""
        if not self.ledger.exists():
            return []
        lines = (line.split() for line in self.ledger.read_text().splitlines())
        return [int(line[1]) for line in lines if len(line) == 2 and line[0] == tag]

    def end_work(self, tag: str) -> None:
        """End the work with a tag that nothing has cancelled."""
        Path(f"{self.ledger}.{tag}").touch()

    async def wait_for_work(self, tag: str) -> None:
        await wait_until(lambda: self.read_beats(tag))

    async def wait_for_stop(self, operations: Operations, run_id: str) -> dict[str, Any]:
        """Return the record of a run whose work has stopped."""

        async def has_stopped() -> bool:
            return (await operations.get_run(run_id)).value["stopped_at"] is not None

        await wait_until(has_stopped, 60.0)
        return dict((await operations.get_run(run_id)).value)

    async def check_stop(self, operations: Operations, run_id: str, tag: str) -> dict[str, Any]:
        """Wait for the stop of a run; no work of it may have a later time. Return the record."""
        run = await self.wait_for_stop(operations, run_id)
        await asyncio.sleep(0.15)
        self.check_silence(run, tag)
        return run

    def check_silence(self, run: dict[str, Any], tag: str) -> None:
        """Check that no work has a time after the stop of its run."""
        stopped = parse_rfc3339(run["stopped_at"])
        late = [beat - stopped for beat in self.read_beats(tag) if beat > stopped]
        assert not late, f"work went on for {max(late)} µs after the stop of {run}"


async def start_run(
    operations: Operations, component: str, *, kind: Any = "agent", **options: Any
) -> tuple[str, str]:
    """Start a run in the background; return its id and its tag."""
    tag = f"t{uuid4().hex}"
    request = RunRequest(json.dumps({"tag": tag, **options}), background=True)
    run = (await operations.create_run(kind, component, request)).value
    return run["run_id"], tag


async def cancel_run(
    operations: Operations, component: str, run_id: str, *, kind: Any = "agent"
) -> dict[str, Any]:
    """Cancel a run; return its record after the final status."""
    session = (await operations.get_run(run_id)).value["session_id"]
    request = CancelRequest(session, wait=30.0)
    await operations.cancel_run(kind, component, run_id, request)
    return dict((await operations.get_run(run_id)).value)


def create_stop_deployment(folder: Path, model_url: str) -> Deployment:
    """Create a deployment with the agents in code, and configured ones with the same tools."""
    source = Path(__file__).parent / f"{MODULE}.py"
    (folder / source.name).write_text(source.read_text())
    tables = [f'[[agents]]\nid = "{name}"\nobject = "{MODULE}:{name}"' for name in AGENTS]
    for name, tool in {"configured": "start", "command": "run_command"}.items():
        tables += [
            f'[[models]]\nid = "{name}"\nprovider = "openai"\nmodel = "tool:{tool}"\n'
            f'base_url = "{model_url}"',
            f'[[agents]]\nid = "{name}"\nmodel = "{name}"\ntools = ["{MODULE}:{tool}"]',
        ]
    tables.append(
        '[[teams]]\nid = "mixed"\nmode = "broadcast"\nmodel = "echo"\n'
        'members = ["function", "agno_team_tool", "configured", "langgraph"]'
    )
    return create_deployment(folder, model_url, extra="\n\n".join(tables))


@contextlib.contextmanager
def serve(folder: Path, endpoint: ModelEndpoint, settings: str = "") -> Iterator[StopServer]:
    """Run a server process; `settings` are appended to the configuration."""
    deployment, ledger = create_stop_deployment(folder, endpoint.base_url), folder / "ledger"
    with deployment.path.open("a") as file:
        file.write(settings)
    variables = {"MODEL_URL": endpoint.base_url, "LEDGER": str(ledger)}
    with serve_config(deployment.path, variables=variables) as process:
        yield StopServer(process, deployment, ledger)


def find_processes(tag: str) -> list[int]:
    """Return the processes with a tag in their command line, except those that have ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if tag.encode() in command and state not in "ZX":
            found.append(int(folder.name))
    return found
