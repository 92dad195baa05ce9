"""A trial: a failure, then a message in the same session."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.kit.conditions import PATIENCE, wait_until
from tests.lab.failures.damage import STATE, StoredColumn, find_read_problems, list_reads
from tests.lab.failures.table import BLAMED, OF_CALL, SECRET, Failure
from tests.lab.failures.world import IN_CODE, KINDS, find_component
from tests.lab.world import World

__all__ = ["Clients", "Trial"]

_WITH_NATIVE = ("pydantic-ai", "openai-agents", "google-adk")
"""The kinds whose messages are stored as their library writes them, too."""

FINAL = ("COMPLETED", "CANCELLED", "ERROR")

Record = dict[str, Any]


@dataclass
class Trial:
    """A failure with a kind of agent, and its outcome.

    Attributes:
        prefix: how its server ends, for a run that is live then.
        run_id: the failed run, of a server that ends.
        ended: the error code or the status of the failed run.
        problems: each difference from the rules, in a sentence.
    """

    kind: str
    failure: Failure
    prefix: str = ""
    run_id: str = ""
    ended: str = ""
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.kind, self.prefix, self.failure.name)))

    @property
    def session_id(self) -> str:
        return self.name.replace(" ", "-")


class Clients:
    """The clients of a server: Ann, whose runs fail, and Bob, whose runs must not."""

    def __init__(self, world: World) -> None:
        self._world = world
        scopes = [
            f"{kind}:{verb}"
            for kind in ("agents", "teams", "workflows", "sessions")
            for verb in ("read", "run", "write")
            if (kind, verb) != ("sessions", "run") and (kind == "sessions" or verb != "write")
        ]
        scopes.append("approvals:read")
        self._headers = {
            user: world.servers[0].deployment.bearer(user, *scopes) for user in ("ann", "bob")
        }
        self._http: httpx2.AsyncClient

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Clients]:
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(
            base_url=self._world.servers[0].url, timeout=PATIENCE, limits=limits
        ) as self._http:
            yield self

    async def run_all(self, trials: Sequence[Trial], parallel: int = 12) -> None:
        """Run trials at the same time, those that wait for a time limit besides the others."""
        slots = asyncio.Semaphore(parallel)

        async def run(trial: Trial) -> None:
            async with contextlib.AsyncExitStack() as context:
                if not trial.failure.is_slow:
                    await context.enter_async_context(slots)
                try:
                    await self.run(trial)
                except Exception as error:
                    trial.problems.append(f"{type(error).__name__}: {error}"[:300])

        async with self.watch():
            await asyncio.gather(*map(run, trials))

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Run messages of the other user meanwhile."""
        task = asyncio.create_task(self._run_bystander())
        try:
            yield
        finally:
            task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(ended, Exception):
            raise ended

    async def run(self, trial: Trial) -> None:
        failure = trial.failure
        component = find_component(trial.kind, failure.variant)
        assert component is not None
        body, key = self._build_body(trial)
        record = await self._fail(failure, component, body, key)
        self._judge(trial, record)
        if failure.action == "damage":
            await self._check_damage(trial, record, component)
        else:
            await self.say_hi(trial)

    def _build_body(self, trial: Trial, name: str = "") -> tuple[Record, str]:
        """Return the request of a failure or of `hi`, and its key."""
        key = f"k{uuid.uuid4().hex}"
        message = f"{name or 'do'} [[{name or trial.failure.name}#{key}]]"
        return {"message": message, "session_id": trial.session_id, "stream": False}, key

    async def begin(self, trial: Trial) -> None:
        """Complete a run in the session of a trial."""
        body, _ = self._build_body(trial, "hi")
        await self._post(f"/{find_component(trial.kind, '')}/runs", body)

    async def start(self, trial: Trial) -> None:
        """Start the run of a failure, and wait until it is in its work."""
        component = find_component(trial.kind, trial.failure.variant)
        body, key = self._build_body(trial)
        started = await self._post(f"/{component}/runs", {**body, "background": True})
        trial.run_id = started["run_id"]
        if trial.failure.action == "cancel-in-work":
            await self._wait_for_work(trial.failure, key)
            return
        await self._wait_for_end(trial.run_id, (*FINAL, "PAUSED"))

    async def go_on(self, trial: Trial) -> None:
        """Cancel a run that another server has begun, unless it has ended, and say hi."""
        component = find_component(trial.kind, trial.failure.variant)
        assert component is not None
        codes = {"WORKER_LOST", "CANCELLED", *trial.failure.codes}
        record = await self._wait_for_end(trial.run_id, (*FINAL, "PAUSED", "RUNNING"))
        if record["status"] not in FINAL:
            record = await self._cancel(component, record)
        self._judge(trial, record, codes)
        await self.say_hi(trial)

    # The failure

    async def _fail(self, failure: Failure, component: str, body: Record, key: str) -> Record:
        actions: dict[str, Callable[..., Awaitable[Record]]] = {
            "run": self._run_to_its_end,
            "leave": self._leave,
            "refuse": self._send_wrongly,
            "cancel-in-queue": self._cancel_in_queue,
            "cancel-at-start": self._cancel_in_work,
            "cancel-in-work": self._cancel_in_work,
            "damage": self._damage,
        }
        action = actions.get(failure.action, self._decide)
        return await action(failure, component, body, key)

    async def _run_to_its_end(
        self, failure: Failure, component: str, body: Record, key: str
    ) -> Record:
        return await self._post(f"/{component}/runs", body)

    async def _leave(self, failure: Failure, component: str, body: Record, key: str) -> Record:
        posting = asyncio.create_task(self._post(f"/{component}/runs", body))
        await self._wait_for_work(failure, key)
        posting.cancel()
        await asyncio.gather(posting, return_exceptions=True)
        runs = await self._get(f"/sessions/{body['session_id']}/runs")
        return await self._wait_for_end(runs[0]["run_id"])

    async def _damage(self, failure: Failure, component: str, body: Record, key: str) -> Record:
        """Complete a run, and damage a stored column of its session."""
        name, way = failure.body
        record = await self._post(f"/{component}/runs", {**body, "session_state": STATE})
        column = StoredColumn(self._world, name, body["session_id"])
        await column.damage(way)
        record["damaged"] = await column.read()
        return record

    async def _check_damage(self, trial: Trial, before: Record, component: str) -> None:
        """Check that the reads are clear, that damaged data is kept, and that a record names it."""
        name, _ = trial.failure.body
        kind = component.partition("s/")[0]
        paths = list_reads(kind, trial.session_id, before["run_id"])
        trial.problems += await find_read_problems(self._read, paths)
        answered = await self.say_hi(trial)
        paths = list_reads(kind, trial.session_id, before["run_id"])
        trial.problems += await find_read_problems(self._read, paths)

        now = await StoredColumn(self._world, name, trial.session_id).read()
        kept = [text == old for text, old in zip(now, before["damaged"], strict=False)]
        if name == "session_state":
            kept = [kept[0] or json.loads(now[0]).get("damaged_state") == before["damaged"][0]]
        if not all(kept) and name != "metrics":
            trial.problems.append(f"the damaged data is not kept: {now}"[:300])
        kinds = {*KINDS} - {"workflow"} if name in ("messages", "session_state") else ()
        if trial.kind not in (_WITH_NATIVE if name == "native_history" else kinds):
            return
        record = await self._read(f"/runs/{answered['run_id']}")
        expected = f"damaged_{name.removesuffix('_history').removeprefix('session_')}"
        if f'"kind":"{expected}"' not in record.text:
            trial.problems.append(f"the record does not name {expected}: {record.text[:900]}")

    async def _read(self, path: str) -> httpx2.Response:
        return await self._http.get(path, headers=self._headers["ann"])

    async def _send_wrongly(
        self, failure: Failure, component: str, body: Record, key: str
    ) -> Record:
        wrong = failure.body
        content = wrong if isinstance(wrong, str) else json.dumps({**body, **wrong})
        headers = {**self._headers["ann"], "Content-Type": "application/json"}
        response = await self._http.post(f"/{component}/runs", content=content, headers=headers)
        answer: Record = response.json()
        if response.status_code < 300:
            return answer
        return {"status": "refused", "http": response.status_code, **answer}

    async def _cancel_in_work(
        self, failure: Failure, component: str, body: Record, key: str
    ) -> Record:
        started = await self._post(f"/{component}/runs", {**body, "background": True})
        if failure.action == "cancel-in-work":
            await self._wait_for_work(failure, key)
        return await self._cancel(component, started)

    async def _cancel_in_queue(
        self, failure: Failure, component: str, body: Record, key: str
    ) -> Record:
        body = {**body, "background": True}
        first = await self._post(f"/{component}/runs", body)
        second = await self._post(f"/{component}/runs", body)
        cancelled = await self._cancel(component, second)
        await self._cancel(component, first)
        return cancelled

    async def _cancel(self, component: str, run: Record) -> Record:
        query = f"session_id={run['session_id']}&wait=30"
        await self._post(f"/{component}/runs/{run['run_id']}/cancel?{query}", None)
        return await self._wait_for_end(run["run_id"])

    async def _decide(self, failure: Failure, component: str, body: Record, key: str) -> Record:
        record = await self._post(f"/{component}/runs", body)
        if record["status"] != "PAUSED":
            return record
        if failure.action == "cancel-while-paused":
            return await self._cancel(component, record)
        if failure.action == "expire":
            return await self._wait_for_end(record["run_id"])
        asked = (await self._get(f"/approvals?run_id={record['run_id']}"))["data"]
        path = f"/{component}/runs/{record['run_id']}/continue"
        wrong: dict[str, Record] = {
            "approve-others": {"decision": "approve", "arguments": {"amount": [], "who": 1}},
            "approve-wrongly": {"decision": "approve", "arguments_hash": "0" * 64},
            "respond": {"decision": "answer", "answer": 7},
        }
        for decision in [wrong.get(failure.action), {"decision": "reject", "note": "no"}]:
            if decision is not None:
                decisions = [
                    {
                        "arguments_hash": each["arguments_hash"],
                        **decision,
                        "approval_id": each["approval_id"],
                    }
                    for each in asked
                ]
                sent = {"decisions": decisions, "stream": False}
                headers = self._headers["ann"]
                response = await self._http.post(path, json=sent, headers=headers)
                if response.status_code < 300:
                    return dict(response.json())
                assert response.status_code < 500, response.text
        raise AssertionError(f"the rejection was refused: {response.text}")

    async def _wait_for_work(self, failure: Failure, key: str) -> None:
        """Wait until the model has got the call in which the run stays."""

        async def has_begun() -> bool:
            return bool((await self._read_seen(key))["accepted"] >= len(failure.replies))

        await wait_until(has_begun)
        await asyncio.sleep(0.3)

    async def _wait_for_end(self, run_id: str, wanted: Sequence[str] = FINAL) -> Record:
        record: Record = {}
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while record.get("status") not in wanted:
            assert asyncio.get_running_loop().time() < deadline, f"not ended: {record}"
            record = await self._get(f"/runs/{run_id}")
            await asyncio.sleep(0.05)
        return record

    def _judge(self, trial: Trial, record: Record, given: Collection[str] = ()) -> None:
        status = record["status"]
        codes = {*(given or trial.failure.codes)}
        error = record.get("error") or {}
        trial.ended = str(error.get("code") or status)
        # The tools of an agent in code are its code, and a function calls its model itself.
        if trial.kind in ("function", "generator") or (
            trial.kind in IN_CODE and "TOOL_FAILED" in codes
        ):
            codes.add("AGENT_FAILED")
        if trial.kind in IN_CODE and OF_CALL.issubset(codes):
            # A library sends a wrong call back as the model has made it. The provider refuses it.
            codes.add("MODEL_REJECTED")
        if status not in (*FINAL, "refused"):
            trial.problems.append(f"the run is {status}")
        elif trial.ended not in codes and trial.kind not in BLAMED.get(trial.failure.name, ()):
            trial.problems.append(f"ended as {trial.ended}, not {sorted(codes)}")
        text = json.dumps([error, record.get("content")])
        for forbidden in ("Traceback", SECRET, "secret of a tool", 'File "'):
            if forbidden in text:
                trial.problems.append(f"the record has {forbidden!r}: {text[:200]}")

    # The message that must be answered

    async def say_hi(self, trial: Trial) -> Record:
        """Send a message in the session of a trial, check its answer, and return its run."""
        component = find_component(trial.kind, trial.failure.variant)
        body, key = self._build_body(trial, "hi")
        record = await self._post(f"/{component}/runs", body)
        seen = await self._read_seen(key)
        trial.problems += [f"strict: {each}" for each in seen["violations"]]
        if not seen["accepted"]:
            trial.problems.append("hi did not reach the model")
        wanted = '"total"' if trial.failure.variant == "output" else f"hello {key}"
        if record["status"] != "COMPLETED" or wanted not in (record["content"] or ""):
            error = record.get("error")
            trial.problems.append(f"hi: {record['status']} {error} {record['content']!r:.80}")
            return record
        stored = await self._get(f"/runs/{record['run_id']}")
        if stored["content"] != record["content"]:
            trial.problems.append("the answer is not stored")
        return record

    async def _run_bystander(self) -> None:
        """Run messages of another user in one session; each one has to be answered."""
        while True:
            key = f"k{uuid.uuid4().hex}"
            body = {"message": f"hi [[hi#{key}]]", "session_id": "bystander", "stream": False}
            record = await self._post("/agents/configured/runs", body, "bob")
            assert record["content"] == f"hello {key}", record
            assert not (await self._read_seen(key))["violations"]
            await asyncio.sleep(0.5)

    # Requests

    async def _read_seen(self, key: str) -> Record:
        """Return what the endpoint has got with a key."""
        response = await self._http.get(f"{self._world.endpoint.root_url}/seen/{key}")
        return dict(response.json())

    async def _post(self, path: str, body: Record | None, user: str = "ann") -> Record:
        response = await self._http.post(path, json=body, headers=self._headers[user])
        assert response.status_code < 300, f"{path}: {response.status_code} {response.text[:300]}"
        return dict(response.json())

    async def _get(self, path: str, user: str = "ann") -> Any:
        response = await self._http.get(path, headers=self._headers[user])
        assert response.status_code == 200, f"{path}: {response.status_code} {response.text[:300]}"
        return response.json()
