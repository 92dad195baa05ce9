"""The server of the tests of stops, and the times of the work of runs, by its ledger."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from agentctl.interface.operations import Operations
from agentctl.interface.requests import CancelRequest, RunRequest
from agentctl.records.times import parse_rfc3339
from agentctl.remote.client import RemoteOperations
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.process import ServerProcess, serve_config

SCOPES = ("agents:read", "agents:run", "teams:read", "teams:run", "sessions:read")

FUNCTIONS = "working_functions"
LIBRARIES = "working_agents"
ADK_MODULE = "working_adk"

AGENTS = {
    FUNCTIONS: ("function", "synchronous", "generator"),
    LIBRARIES: (
        "pydantic_ai", "langgraph", "langgraph_branches", "agno_agent", "agno_team_hang",
        "agno_team_tool", "agno_team_again", "agno_nested_hang", "agno_nested_tool",
        "openai_agent", "openai_called", "openai_hang",
    ),
    ADK_MODULE: ("adk_agent", "adk_command", "adk_called", "adk_hang", "adk_branches"),
}  # fmt: skip
"""The agents in code by their module, with their ids."""


@dataclass(frozen=True)
class StopServer:
    """A running server with the agents of some modules."""

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
        run: dict[str, Any] = {}

        async def has_stopped() -> bool:
            run.update((await operations.runs.get(run_id)).value)
            return run["stopped_at"] is not None

        try:
            await wait_until(has_stopped)
        except AssertionError as error:
            raise AssertionError(f"the work did not stop: {run}") from error
        return run

    async def check_stop(self, operations: Operations, run_id: str, tag: str) -> dict[str, Any]:
        """Wait for the stop of a run; no work of it may have a later time. Return the record."""
        run = await self.wait_for_stop(operations, run_id)
        await asyncio.sleep(0.15)
        self.check_silence(run, tag)
        return run

    async def check_cancel(self, operations: Operations, case: str) -> None:
        """Cancel a run in its work, and check that nothing of it goes on.

        Args:
            case: the id of the agent and a form of work.
        """
        component, _, form = case.partition(" ")
        run_id, tag = await start_run(operations, component, form=form)
        await self.wait_for_work(tag)
        run = await cancel_run(operations, component, run_id)
        assert run["status"] == "CANCELLED"
        run = await self.check_stop(operations, run_id, tag)
        assert run["holding"] == []

    async def check_model_call(
        self, operations: Operations, endpoint: ModelEndpoint, component: str
    ) -> None:
        """Cancel a run whose model hangs, and check that the call is closed and nothing goes on."""
        run_id, _ = await start_run(operations, component)
        await wait_until(lambda: endpoint.open_calls() == 1)
        run = await cancel_run(operations, component, run_id)
        assert run["status"] == "CANCELLED"
        run = await self.wait_for_stop(operations, run_id)
        assert run["holding"] == []
        endpoint.wait_for_open(0)

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
    run = (await operations.runs.create(kind, component, request)).value
    return run["run_id"], tag


async def cancel_run(
    operations: Operations, component: str, run_id: str, *, kind: Any = "agent"
) -> dict[str, Any]:
    """Cancel a run; return its record after the final status."""
    session = (await operations.runs.get(run_id)).value["session_id"]
    request = CancelRequest(session, wait=30.0)
    await operations.runs.cancel(kind, component, run_id, request)
    return dict((await operations.runs.get(run_id)).value)


async def check_each(check: Callable[[str], Awaitable[None]], names: Iterable[str]) -> None:
    """Check several cases at the same time; fail with the names of those that fail."""
    listed = list(names)
    results = await asyncio.gather(*map(check, listed), return_exceptions=True)
    failed = {name: error for name, error in zip(listed, results, strict=True) if error}
    assert not failed, failed


def create_stop_deployment(
    folder: Path, model_url: str, modules: Sequence[str], settings: str
) -> Deployment:
    """Create a deployment with the agents of modules; `settings` are appended."""
    tables = list_tables(folder, modules)
    for name, tool in {"configured": "start", "command": "run_command"}.items():
        tables.append(
            f'[[models]]\nid = "{name}"\nprovider = "openai"\nmodel = "tool:{tool}"\n'
            f'base_url = "{model_url}"'
        )
        tables.append(f'[[agents]]\nid = "{name}"\nmodel = "{name}"\ntools = ["work:{tool}"]')
    if LIBRARIES in modules:
        tables.append(
            '[[teams]]\nid = "mixed"\nmode = "broadcast"\nmodel = "echo"\n'
            'members = ["function", "agno_team_tool", "configured", "langgraph"]'
        )
    return create_deployment(folder, model_url, extra="\n\n".join([*tables, settings]))


def list_tables(folder: Path, modules: Sequence[str]) -> list[str]:
    """Copy modules, and that with their work, into a folder; return the tables of their agents."""
    for name in ("work", *modules):
        source = Path(__file__).parent / f"{name}.py"
        (folder / source.name).write_text(source.read_text())
    return [
        f'[[agents]]\nid = "{name}"\nobject = "{module}:{name}"'
        for module in modules
        for name in AGENTS[module]
    ]


@contextlib.contextmanager
def serve(
    folder: Path,
    endpoint: ModelEndpoint,
    modules: Sequence[str] = (FUNCTIONS, LIBRARIES),
    settings: str = "",
) -> Iterator[StopServer]:
    """Run a server process with the agents of modules; `settings` are appended."""
    deployment = create_stop_deployment(folder, endpoint.base_url, modules, settings)
    ledger = folder / "ledger"
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
