"""A deployment whose agents wait for decisions, its servers, and the decisions."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import orjson

from tests.kit.conditions import PATIENCE
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.process import serve_config
from tests.kit.site import Server, kill
from tests.kit.threaded_server import forget_modules, serve_in_thread

__all__ = ["WaitingDeployment", "WaitingServer", "create_waiting_deployment", "list_members"]

FINAL = ("COMPLETED", "ERROR", "CANCELLED")

MODULES = (
    "waiting_functions", "waiting_library", "waiting_graphs", "waiting_agno", "waiting_agents",
)  # fmt: skip

AGENT = r"^(?:async )?(?:def )?(\w+)(?:\(message|: Any = build)"
"""An agent in the source of a module: a function with a message, or an object that is built."""


@dataclass(frozen=True)
class WaitingServer:
    """A running server."""

    deployment: WaitingDeployment
    host: Server

    def start(self, agent: str, message: str = "bob", **body: Any) -> dict[str, Any]:
        """Run an agent until it ends or waits, and return its record.

        All events are stored: those of the runs of other requests only from the second leg on.
        """
        sent = {"message": message, "stream": False, "background": True, **body}
        record = self._request("POST", f"/agents/{agent}/runs", sent)
        return self.wait_for(record["run_id"], "PAUSED", *FINAL)

    def upload(self, name: str, data: bytes) -> str:
        """Store a file of the user who runs the agents; return its id."""
        headers = self.deployment.inner.bearer("ann", ADMIN)
        url = f"{self.host.url}/files"
        answer = httpx2.post(
            url, params={"name": name}, content=data, headers=headers, timeout=PATIENCE
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["file_id"])

    def list_approvals(self, run: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the approvals of a run, oldest first."""
        path = f"/approvals?run_id={run['run_id']}&sort_order=asc"
        data: list[dict[str, Any]] = self._request("GET", path)["data"]
        return data

    def decide(self, run: dict[str, Any], verb: str, tool: str = "", **fields: Any) -> None:
        """Decide as another user about the pending approvals of a run, or those of one tool."""
        approvals = self.list_approvals(run)
        pending = [each for each in approvals if each["status"] == "pending"]
        chosen = [each for each in pending if tool in ("", each["tool_name"])]
        assert chosen, approvals
        for each in chosen:
            self.decide_one(each, verb, **fields)

    def decide_one(self, approval: dict[str, Any], verb: str, **fields: Any) -> None:
        """Decide about one approval as another user; fail with the status of a refusal."""
        path = f"/agents/{approval['component_id']}/approvals/{approval['approval_id']}/decide"
        body = {"decision": verb, "arguments_hash": approval["arguments_hash"], **fields}
        self._request("POST", path, body, user="boss")

    def wait_for_end(self, run: dict[str, Any]) -> dict[str, Any]:
        """Wait until a run has ended, and return its record."""
        return self.wait_for(run["run_id"], *FINAL)

    def decide_and_wait(
        self, run: dict[str, Any], verb: str, tool: str = "", **fields: Any
    ) -> dict[str, Any]:
        """Decide, and wait until the run has ended or waits for something else."""
        self.decide(run, verb, tool, **fields)
        return self.wait_for_next(run)

    def wait_for_next(self, run: dict[str, Any]) -> dict[str, Any]:
        """Wait until a decided run has ended or waits for something else, and return its record."""
        deadline = time.monotonic() + PATIENCE
        while True:
            now = self.wait_for(run["run_id"], "PAUSED", *FINAL)
            pending = [each for each in now["approvals"] or () if each["status"] == "pending"]
            if now["status"] != "PAUSED" or pending:
                return now
            assert time.monotonic() < deadline, now
            time.sleep(0.02)

    def get_run(self, run_id: str) -> dict[str, Any]:
        """Return the record of a run."""
        record: dict[str, Any] = self._request("GET", f"/runs/{run_id}")
        return record

    def wait_for(self, run_id: str, *statuses: str) -> dict[str, Any]:
        """Wait until a run has one of these statuses, and return its record."""
        deadline = time.monotonic() + PATIENCE
        while (run := self.get_run(run_id))["status"] not in statuses:
            assert time.monotonic() < deadline, run
            time.sleep(0.02)
        return run

    def cancel(self, agent: str, run_id: str) -> dict[str, Any]:
        record: dict[str, Any] = self._request(
            "POST", f"/agents/{agent}/runs/{run_id}/cancel?wait=30"
        )
        return record

    def read_events(self, run_id: str) -> list[dict[str, Any]]:
        """Return the data of all stored events of a run."""
        path = f"/agents/{self.get_run(run_id)['agent_id']}/runs/{run_id}/events"
        lines = self._request("GET", path).text.splitlines()
        return [orjson.loads(line[6:]) for line in lines if line.startswith("data: ")]

    def kill(self) -> None:
        """Let the server die, as a crash does."""
        kill(self.host)

    def _request(self, method: str, path: str, body: object = None, user: str = "ann") -> Any:
        headers = self.deployment.inner.bearer(user, ADMIN)
        url = self.host.url + path
        answer = httpx2.request(method, url, json=body, headers=headers, timeout=PATIENCE)
        assert answer.status_code < 300, f"{answer.status_code} {answer.text}"
        return answer if path.endswith("/events") else answer.json()


@dataclass(frozen=True)
class WaitingDeployment:
    """The deployment, and the ledger of everything that its tools did.

    Attributes:
        python: the interpreter of its servers.
        variables: further variables of the server.
    """

    inner: Deployment
    model_url: str
    python: str = sys.executable
    variables: Mapping[str, str] = field(default_factory=dict)

    def ledger(self, run: dict[str, Any]) -> list[str]:
        """Return the lines that the agents and tools have written for the session of a run."""
        path = self.inner.folder / f"{run['session_id']}.ledger"
        return path.read_text().splitlines() if path.exists() else []

    @contextlib.contextmanager
    def serve_in_thread(self) -> Iterator[WaitingServer]:
        """Run a server in this process, which imports the modules of the agents again."""
        forget_modules(self.inner.folder)
        variables = {"MODEL_URL": self.model_url}
        with serve_in_thread(
            self.inner, code_leaves_connections=True, variables=variables
        ) as server:
            yield WaitingServer(self, server)

    @contextlib.contextmanager
    def serve(self, log: str = "server.log") -> Iterator[WaitingServer]:
        """Run a server process."""
        variables = {"MODEL_URL": self.model_url, **self.variables}
        place = self.inner.path
        python = self.python
        with serve_config(place, log=log, variables=variables, python=python) as process:
            yield WaitingServer(self, process)


def list_members(server: WaitingServer, run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the runs below a run, parents first."""
    found = []
    for run_id in run["member_runs"]:
        member = server.get_run(run_id)
        found += [member, *list_members(server, member)]
    return found


def create_waiting_deployment(folder: Path, model_url: str, limits: str = "") -> WaitingDeployment:
    """Create a deployment with the agents of all `MODULES`; `limits` are tables to append."""
    tables = [limits]
    for module in MODULES:
        source = Path(__file__).with_name(f"{module}.py").read_text()
        (folder / f"{module}.py").write_text(source)
        tables += [
            f'[[agents]]\nid = "{name}"\nobject = "{module}:{name}"'
            for name in re.findall(AGENT, source, re.MULTILINE)
        ]
    tables += [
        '[[agents]]\nid = "gated"\nobject = "waiting_library:library"'
        '\napprove = { "look_*" = "other" }'
    ]
    deployment = create_deployment(folder, model_url, extra="\n\n".join(tables))
    return WaitingDeployment(deployment, model_url)
