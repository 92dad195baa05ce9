"""A server with several worker processes, and the worker of each run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apsw
import httpx2

from agentctl.interface.requests import StreamEvent
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import ADMIN, Deployment
from tests.kit.process import ServerProcess, serve_config
from tests.kit.process_states import STACKS, is_alive, wait_for_ends

__all__ = ["WorkerServer", "read_stream", "serve_with_two_workers"]


@dataclass(frozen=True)
class WorkerServer:
    """A running server.

    Attributes:
        client: opens a new connection for each request, so that any worker may respond.
        headers: a token with the admin scope.
    """

    deployment: Deployment
    served: ServerProcess
    client: httpx2.Client
    headers: dict[str, str]

    @property
    def parent(self) -> int:
        return self.served.process.pid

    def workers(self) -> list[int]:
        """Return the ids of the live worker processes."""
        return [pid for (pid,) in self.rows("SELECT pid FROM workers") if is_alive(pid)]

    def start(
        self, session_id: str, agent: str = "hang", *, through: httpx2.Client | None = None
    ) -> str:
        """Start a background run and return its id."""
        body = {"message": "hello", "session_id": session_id, "background": True, "stream": False}
        answer = (through or self.client).post(f"/agents/{agent}/runs", json=body)
        assert answer.status_code == 202, answer.text
        run_id: str = answer.json()["run_id"]
        return run_id

    def one_each(self, agent: str = "hang") -> dict[int, str]:
        """Start runs until each worker has one; return one run by process id."""
        workers = set(self.workers())
        found = dict[int, str]()
        deadline = time.monotonic() + PATIENCE
        while found.keys() != workers:
            assert time.monotonic() < deadline, found
            run_id = self.start(f"s{time.monotonic_ns()}", agent)
            wait_for(lambda run_id=run_id: self.status(run_id) != "PENDING")  # type: ignore[misc]
            found[self.process_of(run_id)] = run_id
        return found

    def process_of(self, run_id: str) -> int:
        """Return the id of the process that executes a run."""
        join = "FROM runs JOIN workers ON runs.owner = workers.worker_id WHERE run_id = ?"
        ((pid,),) = self.rows(f"SELECT pid {join}", run_id)
        return int(pid)

    def status(self, run_id: str) -> str:
        """Return the stored status of a run."""
        ((status,),) = self.rows("SELECT status FROM runs WHERE run_id = ?", run_id)
        return str(status)

    def await_status(self, run_id: str, status: str) -> None:
        """Wait until the stored status of a run is this one."""
        wait_for(lambda: self.status(run_id) == status)

    def run(self, run_id: str) -> dict[str, Any]:
        """Return the record of a run."""
        record: dict[str, Any] = self.client.get(f"/runs/{run_id}").json()
        return record

    def rows(self, sql: str, *values: str) -> list[Any]:
        """Read rows from the database."""
        path = str(self.deployment.folder / "main.db")
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
        try:
            connection.set_busy_timeout(5_000)
            return connection.execute(sql, values).fetchall()
        finally:
            connection.close()

    @contextlib.contextmanager
    def through(self, worker: int) -> Iterator[httpx2.Client]:
        """Open a client whose only connection was accepted by this worker."""
        deadline = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < deadline
            with httpx2.Client(
                base_url=self.served.url, headers=self.headers, timeout=PATIENCE
            ) as one:
                body = {"message": "hello", "stream": False}
                run_id = one.post("/agents/echo/runs", json=body).json()["run_id"]
                if self.process_of(run_id) == worker:
                    yield one
                    return

    def await_draining(self) -> None:
        """Wait until the server drains."""
        wait_for(lambda: self.client.get("/ready").status_code == 503)


@contextlib.contextmanager
def serve_with_two_workers(deployment: Deployment) -> Iterator[WorkerServer]:
    """Serve a deployment with two workers; check at the end that no process is left."""
    with serve_config(deployment.path, "--workers", "2", variables=STACKS) as served:
        headers = deployment.bearer("me", ADMIN)
        fresh = {**headers, "Connection": "close"}
        with httpx2.Client(base_url=served.url, headers=fresh, timeout=PATIENCE) as client:
            found = WorkerServer(deployment, served, client, headers)
            pids = found.workers()
            yield found
            pids += found.workers()
    wait_for_ends(pids, served.log)


@contextlib.contextmanager
def read_stream(
    client: httpx2.Client, path: str, body: dict[str, Any]
) -> Iterator[Iterator[StreamEvent]]:
    """Yield the events of a stream."""
    with client.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200, answer.read()
        yield _events(answer.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[StreamEvent]:
    fields = dict[str, str]()
    for line in lines:
        name, _, value = line.partition(": ")
        if name:
            fields[name] = value
        elif fields.keys() >= {"id", "event", "data"}:
            yield StreamEvent(int(fields["id"]), fields["event"], fields["data"].encode())
            fields.clear()
