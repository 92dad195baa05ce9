"""The workload of random requests: clients that ask any running server, and note the responses."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import Any

import httpx2
import orjson

from tests.kit.concurrent_callers import ENDS, Event, read_events
from tests.lab.received import Received, RequestCounts, RunNote
from tests.lab.world import World

__all__ = ["Client"]

RESPONSE_SECONDS = 60.0
PAUSE_SECONDS = 0.2

QUICK = ("/agents/echo", "/agents/echo", "/teams/crew", "/workflows/line")
ENDLESS = ("/agents/half", "/agents/half", "/agents/half", "/agents/trickle", "/teams/jam")
FEWEST_EVENTS = 2
"""Number of events that every run of an endless component has at least: its start and one text."""


class _Unavailable(Exception):
    """A 503 response, or no complete response: the client may try again."""


class Client:
    """A client that performs random actions, one after the other."""

    def __init__(self, number: int, world: World, received: Received) -> None:
        self._name = f"c{number}"
        self._world = world
        self._received = received
        self._dice = random.Random(number)
        self._count = 0
        self._http = httpx2.AsyncClient(
            headers=world.headers,
            timeout=RESPONSE_SECONDS,
            limits=httpx2.Limits(max_connections=None, keepalive_expiry=1),
        )

    async def work(self, until: float, enough: int) -> None:
        """Perform actions until this time of `time.monotonic` and more runs than `enough`."""
        async with self._http:
            while time.monotonic() < until or len(self._received.acknowledged) <= enough:
                action = self._dice.choice(_ACTIONS)
                try:
                    await action(self)
                except _Unavailable:
                    await asyncio.sleep(PAUSE_SECONDS)
                await asyncio.sleep(self._dice.uniform(0, 0.1))

    # Actions.

    async def create_session(self) -> None:
        session_id = self._next_name()
        names = self._received.names
        body = {"session_id": session_id, "session_name": "new", "agent_id": "echo"}
        await self._request("create session", "POST", "/sessions", body)
        names[session_id] = ["new"]

    async def rename_session(self) -> None:
        mine = [name for name in self._received.names if name.startswith(f"{self._name}-")]
        if not mine:
            return
        session_id = self._dice.choice(mine)
        name = self._next_name()
        self._received.names[session_id].append(name)
        path = f"/sessions/{session_id}/rename"
        await self._request("rename session", "POST", path, {"session_name": name})
        self._received.names[session_id] = [name]

    async def run(self) -> None:
        """Create a run, in the background or not, with or without an idempotency key."""
        background = self._dice.random() < 0.4
        note = self._new_run(self._dice.choice(QUICK), recorded=background)
        name = "run in background" if background else "run"
        await self._create_run(name, note, background=background)

    async def stream(self) -> None:
        """Stream a run and resume the stream after every break; cancel an endless run."""
        endless = self._dice.random() < 0.3
        note = self._new_run(self._dice.choice(ENDLESS if endless else QUICK), recorded=True)
        body = self._body(note) | {"stream": True, "background": True}
        most = self._dice.randint(1, FEWEST_EVENTS) if endless else None
        with contextlib.suppress(_Unavailable):
            await self._follow("stream", note, f"{note.path}/runs", body, most)
        deadline = time.monotonic() + RESPONSE_SECONDS
        while note.run_id is not None and note.status is None and time.monotonic() < deadline:
            if endless and not await self._cancel_run(note):
                continue
            path = f"{note.path}/runs/{note.run_id}/resume?session_id={note.session_id}"
            with contextlib.suppress(_Unavailable):
                await self._follow("resume", note, path, None, None)
                continue
            await asyncio.sleep(PAUSE_SECONDS)

    async def cancel(self) -> None:
        """Create an endless run and cancel it through any server."""
        note = self._new_run(self._dice.choice(("/agents/hang", *ENDLESS)), recorded=True)
        await self._create_run("run in background", note, background=True)
        await asyncio.sleep(self._dice.uniform(0, 0.2))
        while note.run_id is not None and note.status is None:
            await self._cancel_run(note)

    async def read(self) -> None:
        runs = self._received.runs
        note = self._dice.choice(runs) if runs else None
        if note is None or note.run_id is None:
            return
        # The client of the run may receive its end while this response is on the way.
        known = note.status
        record = await self._request("read run", "GET", f"/runs/{note.run_id}")
        self._expect(record["run_id"] == note.run_id, "another run was returned")
        self._expect(known in (None, record["status"]), "the status of a final run changed")

    async def read_session(self) -> None:
        names = list(self._received.names)
        if names:
            await self._request("read session", "GET", f"/sessions/{self._dice.choice(names)}")

    async def list_all(self) -> None:
        kind = self._dice.choice(("sessions", "runs"))
        await self._request(f"list {kind}", "GET", f"/{kind}?limit=20")

    # Requests.

    def _new_run(self, path: str, *, recorded: bool) -> RunNote:
        kind = path.split("/")[1]
        shared = self._dice.random() < 0.2
        session_id = f"{'shared' if shared else self._name}-{kind}-{self._dice.randint(0, 3)}"
        message = self._next_name()
        key = message if self._dice.random() < 0.6 else None
        note = RunNote(path, session_id, f"echo {message}", key, recorded)
        self._received.runs.append(note)
        return note

    def _next_name(self) -> str:
        self._count += 1
        return f"{self._name}-{self._count}"

    @staticmethod
    def _body(note: RunNote) -> dict[str, Any]:
        return {"message": note.message, "session_id": note.session_id}

    async def _create_run(self, name: str, note: RunNote, *, background: bool) -> None:
        """Request a run. With a key, repeat the request until there is a response."""
        body = self._body(note) | {"stream": False, "background": background}
        deadline = time.monotonic() + RESPONSE_SECONDS
        while True:
            try:
                record = await self._request(name, "POST", f"{note.path}/runs", body, note.key)
            except _Unavailable:
                if note.key is None or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            self._note_record(note, record)
            return

    def _note_record(self, note: RunNote, record: dict[str, Any]) -> None:
        run_id = record["run_id"]
        status = record["status"]
        self._expect(note.run_id in (None, run_id), "one key has two runs")
        note.run_id = run_id
        if status not in ("PENDING", "RUNNING"):
            self._expect(note.status in (None, status), "a run has two final statuses")
            note.status = status
            note.record = record

    async def _cancel_run(self, note: RunNote) -> bool:
        """Request the cancel of a run; return False if no server accepted the request."""
        path = f"{note.path}/runs/{note.run_id}/cancel?session_id={note.session_id}&wait=5"
        try:
            response = await self._request("cancel", "POST", path)
        except _Unavailable:
            await asyncio.sleep(PAUSE_SECONDS)
            return False
        if response["cancel"] == "stopped":
            self._expect(note.status in (None, "CANCELLED"), "a run has two final statuses")
            note.status = "CANCELLED"
        elif response["cancel"] == "already_final":
            note.status = note.status or response["status"]
        return True

    async def _follow(
        self, name: str, note: RunNote, path: str, body: dict[str, Any] | None, most: int | None
    ) -> None:
        """Read an event stream until the end of the run, or until `most` events have come.

        Raises:
            _Unavailable: the request failed, or the stream broke off.
        """
        counts = self._received.requests[name]
        began = time.monotonic()
        headers = {} if body is None or note.key is None else {"Idempotency-Key": note.key}
        if body is None:
            headers["Last-Event-ID"] = str(note.events[-1].number if note.events else -1)
        url = self._choose_server() + path
        try:
            async with self._http.stream("POST", url, json=body, headers=headers) as response:
                await self._check_status(counts, response)
                async for event in read_events(response):
                    self._note_event(note, event)
                    if most is not None and len(note.events) >= most:
                        return
                    if note.status is not None:
                        counts.seconds.append(time.monotonic() - began)
                        return
        except httpx2.TransportError:
            counts.broken += 1
            raise _Unavailable from None
        counts.broken += 1
        raise _Unavailable

    def _note_event(self, note: RunNote, event: Event) -> None:
        if note.events:
            self._expect(event.number > note.events[-1].number, "an event came twice")
        note.events.append(event)
        note.run_id = note.run_id or event.data["run_id"]
        if event.data["run_id"] == note.run_id and event.name in ENDS:
            status = ENDS[event.name]
            self._expect(note.status in (None, status), "a run has two final statuses")
            note.status = status

    async def _request(
        self, name: str, method: str, path: str, body: Any = None, key: str | None = None
    ) -> Any:
        """Send a request to any running server and return the JSON of the response.

        Raises:
            _Unavailable: the response is 503, or there is no complete response.
        """
        counts = self._received.requests[name]
        began = time.monotonic()
        headers = {} if key is None else {"Idempotency-Key": key}
        try:
            async with self._http.stream(
                method, self._choose_server() + path, json=body, headers=headers
            ) as response:
                await self._check_status(counts, response)
                content = await response.aread()
        except httpx2.TransportError as error:
            if isinstance(error, httpx2.ReadTimeout):
                violation = f"{name}: no response in {RESPONSE_SECONDS:.0f} s"
                self._received.violations[violation] += 1
            counts.broken += 1
            raise _Unavailable from None
        counts.seconds.append(time.monotonic() - began)
        return orjson.loads(content)

    async def _check_status(self, counts: RequestCounts, response: httpx2.Response) -> None:
        if response.status_code in (200, 201, 202):
            return
        if response.status_code == 503:
            self._expect("Retry-After" in response.headers, "503 without Retry-After")
            counts.unavailable += 1
        else:
            content = (await response.aread()).decode()
            path = "/".join(response.request.url.path.split("/")[:3])
            violation = f"{response.status_code} for {path}: {content[:200]}"
            self._received.violations[violation] += 1
        raise _Unavailable

    def _choose_server(self) -> str:
        """Return the URL of any running server, as a load balancer does."""
        return self._dice.choice(self._world.list_running()).url

    def _expect(self, condition: bool, violation: str) -> None:
        if not condition:
            self._received.violations[violation] += 1


_ACTIONS = (
    *[Client.run] * 5,
    *[Client.stream] * 4,
    *[Client.cancel] * 2,
    *[Client.read] * 4,
    Client.create_session,
    Client.rename_session,
    Client.read_session,
    Client.list_all,
)
