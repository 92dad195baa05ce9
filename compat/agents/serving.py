"""A server with the public agents of a library, and the traces of their runs."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from compat.agents.table import AGENTS, PublicAgent
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import ADMIN, create_deployment
from tests.kit.environments import find_adk
from tests.kit.process import serve_config
from tests.kit.scripted_models import ModelCall, ScriptedModels
from tests.pauses.waiting import WaitingDeployment, WaitingServer
from tests.server.files_of_runs import PDF, build_png

FOLDER = Path(__file__).parent

FILES = {"picture": ("grey.png", build_png()), "document": ("empty.pdf", PDF)}
"""The names and bytes of the files of messages."""


@dataclass
class Turn:
    """One run with those of its members, its events, its model calls and entries of the ledger."""

    record: dict[str, Any]
    runs: list[dict[str, Any]]
    calls: list[ModelCall]
    entries: list[dict[str, Any]]
    events: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Library:
    """Public agents in a folder, of one library or a few; `serve` runs a server for them."""

    agents: dict[str, PublicAgent]
    folder: Path
    models: ScriptedModels
    names: Sequence[str]
    deployment: WaitingDeployment

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.jsonl"

    @contextlib.contextmanager
    def serve(self, packages: str) -> Iterator[AgentServer]:
        """Run a server process; `packages` is a folder of packages that it may import."""
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), packages]))
        python, own = find_adk() if "adk" in self.names else (sys.executable, {"PYTHONPATH": path})
        given = {"MODEL_URL": self.models.url, "OPENAI_API_KEY": "none", "LEDGER": str(self.ledger)}
        config = self.deployment.inner.path
        variables = {**given, **own}
        with serve_config(config, variables=variables, python=python) as process:
            yield AgentServer(self.deployment, process, self)


@dataclass(frozen=True)
class AgentServer(WaitingServer):
    """A running server of public agents."""

    library: Library

    def turn(
        self, agent: str, message: str, session: str, mode: str = "waiting", **options: Any
    ) -> Turn:
        """Run an agent to its end, with a script from its first answers.

        Args:
            mode: `waiting`, `streamed` or `background`.
            options: those of `ScriptedModels.begin`.
        """
        public = self.library.agents[agent]
        models = self.library.models
        before = {run["run_id"] for run in self.list_runs(session)}
        start = len(self.read_ledger())
        models.begin(public.script, **options)
        events: list[dict[str, Any]] = []
        body = self._build_body(public, message, session)
        if mode == "streamed":
            self.stream(agent, body, events)
            run = self.get_run(events[0]["run_id"])
        else:
            sent = {**body, "stream": False, "background": mode == "background"}
            run = self._request("POST", f"/agents/{agent}/runs", sent)
            run = self.wait_for(run["run_id"], "PAUSED", "COMPLETED", "ERROR", "CANCELLED")
        while run["status"] == "PAUSED":
            self.decide_all(public, run)
            run = self.wait_for(run["run_id"], "PAUSED", "COMPLETED", "ERROR", "CANCELLED")
        runs = [each for each in self.list_runs(session) if each["run_id"] not in before]
        return Turn(run, runs, list(models.calls), self.read_ledger()[start:], events)

    def cancelled_turn(
        self, agent: str, session: str, began: Callable[[], Any], **options: Any
    ) -> tuple[Turn, dict[str, Any]]:
        """Start a streamed run, cancel it when `began` is met, and return it with the response."""
        public = self.library.agents[agent]
        models = self.library.models
        before = {run["run_id"] for run in self.list_runs(session)}
        start = len(self.read_ledger())
        models.begin(public.script, **options)
        events: list[dict[str, Any]] = []
        body = self._build_body(public, "first question", session)
        reading = threading.Thread(target=self.stream, args=(agent, body, events))
        reading.start()
        wait_until(lambda: events and (began() or not reading.is_alive()))
        run_id = events[0]["run_id"]
        if not began() and events[-1]["event"] == "RunPaused":
            self.decide_all(public, self.get_run(run_id))
            wait_until(lambda: began() or self.get_run(run_id)["finished_at"])
        assert began(), f"the run has ended: {events[-1]}"
        path = f"/agents/{agent}/runs/{run_id}/cancel?session_id={session}&wait=20"
        answer = self._request("POST", path)
        reading.join(PATIENCE)
        assert not reading.is_alive()
        runs = [each for each in self.list_runs(session) if each["run_id"] not in before]
        seen = Turn(
            self.get_run(run_id), runs, list(models.calls), self.read_ledger()[start:], events
        )
        return seen, answer

    def _build_body(self, public: PublicAgent, message: str, session: str) -> dict[str, Any]:
        body = {"message": message, "session_id": session, **public.body}
        if public.file:
            name, data = FILES[public.file]
            headers = self.deployment.inner.bearer("ann", ADMIN)
            url = f"{self.host.url}/files?name={name}"
            answer = httpx2.post(url, content=data, headers=headers, timeout=PATIENCE)
            assert answer.status_code == 201, answer.text
            body["files"] = [answer.json()["file_id"]]
        return {key: value for key, value in body.items() if value is not None}

    def decide_all(self, public: PublicAgent, run: dict[str, Any]) -> None:
        """Decide about what a run waits for, and wait until it goes on."""
        assert public.decision is not None, run
        verb = public.decision["decision"]
        rest = {name: value for name, value in public.decision.items() if name != "decision"}
        self.decide(run, verb, **rest)
        wait_until(
            lambda: not any(each["status"] == "pending" for each in self.list_approvals(run))
        )
        wait_until(lambda: self.get_run(run["run_id"])["status"] != "PAUSED")

    def stream(self, agent: str, body: dict[str, Any], events: list[dict[str, Any]]) -> None:
        """Run an agent and collect the data of its events."""
        headers = self.deployment.inner.bearer("ann", ADMIN)
        url = f"{self.host.url}/agents/{agent}/runs"
        sent = {**body, "stream": True}
        with httpx2.stream("POST", url, json=sent, headers=headers, timeout=PATIENCE) as answer:
            assert answer.status_code < 300, answer.read()
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    events.append(json.loads(line[6:]))

    def list_runs(self, session: str) -> list[dict[str, Any]]:
        """Return the runs of a session with those of members, oldest first; none if it is new."""
        headers = self.deployment.inner.bearer("ann", ADMIN)
        url = f"{self.host.url}/sessions/{session}/runs"
        answer = httpx2.get(url, headers=headers, timeout=PATIENCE)
        if answer.status_code == 404:
            return []
        runs: list[dict[str, Any]] = answer.json()
        return runs

    def read_ledger(self) -> list[dict[str, Any]]:
        """Return the entries of the ledger."""
        path = self.library.ledger
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @contextlib.contextmanager
    def held_tool(self, name: str) -> Iterator[None]:
        """Let calls of a tool wait until the end of the block."""
        path = self.library.ledger.with_suffix(".hold")
        path.write_text(name)
        try:
            yield
        finally:
            path.unlink()


def create_library(
    chosen: Mapping[str, Sequence[str]], folder: Path, models: ScriptedModels
) -> Library:
    """Write the modules of libraries and a configuration of the chosen agents of each."""
    tables = []
    agents = dict[str, PublicAgent]()
    for name, listed in chosen.items():
        for module in (f"{name}_agents", "ledger"):
            (folder / f"{module}.py").write_text((FOLDER / f"{module}.py").read_text())
        agents |= {agent: AGENTS[name][agent] for agent in listed}
        tables += [
            f'[[agents]]\nid = "{agent}"\nobject = "{name}_agents:{agent}"\n{agents[agent].config}'
            for agent in listed
        ]
    inner = create_deployment(folder, models.url, extra="\n\n".join(tables))
    return Library(agents, folder, models, [*chosen], WaitingDeployment(inner, models.url))


def wait_until(condition: Callable[[], Any]) -> None:
    """Wait for a condition; fail after `PATIENCE`."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.005)


