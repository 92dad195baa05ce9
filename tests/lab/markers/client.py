"""The clients of both users: they start runs through every face, on one pool of connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import httpx2

from tests.kit.conditions import PATIENCE
from tests.lab.markers.judge import Note, Outcome
from tests.lab.markers.text import Marker, find_markers
from tests.lab.markers.world import DURABLE, MarkedWorld

__all__ = ["Clients"]

BEHAVIOURS = {
    "plain": 30, "slow": 14, "whole": 18, "tail": 10, "encoded": 4, "cut": 6, "half": 5, "hang": 4,
    "error": 6,
}  # fmt: skip
"""The behaviours of `tests.lab.markers.endpoint`, and how often each is chosen."""

FACES = {
    "rest": 20, "sse": 25, "background": 30, "chat": 8, "responses": 5, "agui": 7, "ai": 7,
    "mcp": 5, "agentos": 6,
}  # fmt: skip

FATES = {"read": 55, "cancel": 28, "disconnect": 17}

FINAL = ("COMPLETED", "CANCELLED", "ERROR", "PAUSED")

REUSED = 0.5
"""The part of the runs that go on with an earlier session."""

Body = dict[str, Any]


class Clients:
    """The clients of both users.

    Args:
        users: the marker of each user.
    """

    def __init__(
        self, world: MarkedWorld, users: list[Marker], chance: Random, outcome: Outcome
    ) -> None:
        self.world = world
        self._users = users
        self._chance = chance
        self.outcome = outcome
        self.sessions: dict[tuple[str, str], list[Marker]] = defaultdict(list)
        self._http: httpx2.AsyncClient

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Open the pool of connections, which both users share."""
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
        async with httpx2.AsyncClient(timeout=PATIENCE, limits=limits) as self._http:
            yield

    def draw(self, choices: dict[str, int]) -> str:
        return self._chance.choices([*choices], [*choices.values()])[0]

    async def run_next(self) -> None:
        """Start a run of a random user, and read, cancel or leave it."""
        chance = self._chance
        component = self._chance.choice(self.world.components)
        user = chance.choice(self._users)
        face = self.draw(FACES)
        if component.startswith("workflows") and face in ("chat", "responses"):
            face = "sse"
        known = self.sessions[user.user, component]
        # A face without metadata has a session for each run.
        if face in ("rest", "sse", "background") and known and chance.random() < REUSED:
            session = chance.choice(known[-20:])
        else:
            session = user.new_session(chance)
            await self._create_session(session, component)
        known.append(session)
        behaviour = self.draw(BEHAVIOURS)
        fate = self.draw(FATES)
        marker = session.new_run(chance)
        note = Note(marker, component, face, behaviour, fate, len(self.outcome.notes))
        self.outcome.notes.append(note)
        seconds = chance.uniform(0, 0.12)
        call = chance.choice("01")
        tool = "use-tool " if chance.random() < 0.7 else ""
        filler = "so " * chance.randrange(40)
        text = f"{marker} {tool}do-{behaviour}-{seconds:.3f}-{call} {filler}end {marker}"
        leave = seconds + chance.uniform(-0.05, 0.25) if chance.random() < 0.7 else 2 * seconds
        with contextlib.suppress(httpx2.TransportError):
            await getattr(self, f"_run_{face}")(note, text, max(0.0, leave))

    # Faces

    async def _run_rest(self, note: Note, text: str, leave: float) -> None:
        body = self._body(note, text) | {"stream": False}
        record = await self._post(note, f"/{note.component}/runs", body, self._limit(note, leave))
        self._learn(note, record)

    async def _run_sse(self, note: Note, text: str, leave: float) -> None:
        body = self._body(note, text) | {"stream": True, "background": self._chance.random() < 0.3}
        await self._stream(note, f"/{note.component}/runs", body, leave)

    async def _run_background(self, note: Note, text: str, leave: float) -> None:
        body = self._body(note, text) | {"stream": False, "background": True}
        started = await self._post(note, f"/{note.component}/runs", body, None)
        self._learn(note, started)
        if not note.run_id:
            return
        await asyncio.sleep(leave)
        if note.fate == "cancel":
            await self._cancel(note)
        if self._chance.random() < 0.5:
            session = self._session_id(note.marker)
            path = f"/{note.component}/runs/{note.run_id}/resume?session_id={session}"
            await self._stream(note, path, {}, leave)
        for _ in range(40):
            if note.status in FINAL or note.fate == "disconnect":
                break
            await asyncio.sleep(0.3)
            self._learn(note, await self._get(note.marker, f"/runs/{note.run_id}", "record"))

    async def _run_chat(self, note: Note, text: str, leave: float) -> None:
        body = {
            "model": note.component.partition("/")[2],
            "messages": [{"role": "user", "content": text}],
            "stream": self._chance.random() < 0.6,
            "metadata": {"marker": str(note.marker)},
        }
        await self._post(note, "/v1/chat/completions", body, self._limit(note, leave))

    async def _run_responses(self, note: Note, text: str, leave: float) -> None:
        body = {
            "model": note.component.partition("/")[2],
            "input": text,
            "stream": self._chance.random() < 0.6,
            "metadata": {"marker": str(note.marker)},
        }
        await self._post(note, "/v1/responses", body, self._limit(note, leave))

    async def _run_agui(self, note: Note, text: str, leave: float) -> None:
        body = {
            "threadId": self._session_id(note.marker),
            "runId": f"r-{note.marker}",
            "state": {"note": str(note.marker)},
            "messages": [{"id": "1", "role": "user", "content": text}],
            "tools": [],
            "context": [],
            "forwardedProps": {},
        }
        await self._post(note, f"/agui/{note.component}", body, self._limit(note, leave))

    async def _run_ai(self, note: Note, text: str, leave: float) -> None:
        part = {"type": "text", "text": text}
        messages = [{"id": "1", "role": "user", "parts": [part]}]
        body = {"id": self._session_id(note.marker), "messages": messages}
        await self._post(note, f"/ai/{note.component}", body, self._limit(note, leave))

    async def _run_mcp(self, note: Note, text: str, leave: float) -> None:
        kind, _, name = note.component.partition("/")
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "markers", "version": "1"},
        }
        opened = await self._send(note.marker, "POST", "/mcp", _rpc("initialize", hello))
        if "mcp-session-id" not in opened.headers:
            return
        headers = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
        arguments = {"message": text, "session_id": self._session_id(note.marker)}
        call = _rpc("tools/call", {"name": f"{kind[:-1]}_{name}", "arguments": arguments})
        await self._post(note, "/mcp", call, self._limit(note, leave), headers)

    async def _run_agentos(self, note: Note, text: str, leave: float) -> None:
        """Start a run as AgentOS's clients do: a form, and the record or events of AgentOS."""
        form = {
            "message": text,
            "session_id": self._session_id(note.marker),
            "stream": str(self._chance.random() < 0.6).lower(),
        }
        path = f"/{note.component}/runs"
        agentos = {"Agentctl-Interface": "agentos"}
        await self._post(note, path, {}, self._limit(note, leave), agentos, form)
        session = f"/sessions/{self._session_id(note.marker)}/runs"
        await self._send(note.marker, "GET", session, place="agentos", headers=agentos)

    # Requests

    async def _create_session(self, session: Marker, component: str) -> None:
        """Create a session with texts of its user; a half of the sessions begin with a run."""
        kind, _, name = component.partition("/")
        if self._chance.random() < 0.5:
            return
        body = {
            "session_id": self._session_id(session),
            "session_name": f"name {session}",
            "session_state": {"kept": str(session)},
            "metadata": {"owner": str(session)},
            f"{kind[:-1]}_id": name,
        }
        with contextlib.suppress(httpx2.TransportError):
            await self._send(session, "POST", f"/sessions?type={kind[:-1]}", body)
            if self._chance.random() < 0.1:
                shared = Marker(session.user).new_run(self._chance)
                await self._send(Marker(session.user), "POST", "/memories", {"memory": f"{shared}"})

    async def _cancel(self, note: Note) -> None:
        session = self._session_id(note.marker)
        path = f"/{note.component}/runs/{note.run_id}/cancel?session_id={session}"
        await self._send(note.marker, "POST", path)

    async def _stream(self, note: Note, path: str, body: Body, leave: float) -> None:
        """Read a stream of events; cancel the run or leave after a time."""
        url = self.world.url + path
        received = bytearray()
        cancelling = False
        end = asyncio.get_running_loop().time() + leave
        headers = self._headers(note.marker)
        limit = leave if note.fate == "disconnect" else PATIENCE
        try:
            async with (
                asyncio.timeout(limit),
                self._http.stream("POST", url, json=body, headers=headers) as response,
            ):
                self.outcome.statuses[str(response.status_code)] += 1
                async for part in response.aiter_bytes():
                    received += part
                    if not note.run_id and (found := _find_run_id(received)):
                        note.run_id = found
                    late = asyncio.get_running_loop().time() > end
                    if note.fate == "cancel" and note.run_id and late and not cancelling:
                        cancelling = True
                        await self._cancel(note)
        except TimeoutError:
            pass
        finally:
            self.outcome.receive(note.marker, bytes(received), note.face)
            for name in ("Completed", "Cancelled", "Error"):
                if f"event: Run{name}\n".encode() in received:
                    note.status = name.upper()

    async def _post(
        self,
        note: Note,
        path: str,
        body: Body,
        limit: float | None,
        headers: Body | None = None,
        form: Body | None = None,
    ) -> Body:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                response = await self._send(
                    note.marker, "POST", path, body, note.face, headers, form
                )
                if response.status_code < 300:
                    if note.face not in ("rest", "background"):
                        note.status = "COMPLETED" if str(note.marker) in response.text else "ANSWER"
                    with contextlib.suppress(ValueError):
                        return dict(response.json())
        return {}

    async def _get(self, owner: Marker, path: str, place: str) -> Any:
        response = await self._send(owner, "GET", path, place=place)
        return response.json() if response.status_code == 200 else {}

    async def _send(
        self,
        owner: Marker,
        method: str,
        path: str,
        body: Body | None = None,
        place: str = "other",
        headers: Body | None = None,
        form: Body | None = None,
    ) -> httpx2.Response:
        response = await self._http.request(
            method,
            self.world.url + path,
            json=None if form else body,
            data=form,
            headers={**self._headers(owner), **(headers or {})},
        )
        self.outcome.statuses[str(response.status_code)] += 1
        self.outcome.receive(owner, response.content, place)
        return response

    def _headers(self, owner: Marker) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self.world.tokens[owner.user]}"}
        headers["Accept"] = "application/json, text/event-stream"
        headers["X-Session-ID"] = self._session_id(owner)
        headers["Agentctl-Interface"] = "contract"
        return headers

    def _body(self, note: Note, text: str) -> Body:
        body = {
            "message": text,
            "session_id": self._session_id(note.marker),
            "metadata": {"marker": str(note.marker)},
            "session_state": {"note": str(note.marker)},
        }
        if note.component not in DURABLE:
            body["dependencies"] = {"marker": str(note.marker)}
        return body

    @staticmethod
    def _session_id(marker: Marker) -> str:
        return f"s-{Marker(marker.user, marker.session)}"

    @staticmethod
    def _limit(note: Note, leave: float) -> float | None:
        """Return the time after which the client closes its connection."""
        return None if note.fate == "read" else leave

    def _learn(self, note: Note, record: Body) -> None:
        if "run_id" in record:
            note.run_id = record["run_id"]
            note.status = record.get("status", "")
            self._check_content(record, note.marker)

    def _check_content(self, record: Body, own: Marker) -> None:
        """Count answers with the marker of another run of the same session.

        They are no violation: the model gets the history of the session.
        """
        others = {each for each in find_markers(str(record.get("content"))) if each.is_of_run}
        if others - {own}:
            self.outcome.of_session.add(f"{own} has {sorted(map(str, others))}")

    # The end

    async def read_all(self) -> None:
        """Read all that each user can read."""
        markers = {note.run_id: note.marker for note in self.outcome.notes if note.run_id}
        slots = asyncio.Semaphore(4)

        async def read(session: Marker) -> None:
            path = f"/sessions/{self._session_id(session)}"
            async with slots:
                await self._get(session, path, "session")
                for record in await self._get(session, f"{path}/runs", "history") or []:
                    given = find_markers(str((record.get("metadata") or {}).get("marker")))
                    own = markers.get(record["run_id"]) or next(iter(given), None)
                    if own is not None:
                        self._check_content(record, own)
                if self._chance.random() < 0.1:
                    await self._send(session, "GET", f"{path}/export", place="export")
                    other = next(each for each in self._users if each.user != session.user)
                    refused = await self._send(other, "GET", path, place="refused")
                    if refused.status_code != 404:
                        self.outcome.report(f"{path} of another: {refused.status_code}")

        sessions = {each for known in self.sessions.values() for each in known}
        await asyncio.gather(*map(read, sessions))
        for user in self._users:
            for path in ("/sessions?limit=100", "/runs?limit=100", "/memories?limit=100", "/usage"):
                await self._get(user, path, "list")
            await self._get(user, "/sessions?limit=100&search=so", "search")


def _rpc(method: str, params: Body) -> Body:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def _find_run_id(received: bytearray) -> str:
    for line in bytes(received).splitlines():
        if line.startswith(b"data: {"):
            with contextlib.suppress(ValueError):
                return str(json.loads(line[6:]).get("run_id", ""))
    return ""
