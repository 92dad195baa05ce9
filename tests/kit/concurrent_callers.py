"""Many concurrent callers in one event loop, against a server in another process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx2
import orjson

from tests.kit.conditions import PATIENCE
from tests.kit.deployment import ADMIN, Deployment

__all__ = ["ENDS", "Event", "RequestedRun", "check_order", "open_client", "read_events"]

ENDS = {
    f"{prefix}{end}": status
    for prefix in ("Run", "TeamRun", "Workflow")
    for end, status in {
        "Completed": "COMPLETED",
        "Cancelled": "CANCELLED",
        "Error": "ERROR",
    }.items()
}
"""Final status by the name of the last event of a run."""


class Event(NamedTuple):
    """One event of a stream."""

    number: int
    name: str
    data: dict[str, Any]


@dataclass
class RequestedRun:
    """A requested run, and everything that its caller has received.

    Attributes:
        path: path of the component.
        body: body of the request, with a unique message.
        key: its Idempotency-Key.
        run_id: id of the run, known from the first response.
        final_status: the status in the response, if it is final.
        received: the received events.
    """

    path: str
    body: dict[str, Any]
    key: str | None = None
    run_id: str | None = None
    final_status: str | None = None
    received: list[Event] = field(default_factory=list)

    @property
    def streamed(self) -> bool:
        return bool(self.body["stream"])

    @property
    def url(self) -> str:
        """The URL of the run."""
        return f"{self.path}/runs/{self.run_id}"

    def request(self, client: httpx2.AsyncClient) -> httpx2.Request:
        headers = {} if self.key is None else {"Idempotency-Key": self.key}
        return client.build_request("POST", f"{self.path}/runs", json=self.body, headers=headers)

    async def ask(self, client: httpx2.AsyncClient) -> None:
        """Start the run and record the response until its end or the end of the server.

        Raises:
            TransportError: the server has ended.
        """
        answer = await client.send(self.request(client), stream=True)
        try:
            if self.streamed:
                assert answer.status_code == 200, await answer.aread()
                async for event in read_events(answer):
                    self.hear(event)
            else:
                self.learn(answer.status_code, await answer.aread())
        finally:
            await answer.aclose()

    def learn(self, status: int, body: bytes) -> None:
        """Record a run record."""
        assert status in (200, 202), body
        record = orjson.loads(body)
        assert self.run_id in (None, record["run_id"])
        self.run_id = record["run_id"]
        if record["status"] not in ("PENDING", "RUNNING"):
            self.final_status = record["status"]

    def hear(self, event: Event) -> None:
        """Record an event of the stream."""
        self.received.append(event)
        self.run_id = self.run_id or event.data["run_id"]
        if event.data["run_id"] == self.run_id:
            self.final_status = ENDS.get(event.name, self.final_status)


async def read_events(answer: httpx2.Response) -> AsyncIterator[Event]:
    """Yield the events of a stream."""
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if name and value:
            fields[name] = value
        elif fields:
            yield Event(int(fields["id"]), fields["event"], orjson.loads(fields["data"]))
            fields = {}


def check_order(found: list[Event], run_id: str) -> None:
    """Check the numbers: no gap, no repeat, and one last event, the end of the run itself."""
    first = found[0].number
    assert [event.number for event in found] == list(range(first, first + len(found)))
    ends = [event.name in ENDS and event.data["run_id"] == run_id for event in found]
    assert ends == [False] * (len(found) - 1) + [True], found[-3:]


@asynccontextmanager
async def open_client(
    deployment: Deployment, url: str, subject: str | None = "me", *scopes: str
) -> AsyncIterator[httpx2.AsyncClient]:
    """Open a client of a server, for an administrator, with any number of connections."""
    token = deployment.token(subject, *(scopes or (ADMIN,)))
    async with httpx2.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {token}"},
        timeout=PATIENCE,
        # Shorter than the server's, which would close a connection that is about to be used.
        limits=httpx2.Limits(max_connections=None, keepalive_expiry=1),
    ) as client:
        yield client