def find_differences(public: PublicAgent, turn: Turn) -> list[str]:
    """Compare the record of a completed run with what its models and tools have seen."""
    record = turn.record
    found = []
    visible = [call for call in turn.calls if call.role not in public.inner]

    def compare(name: str, recorded: Any, seen: Any) -> None:
        if recorded != seen:
            found.append(f"{name}: the record has {recorded!r}, seen was {seen!r}")

    compare("status", (record["status"], record["error"]), ("COMPLETED", None))
    compare("content", _read_result(record["content"]), _read_result(public.content))
    if public.output is not ...:
        compare("output", record["output"], public.output)
    for kind in ("input_tokens", "output_tokens"):
        counted = [run["metrics"][kind] for run in turn.runs]
        seen = sum(getattr(call, kind) for call in turn.calls)
        if "tokens" in public.limits:
            # The documented limit exists.
            compare(f"part of {kind}", sum(each or 0 for each in counted) < seen, True)
        else:
            compare(kind, sum(each or 0 for each in counted), seen)
    spans = [span for run in turn.runs for span in run["spans"] if span["kind"] == "model"]
    if public.traced and not len(visible) <= len(spans) <= len(turn.calls):
        compare("model calls", len(spans), len(turn.calls))
    tools = [tool for run in turn.runs for tool in run["tools"] or ()]
    made = [call for each in visible for call in each.calls if call[0] not in public.hidden]
    # Calls of inner agents may be in the record, too.
    inner = [call for each in turn.calls if each.role in public.inner for call in each.calls]
    called = [
        (tool["tool_name"], tool["tool_args"])
        for tool in tools
        if tool["tool_name"] not in public.hidden
    ]
    outer = [call for call in called if call in made or call not in inner]
    # A call that waits for an approval comes after those that do not.
    ordered = len(turn.runs) == 1 and public.decision is None
    key = list if ordered else (lambda calls: sorted(calls, key=repr))
    compare("tool calls", key(outer), key(made))
    ended = [each for each in turn.entries if each["event"] == "end"]
    begun = {each["call"]: each for each in turn.entries if each["event"] == "begin"}
    results = [
        (each["tool"], begun[each["call"]]["arguments"], _read_result(each["result"]))
        for each in ended
        if (each["tool"], begun[each["call"]]["arguments"]) in called
    ]
    known = [(name, arguments) for name, arguments, _ in results]
    # The code of an agent may replace the result of a call that failed.
    recorded = [
        (tool["tool_name"], tool["tool_args"], _read_result(tool["result"]))
        for tool in tools
        if (tool["tool_name"], tool["tool_args"]) in known and not tool["tool_call_error"]
    ]
    compare("results", sorted(recorded, key=repr), sorted(results, key=repr))
    texts = [
        str(_read_result(message["content"]))
        for run in turn.runs
        for message in run["messages"]
        if message["role"] == "assistant" and message["content"]
    ]
    sent = [str(_read_result(call.text)) for call in visible if call.text]
    missing = Counter(sent) - Counter(texts)
    compare("texts that are missing", sorted(missing), [])
    if public.file:
        data = base64.b64encode(FILES[public.file][1]).decode()
        compare("calls with the file", any(data in json.dumps(c.body) for c in turn.calls), True)
    if turn.events and public.decision is None:
        own = [each for each in turn.events if each["run_id"] == record["run_id"]]
        pieces = [each["content"] for each in own if each["event"] == "RunContent"]
        joined = "".join(pieces)
        if "stream" in public.limits:
            parts = public.content.splitlines()
            joined = public.content if all(part in joined for part in parts) else joined
        compare("joined stream", joined, record["content"] or "")
    return found


