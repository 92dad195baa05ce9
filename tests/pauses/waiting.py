"""A deployment whose agents wait for decisions, its servers, and the decisions."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import orjson

from agentctl.runs.decisions import NewDecision, build_change, write_decisions
from agentctl.service.service import Service
from agentctl.store.repositories import approvals
from agentctl.store.repositories.approvals import ApprovalRow
from tests.deployment import ADMIN, Deployment, create_deployment
from tests.process import ServerProcess, start_server

__all__ = ["WaitingDeployment", "WaitingServer", "create_waiting_deployment"]

SECONDS = 60.0

FINAL = ("COMPLETED", "ERROR", "CANCELLED")

MODULE = "waiting_agents"


@dataclass(frozen=True)
class WaitingServer:
    """A running server."""

    deployment: WaitingDeployment
    process: ServerProcess

    def start(self, agent: str, message: str = "bob", **body: Any) -> dict[str, Any]:
        """Run an agent until it ends or waits, and return its record.

        All events are stored: those of the runs of other requests only from the second leg on.
        """
        sent = {"message": message, "stream": False, "background": True, **body}
        record = self._request("POST", f"/agents/{agent}/runs", sent)
        return self.wait_for(record["run_id"], "PAUSED", *FINAL)

    async def decide(self, run: dict[str, Any], verb: Any, tool: str = "", **fields: Any) -> None:
        """Decide about the pending approvals of a run, or about those of one tool."""
        await self.deployment.decide(run["run_id"], verb, tool, **fields)

    def wait_for_end(self, run: dict[str, Any]) -> dict[str, Any]:
        """Wait until a run has ended, and return its record."""
        return self.wait_for(run["run_id"], *FINAL)

    async def decide_and_wait(
        self, run: dict[str, Any], verb: Any, tool: str = "", **fields: Any
    ) -> dict[str, Any]:
        """Decide, and wait until the run has ended or waits for something else."""
        await self.decide(run, verb, tool, **fields)
        deadline = time.monotonic() + SECONDS
        while True:
            now = self.wait_for(run["run_id"], "PAUSED", *FINAL)
            rows = await self.deployment.list_approvals(run["run_id"])
            if now["status"] != "PAUSED" or any(row.status == "pending" for row in rows):
                return now
            assert time.monotonic() < deadline, now

    def get_run(self, run_id: str) -> dict[str, Any]:
        """Return the record of a run."""
        record: dict[str, Any] = self._request("GET", f"/runs/{run_id}")
        return record

    def wait_for(self, run_id: str, *statuses: str) -> dict[str, Any]:
        """Wait until a run has one of these statuses, and return its record."""
        deadline = time.monotonic() + SECONDS
        while (run := self.get_run(run_id))["status"] not in statuses:
            assert time.monotonic() < deadline, run
            time.sleep(0.02)
        return run

    def cancel(self, agent: str, run_id: str) -> dict[str, Any]:
        record: dict[str, Any] = self._request("POST", f"/agents/{agent}/runs/{run_id}/cancel")
        return record

    def read_events(self, run_id: str) -> list[dict[str, Any]]:
        """Return the data of all stored events of a run."""
        path = f"/agents/{self.get_run(run_id)['agent_id']}/runs/{run_id}/events"
        url, headers = self.process.url + path, self.deployment.headers
        answer = httpx2.get(url, headers=headers, timeout=SECONDS)
        lines = answer.text.splitlines()
        return [orjson.loads(line[6:]) for line in lines if line.startswith("data: ")]

    def kill(self) -> None:
        """Kill the process, as a crash does."""
        self.process.stop(signal.SIGKILL)

    def _request(self, method: str, path: str, body: object = None) -> Any:
        answer = httpx2.request(
            method,
            self.process.url + path,
            json=body,
            headers=self.deployment.headers,
            timeout=SECONDS,
        )
        assert answer.status_code < 300, answer.text
        return answer.json()


@dataclass(frozen=True)
class WaitingDeployment:
    """The deployment, and the ledger of everything that its tools did."""

    inner: Deployment
    model_url: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.inner.token('ann', ADMIN)}"}

    def ledger(self, run: dict[str, Any]) -> list[str]:
        """Return the lines that the agents and tools have written for the session of a run."""
        path = self.inner.folder / f"{run['session_id']}.ledger"
        return path.read_text().splitlines() if path.exists() else []

    @contextlib.contextmanager
    def serve(self, log: str = "server.log") -> Iterator[WaitingServer]:
        """Run a server process; a process that was killed may end as it did."""
        environment = {**os.environ, "MODEL_URL": self.model_url}
        options = ("--config", str(self.inner.path), "--port", "0")
        path = self.inner.folder / log
        with start_server(*options, log=path, environment=environment) as process:
            yield WaitingServer(self, process)

    async def list_approvals(self, run_id: str) -> list[ApprovalRow]:
        """Return the approvals of a run, oldest first."""
        async with Service.open(self.inner.settings) as service:
            return await service.hosting.databases.system.read(approvals.list_of_run(run_id))

    async def decide(self, run_id: str, verb: Any, tool_name: str = "", **fields: Any) -> None:
        """Decide about the pending approvals of a run, or about those of one tool."""
        async with Service.open(self.inner.settings) as service:
            database = service.hosting.databases.system
            rows = await database.read(approvals.list_of_run(run_id))
            pending = [row for row in rows if row.status == "pending"]
            chosen = [row for row in pending if tool_name in ("", row.tool_name)]
            assert chosen, rows
            changes = [
                (
                    row.approval_id,
                    build_change(row, NewDecision(verb, row.arguments_hash, **fields), "boss"),
                )
                for row in chosen
            ]
            await database.write(write_decisions(chosen[0].root_run_id, changes))


def create_waiting_deployment(folder: Path, model_url: str) -> WaitingDeployment:
    """Create a deployment with the agents of `waiting_agents.py`."""
    source = (Path(__file__).parent / f"{MODULE}.py").read_text()
    (folder / f"{MODULE}.py").write_text(source)
    agents = source.partition("# agents: ")[2].partition("\n")[0].split()
    tables = [f'[[agents]]\nid = "{name}"\nobject = "{MODULE}:{name}"' for name in agents]
    deployment = create_deployment(folder, model_url, extra="\n\n".join(tables))
    return WaitingDeployment(deployment, model_url)
