"""People who start runs and decide about them over HTTP."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx2

from tests.kit.conditions import wait_for
from tests.kit.deployment import ADMIN
from tests.kit.threaded_server import ThreadedServer
from tests.server.event_streams import Event, parse_events

USER = ("agents:run", "agents:read", "sessions:read", "sessions:write", "sessions:delete")
APPROVER = ("approvals:read", "approvals:write")


@dataclass(frozen=True)
class People:
    """A server and its callers, by name: `ann` and `ben` start runs, `eve` approves."""

    host: ThreadedServer

    def headers(self, name: str) -> dict[str, str]:
        scopes = {"eve": APPROVER, "root": (ADMIN,)}.get(name, USER)
        return self.host.bearer(name, *scopes)

    def send(
        self, name: str | dict[str, str], method: str, path: str, **options: Any
    ) -> httpx2.Response:
        """Send a request as a caller, or with other header fields."""
        fields = self.headers(name) if isinstance(name, str) else name
        fields = {**fields, **options.pop("headers", {})}
        return self.host.client.request(method, path, headers=fields, **options)

    def start(self, words: str, *, name: str = "ann", agent: str = "payer", **fields: Any) -> Any:
        """Start a run that pauses; return its record."""
        body = {"message": words, "stream": False, **fields}
        response = self.send(name, "POST", f"/agents/{agent}/runs", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def stream(self, name: str, path: str, body: dict[str, Any]) -> list[Event]:
        """Return the events of a stream."""
        fields = self.headers(name)
        with self.host.client.stream("POST", path, json=body, headers=fields) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            return list(parse_events(response.iter_lines()))

    def approvals(self, run: dict[str, Any]) -> list[Any]:
        """Return the approvals of a run, oldest first, as an administrator sees them."""
        path = f"/approvals?run_id={run['run_id']}&sort_order=asc"
        data: list[Any] = self.send("root", "GET", path).json()["data"]
        return data

    def decide(
        self, approval: dict[str, Any], decision: str, *, name: Any = "eve", **fields: Any
    ) -> httpx2.Response:
        """Decide about an approval, with its hash unless `arguments_hash` is given."""
        if decision in ("approve", "retry"):
            fields = {"arguments_hash": approval["arguments_hash"], **fields}
        headers = fields.pop("headers", {})
        body = {"decision": decision, **fields}
        return self.send(name, "POST", f"{path_of(approval)}/decide", json=body, headers=headers)

    def send_together(
        self, name: str, path: str, bodies: Sequence[dict[str, Any]]
    ) -> list[httpx2.Response]:
        """Send several POST requests at the same time."""
        with ThreadPoolExecutor(len(bodies)) as pool:
            return list(pool.map(lambda body: self.send(name, "POST", path, json=body), bodies))

    @property
    def payments(self) -> list[Any]:
        """The payments that were made so far."""
        ledger = self.host.deployment.folder / "ledger.jsonl"
        text = ledger.read_text() if ledger.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def wait_for_end(self, run: dict[str, Any], *statuses: str) -> Any:
        """Wait until a run has one of some statuses, by default a final one; return its record."""
        wanted = statuses or ("COMPLETED", "ERROR", "CANCELLED")

        def reached() -> Any:
            record = self.send("root", "GET", f"/runs/{run['run_id']}").json()
            return record if record["status"] in wanted else None

        return wait_for(reached)


def path_of(approval: dict[str, Any]) -> str:
    kind = approval["component_type"]
    component = approval["component_id"]
    return f"/{kind}s/{component}/approvals/{approval['approval_id']}"
