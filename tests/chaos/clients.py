"""Clients that work with whichever server is there, and note what they are told."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import Any

import httpx2
import orjson

from tests.chaos.ledger import Ledger, RunNote
from tests.chaos.stage import Cluster
from tests.server.load import ENDS, events

__all__ = ["Client"]

ANSWER_SECONDS = 60.0
PAUSE_SECONDS = 0.2

QUICK = ("/agents/echo", "/agents/echo", "/teams/crew", "/workflows/line")
ENDLESS = ("/agents/half", "/agents/half", "/agents/half", "/agents/trickle", "/teams/jam")
FEWEST = 3
"""How many events each of them has at least."""


class _Unavailable(Exception):
    """503, or no answer: the same may be tried again."""


class Client:
    """One of many; does one thing after the other until it is cancelled."""

    def __init__(self, number: int, stage: Cluster, ledger: Ledger) -> None:
        self._own = f"c{number}"
        self._stage = stage
        self._ledger = ledger
        self._dice = random.Random(number)
        self._count = 0
        self._http = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {stage.token}"},
            timeout=ANSWER_SECONDS,
            limits=httpx2.Limits(max_connections=None, keepalive_expiry=1),
        )

    async def work(self, until: float) -> None:
        """Go on until that time of `time.monotonic`."""
        async with self._http:
            while time.monotonic() < until:
                deed = self._dice.choice(_ACTIONS)
                try:
                    await deed(self)
                except _Unavailable:
                    await asyncio.sleep(PAUSE_SECONDS)
                await asyncio.sleep(self._dice.uniform(0, 0.1))

    # What a client does.

    async def create_session(self) -> None:
        session_id, names = self._next(), self._ledger.names
        body = {"session_id": session_id, "session_name": "new", "agent_id": "echo"}
        await self._request_document("create session", "POST", "/sessions", body)
        names[session_id] = ["new"]

    async def rename_session(self) -> None:
        mine = [name for name in self._ledger.names if name.startswith(f"{self._own}-")]
        if not mine:
            return
        session_id, name = self._dice.choice(mine), self._next()
        self._ledger.names[session_id].append(name)
        path = f"/sessions/{session_id}/rename"
        await self._request_document("rename session", "POST", path, {"session_name": name})
        self._ledger.names[session_id] = [name]

    async def run(self) -> None:
        """A plain run, or one in the background, with a key or without one."""
        background = self._dice.random() < 0.4
        told = self._new(self._dice.choice(QUICK), recorded=background)
        name = "run in background" if background else "run"
        await self._until_told(name, told, background=background)

    async def stream(self) -> None:
        """A stream, resumed wherever it breaks off, of which some end by a cancel."""
        endless = self._dice.random() < 0.3
        told = self._new(self._dice.choice(ENDLESS if endless else QUICK), recorded=True)
        body = self._body(told) | {"stream": True, "background": True}
        most = self._dice.randint(1, FEWEST) if endless else None
        with contextlib.suppress(_Unavailable):
            await self._follow("stream", told, f"{told.path}/runs", body, most)
        deadline = time.monotonic() + ANSWER_SECONDS
        while told.run_id is not None and told.status is None and time.monotonic() < deadline:
            if endless and not await self._cancel(told):
                continue
            path = f"{told.path}/runs/{told.run_id}/resume?session_id={told.session_id}"
            with contextlib.suppress(_Unavailable):
                await self._follow("resume", told, path, None, None)
                continue
            await asyncio.sleep(PAUSE_SECONDS)

    async def cancel(self) -> None:
        """A run without an end, stopped through whichever server."""
        told = self._new(self._dice.choice(("/agents/hang", *ENDLESS)), recorded=True)
        await self._until_told("run in background", told, background=True)
        await asyncio.sleep(self._dice.uniform(0, 0.2))
        while told.run_id is not None and told.status is None:
            await self._cancel(told)

    async def read(self) -> None:
        runs = self._ledger.runs
        told = self._dice.choice(runs) if runs else None
        if told is None or told.run_id is None:
            return
        record = await self._request_document("read run", "GET", f"/runs/{told.run_id}")
        self._expect(record["run_id"] == told.run_id, "another run was answered")
        self._expect(told.status in (None, record["status"]), "a final run was read otherwise")

    async def read_session(self) -> None:
        names = list(self._ledger.names)
        if names:
            await self._request_document(
                "read session", "GET", f"/sessions/{self._dice.choice(names)}"
            )

    async def list_all(self) -> None:
        which = self._dice.choice(("sessions", "runs"))
        await self._request_document(f"list {which}", "GET", f"/{which}?limit=20")

    # How it does it.

    def _new(self, path: str, *, recorded: bool) -> RunNote:
        kind = path.split("/")[1]
        shared = self._dice.random() < 0.2
        session_id = f"{'shared' if shared else self._own}-{kind}-{self._dice.randint(0, 3)}"
        message = self._next()
        key = message if self._dice.random() < 0.6 else None
        told = RunNote(path, session_id, f"echo {message}", key, recorded)
        self._ledger.runs.append(told)
        return told

    def _next(self) -> str:
        self._count += 1
        return f"{self._own}-{self._count}"

    @staticmethod
    def _body(told: RunNote) -> dict[str, Any]:
        return {"message": told.message, "session_id": told.session_id}

    async def _until_told(self, name: str, told: RunNote, *, background: bool) -> None:
        """Ask for a run; with a key again and again, until there is an answer."""
        body = self._body(told) | {"stream": False, "background": background}
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                record = await self._request_document(
                    name, "POST", f"{told.path}/runs", body, told.key
                )
            except _Unavailable:
                if told.key is None or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            self._learn(told, record)
            return

    def _learn(self, told: RunNote, record: dict[str, Any]) -> None:
        run_id, status = record["run_id"], record["status"]
        self._expect(told.run_id in (None, run_id), "one key has two runs")
        told.run_id = run_id
        if status not in ("PENDING", "RUNNING"):
            self._expect(told.status in (None, status), "a run has two ends")
            told.status, told.record = status, record

    async def _cancel(self, told: RunNote) -> bool:
        """Whether the run was asked to stop."""
        path = f"{told.path}/runs/{told.run_id}/cancel?session_id={told.session_id}&wait=5"
        try:
            answer = await self._request_document("cancel", "POST", path)
        except _Unavailable:
            await asyncio.sleep(PAUSE_SECONDS)
            return False
        if answer["cancel"] == "stopped":
            self._expect(told.status in (None, "CANCELLED"), "a run has two ends")
            told.status = "CANCELLED"
        elif answer["cancel"] == "already_final":
            told.status = told.status or answer["status"]
        return True

    async def _follow(
        self, name: str, told: RunNote, path: str, body: dict[str, Any] | None, most: int | None
    ) -> None:
        """Hear events until the end of the run, or some number of them.

        Raises:
            _Refused: the stream was refused, or has broken off.
        """
        tried, began = self._ledger.tried[name], time.monotonic()
        headers = {} if body is None or told.key is None else {"Idempotency-Key": told.key}
        if body is None:
            headers["Last-Event-ID"] = str(told.heard[-1].number if told.heard else -1)
        url = self._server() + path
        try:
            async with self._http.stream("POST", url, json=body, headers=headers) as answer:
                await self._check(tried, answer)
                async for event in events(answer):
                    self._hear(told, event)
                    if most is not None and len(told.heard) >= most:
                        return
                    if told.status is not None:
                        tried.seconds.append(time.monotonic() - began)
                        return
        except httpx2.TransportError:
            tried.broken += 1
            raise _Unavailable from None
        tried.broken += 1
        raise _Unavailable

    def _hear(self, told: RunNote, event: Any) -> None:
        if told.heard:
            self._expect(event.number > told.heard[-1].number, "an event came twice")
        told.heard.append(event)
        told.run_id = told.run_id or event.data["run_id"]
        if event.data["run_id"] == told.run_id and event.name in ENDS:
            self._expect(told.status in (None, ENDS[event.name]), "a run has two ends")
            told.status = ENDS[event.name]

    async def _request_document(
        self, name: str, method: str, path: str, body: Any = None, key: str | None = None
    ) -> Any:
        """The answer to one request.

        Raises:
            _Refused: it is 503, or there is none.
        """
        tried, began = self._ledger.tried[name], time.monotonic()
        headers = {} if key is None else {"Idempotency-Key": key}
        try:
            async with self._http.stream(
                method, self._server() + path, json=body, headers=headers
            ) as answer:
                await self._check(tried, answer)
                content = await answer.aread()
        except httpx2.TransportError as error:
            if isinstance(error, httpx2.ReadTimeout):
                self._ledger.wrong[f"{name}: no answer in {ANSWER_SECONDS:.0f} s"] += 1
            tried.broken += 1
            raise _Unavailable from None
        tried.seconds.append(time.monotonic() - began)
        return orjson.loads(content)

    async def _check(self, tried: Any, answer: httpx2.Response) -> None:
        if answer.status_code in (200, 201, 202):
            return
        if answer.status_code == 503:
            self._expect("Retry-After" in answer.headers, "503 without Retry-After")
            tried.refused += 1
        else:
            content = (await answer.aread()).decode()
            path = "/".join(answer.request.url.path.split("/")[:3])
            self._ledger.wrong[f"{answer.status_code} for {path}: {content[:200]}"] += 1
        raise _Unavailable

    def _server(self) -> str:
        """Any of those that are up; a load balancer would know as much."""
        servers = self._stage.servers
        return self._dice.choice([server for server in servers if server.up] or servers).url

    def _expect(self, true: bool, what: str) -> None:
        if not true:
            self._ledger.wrong[what] += 1


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
