"""Many callers at once, from an event loop, against a server that is a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx2
import orjson

from tests.deployment import ADMIN, Deployment

__all__ = ["ENDS", "SECONDS", "Asked", "Event", "calling", "events", "ordered"]

ENDS = {
    f"{prefix}{end}": status
    for prefix in ("Run", "TeamRun", "Workflow")
    for end, status in {
        "Completed": "COMPLETED",
        "Cancelled": "CANCELLED",
        "Error": "ERROR",
    }.items()
}
"""The status that the last event of a run tells of, by the name of the event."""

SECONDS = 60.0
"""How long an answer may take on a machine that is busy with other tests."""


class Event(NamedTuple):
    """One event of a stream."""

    number: int
    name: str
    data: dict[str, Any]


@dataclass
class Asked:
    """A run that was asked for, and what its caller has heard of it.

    Attributes:
        path: of the component.
        body: of the request; its message is like no other's.
        key: its Idempotency-Key.
        run_id: the run, once an answer named it.
        told: the status that the answer gave, when that is a final one.
        heard: the events that came.
    """

    path: str
    body: dict[str, Any]
    key: str | None = None
    run_id: str | None = None
    told: str | None = None
    heard: list[Event] = field(default_factory=list)

    @property
    def streamed(self) -> bool:
        return bool(self.body["stream"])

    @property
    def url(self) -> str:
        """Of the run."""
        return f"{self.path}/runs/{self.run_id}"

    def request(self, client: httpx2.AsyncClient) -> httpx2.Request:
        headers = {} if self.key is None else {"Idempotency-Key": self.key}
        return client.build_request("POST", f"{self.path}/runs", json=self.body, headers=headers)

    async def ask(self, client: httpx2.AsyncClient) -> None:
        """Ask, and note what is answered until its end or that of the server.

        Raises:
            TransportError: the server is gone.
        """
        answer = await client.send(self.request(client), stream=True)
        try:
            if self.streamed:
                assert answer.status_code == 200, await answer.aread()
                async for event in events(answer):
                    self.hear(event)
            else:
                self.learn(answer.status_code, await answer.aread())
        finally:
            await answer.aclose()

    def learn(self, status: int, body: bytes) -> None:
        """Take a record."""
        assert status in (200, 202), body
        record = orjson.loads(body)
        assert self.run_id in (None, record["run_id"])
        self.run_id = record["run_id"]
        if record["status"] not in ("PENDING", "RUNNING"):
            self.told = record["status"]

    def hear(self, event: Event) -> None:
        """Take an event of the stream."""
        self.heard.append(event)
        self.run_id = self.run_id or event.data["run_id"]
        if event.data["run_id"] == self.run_id:
            self.told = ENDS.get(event.name, self.told)


async def events(answer: httpx2.Response) -> AsyncIterator[Event]:
    """The events of a stream as they come."""
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if name and value:
            fields[name] = value
        elif fields:
            yield Event(int(fields["id"]), fields["event"], orjson.loads(fields["data"]))
            fields = {}


def ordered(found: list[Event], run_id: str) -> None:
    """Numbers without a gap or a repeat, one end of the run itself, and nothing behind that."""
    first = found[0].number
    assert [event.number for event in found] == list(range(first, first + len(found)))
    ends = [event.name in ENDS and event.data["run_id"] == run_id for event in found]
    assert ends == [False] * (len(found) - 1) + [True], found[-3:]


@asynccontextmanager
async def calling(
    deployment: Deployment, url: str, subject: str | None = "me", *scopes: str
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a server, as many connections as it needs; an administrator without scopes."""
    token = deployment.token(subject, *(scopes or (ADMIN,)))
    async with httpx2.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {token}"},
        timeout=SECONDS,
        # Shorter than the server's, which would close a connection that is about to be used.
        limits=httpx2.Limits(max_connections=None, keepalive_expiry=1),
    ) as client:
        yield client