def find_untold(public: PublicAgent, first: Turn, message: str, second: Turn) -> list[str] | None:
    """Return what happened in a turn and is not in the first model call of the next one.

    None if no model call of the next turn has its message: the models get no conversation.
    """
    bodies = (json.dumps(call.body, ensure_ascii=False) for call in second.calls)
    sent = next((body for body in bodies if json.dumps(message)[1:-1] in body), None)
    if sent is None:
        return None
    inner = [call for each in first.calls if each.role in public.inner for call in each.calls]
    results = [
        tool["result"]
        for tool in first.record["tools"] or ()
        if (tool["tool_name"], tool["tool_args"]) not in inner
    ]
    texts = [
        each["content"]
        for each in first.record["messages"]
        if each["role"] in ("user", "assistant") and each["content"]
    ]
    # Structured output is sent in the form in which the model has written it.
    told = [
        text
        for text in (*texts, *results)
        if text and not isinstance(_read_result(text), dict | list)
    ]
    return [text for text in told if json.dumps(text, ensure_ascii=False)[1:-1] not in sent]


def _read_result(result: Any) -> Any:
    """Return a result as a value: the text of JSON and the value are the same."""
    if isinstance(result, str):
        with contextlib.suppress(ValueError):
            return json.loads(result)
    return result
