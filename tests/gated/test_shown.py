"""Compare the requests in the records with those that the endpoint has received, word for word."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from agentctl import errors
from agentctl.interface.operations import Operations
from agentctl.interface.requests import (
    CancelRequest,
    ForkRequest,
    RetryRequest,
    RunFilter,
    RunRequest,
)
from agentctl.records.kinds import ComponentKind
from agentctl.store.database import Sql
from tests.durable.agents import DURABLE
from tests.gated.shown import compare, read_calls
from tests.kit.conditions import wait_for_run, wait_until
from tests.kit.model import ModelEndpoint, start_endpoint
from tests.kit.site import Server, Site, answer, call, create_site

IS_LONG = bool(os.environ.get("AGENTCTL_TEST_LONG"))

STEPS = 3_000 if IS_LONG else 30
"""Three rounds of all kinds of steps, and in the long mode three hundred."""

AGENTS = (
    DURABLE
    + """
[[models]]
id = "flaky"
provider = "openai"
model = "flaky"
base_url = "{url}"
retries = 1

[[models]]
id = "broken"
provider = "openai"
model = "http-503"
base_url = "{url}"
retries = 0
fallbacks = ["flaky", "echo"]

[[models]]
id = "drafts"
provider = "openai"
model = "drafts"
base_url = "{url}"

[[models]]
id = "twice"
provider = "openai"
model = "tools:shaky"
base_url = "{url}"

[[agents]]
id = "flaky"
model = "flaky"

[[agents]]
id = "spared"
model = "broken"
instructions = "Answer."

[[agents]]
id = "drafter"
model = "drafts"
instructions = "Draft."

[[agents]]
id = "noter"
model = "plan"
instructions = "Take notes."
history_runs = 3
tools = ["ledger_tools:note", "ledger_tools:shaky"]
summary = {{ every_runs = 3 }}

[[models]]
id = "small"
provider = "openai"
model = "plan"
base_url = "{url}"
context_tokens = 1_200

[[agents]]
id = "packer"
model = "small"
instructions = "Pack."
tools = ["ledger_tools:note"]

[[agents]]
id = "keeper"
model = "echo"
instructions = "Remember."
memory = {{ mode = "tool" }}
"""
)

WORDS = ("Ünï", "plain", "“x”", "a\nb", "\U0001f600")

FINAL = ("COMPLETED", "ERROR", "CANCELLED")

HANGING = ("hang", "half", "trickle")

NUMBER = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


@pytest.fixture(scope="module")
def model_endpoint() -> Iterator[ModelEndpoint]:
    """An endpoint of this file: the shared server of the folder may still call models at the other
    one, and these tests compare all requests that arrive."""
    endpoint = start_endpoint()
    yield endpoint
    endpoint.stop()


@pytest.fixture
def site(tmp_path: Any, model_endpoint: ModelEndpoint) -> Site:
    """A site with agents that retry, fall back, wait, draft, remember and last."""
    folder = tmp_path / "site"
    folder.mkdir()
    model_endpoint.forget()
    extra = AGENTS.replace("{url}", model_endpoint.base_url).replace("{{", "{").replace("}}", "}")
    return create_site(folder, model_endpoint.base_url, extra=extra)


class Conversations:
    """Random runs in a few sessions: tools, waits, failures, cancels, retries and forks."""

    def __init__(
        self, site: Site, server: Server, operations: Operations, endpoint: ModelEndpoint, seed: int
    ) -> None:
        self.site = site
        self.server = server
        self.operations = operations
        self.endpoint = endpoint
        self.random = random.Random(seed)
        self.ended: list[dict[str, Any]] = []
        self.number = 0
        self._next: list[Callable[[], Awaitable[None]]] = []

    async def take_step(self) -> None:
        """Take each kind of step once or twice, in a random order, before the next round."""
        if not self._next:
            self._next = [self.talk, self.talk, self.plan, self.ask, self.draft, self.delegate]
            self._next += [self.cancel, self.repeat, self.repeat, self.pack]
            self.random.shuffle(self._next)
        await self._next.pop()()

    async def start(
        self, component: str, message: str, kind: ComponentKind = "agent", **more: Any
    ) -> dict[str, Any]:
        session = f"{kind}-{self.random.randrange(4)}"
        request = RunRequest(message, session_id=session, **more)
        run = dict((await self.operations.runs.create(kind, component, request)).value)
        if run["status"] in ("COMPLETED", "ERROR", "CANCELLED"):
            self.ended.append(run)
        return run

    def name(self) -> str:
        self.number += 1
        return f"{self.number} {self.random.choice(WORDS)}"

    async def talk(self) -> None:
        agents = ["echo", "history", "flaky", "spared", "keeper", "http-500"]
        await self.start(self.random.choice(agents), self.name())

    async def plan(self) -> None:
        turns = []
        for turn in range(self.random.randrange(1, 4)):
            tools = [self.random.choice(["note", "shaky", "none"]) for _ in range(turn + 1)]
            # Some ids come again: models repeat theirs.
            calls = [
                call(tool, f"{tool}-{self.random.randrange(3)}-{place}", text=self.name())
                for place, tool in enumerate(tools)
            ]
            turns.append(answer(*calls, text=self.random.choice(["", "thinking"])))
        turns.append(answer(text=self.name()))
        await self.start(self.random.choice(["noter", "plain", "lasting"]), json.dumps(turns))

    async def ask(self) -> None:
        """Let a run wait for decisions of two people."""
        calls = [call("refund", "r1", amount=1, to=self.name()), call("note", "n1", text="x")]
        calls.append(call("mail_send", "m1", to=self.name()))
        plan = [answer(*calls[: self.random.randrange(1, 4)]), answer(text="asked")]
        run = await self.start("clerk", json.dumps(plan))
        assert run["status"] == "PAUSED", run
        paused = await read_calls(self.operations, run["run_id"])
        assert [each["state"] for each in paused] == ["complete"]
        for row in await self.site.pending(run["run_id"]):
            verb: Any = self.random.choice(["approve", "reject", "edit"])
            fields = {"note": self.name()} if verb == "reject" else {}
            if verb == "edit" and row.tool_name == "refund":
                fields = {"arguments": json.loads(row.arguments) | {"to": "b"}}
            verb = "approve" if verb == "edit" else verb
            await self.site.decide_rows(self.server, [row], verb, **fields)
        self.ended.append(await wait_for_run(self.operations, run["run_id"]))

    async def pack(self) -> None:
        """Fill the context window of a model, so that results and runs are left out."""
        turns = [
            answer(call("note", f"n{turn}", text=f"{turn} " * self.random.randrange(50, 700)))
            for turn in range(self.random.randrange(1, 6))
        ]
        await self.start("packer", json.dumps([*turns, answer(text=self.name())]))

    async def draft(self) -> None:
        drafts = self.random.choice([['{"n": 1}'], ["", '{"n": 2}'], ["{}", "no"]])
        await self.start("drafter", json.dumps(drafts), output_schema=NUMBER)

    async def delegate(self) -> None:
        kind: Any = self.random.choice(["team", "workflow"])
        teams = ["crew", "desk", "choir", "office"]
        component = "line" if kind == "workflow" else self.random.choice(teams)
        task = [answer(call("note", "n", text=self.name())), answer(text="noted")]
        delegation = call("delegate_task_to_member", "d", member_id="clerk", task=json.dumps(task))
        text = json.dumps([answer(delegation), answer(text="all")])
        await self.start(component, text if component == "office" else f"echo {self.name()}", kind)

    async def cancel(self) -> None:
        agent = self.random.choice(HANGING)
        # The call of the run before may be open for a moment after its cancel.
        await wait_until(lambda: not self.endpoint.open_calls())
        run = await self.start(agent, self.name(), background=True)
        await wait_until(self.endpoint.open_calls)
        await self.operations.runs.cancel(
            "agent", agent, run["run_id"], CancelRequest(run["session_id"])
        )
        self.ended.append(dict((await self.operations.runs.get(run["run_id"])).value))

    async def repeat(self) -> None:
        """Retry or fork a run that has ended."""
        if not self.ended:
            return
        run = self.random.choice(self.ended)
        kind = next(each for each in ("agent", "team", "workflow") if f"{each}_id" in run)
        place: Any = kind, run[f"{kind}_id"], run["run_id"]
        at = self.random.randrange(len(run["messages"]) + 1) if kind == "agent" else 0
        message = self.random.choice([None, self.name()])
        hangs = place[1] in HANGING

        async def send(confirm: str | None) -> Any:
            if hangs or run["status"] == "COMPLETED" or self.random.random() < 0.3:
                agent = "history" if hangs else None
                fork = ForkRequest(at=at, message=message, agent_id=agent, confirm=confirm)
                return await self.operations.runs.fork(*place, fork)
            return await self.operations.runs.retry(*place, RetryRequest(confirm=confirm))

        try:
            try:
                repeated = await send(None)
            except errors.NeedsConfirmation as error:
                repeated = await send(error.plan["confirm"])
        except (errors.Conflict, errors.ValidationFailed):
            return
        if repeated.value["status"] in ("COMPLETED", "ERROR"):
            self.ended.append(dict(repeated.value))


async def wait_until_idle(operations: Operations) -> None:
    """Wait for background work, such as summaries."""

    async def is_idle() -> bool:
        return not (await operations.runs.list(RunFilter(live=True))).value["data"]

    await wait_until(is_idle)


async def test_records_say_what_models_were_sent(site: Site, model_endpoint: ModelEndpoint) -> None:
    seed = random.randrange(10**6) if IS_LONG else 1
    print(f"seed {seed}")
    with site.serve_in_thread() as server:
        async with site.connect(server) as operations:
            talks = Conversations(site, server, operations, model_endpoint, seed)
            for _ in range(STEPS):
                await talks.take_step()
            await wait_until_idle(operations)
            statuses = await compare(operations, model_endpoint)
    assert {"completed", "failed", "cancelled"} <= statuses.keys()


async def test_durable_run_knows_its_requests_after_a_kill(
    site: Site, model_endpoint: ModelEndpoint
) -> None:
    notes = [answer(call("note", f"note-{at}", text=f"step {at}")) for at in range(3)]
    plan = [*notes, answer(call("visit", place="inn")), answer(text="done")]
    hold = site.deployment.folder / "hold"
    hold.touch()
    with site.serve_in_thread() as server:
        async with site.connect(server) as operations:
            await operations.runs.create("agent", "echo", RunRequest("before", session_id="s1"))
            request = RunRequest(json.dumps(plan), session_id="s1", background=True)
            run = dict((await operations.runs.create("agent", "lasting", request)).value)
        await wait_until(lambda: "visit" in site.tools_called(run))
        server.kill()
    hold.unlink()
    with site.serve_in_thread() as server:
        ended = await site.wait_for_end(server, run["run_id"])
        assert (ended["status"], ended["content"]) == ("COMPLETED", "done")
        async with site.connect(server) as operations:
            statuses = await compare(operations, model_endpoint)
    assert statuses == {"completed": 6}


CHANGES = {
    "instructions": ('instructions = "Work."', 'instructions = "Work well."'),
    "tool": ('"ledger_tools:note"]', '"ledger_tools:note", "ledger_tools:refund"]'),
    "model": ('model = "plan"', 'model = "planned"'),
}
"""Texts in the table of a durable agent before and after a change of the configuration."""

FIRST_STATUS = {"continue": "COMPLETED", "ask": "PAUSED", "fail": "ERROR"}
"""The status of a lost run under another version, by the rule of its agent."""

RULES = tuple(FIRST_STATUS)

CHANGED = """
[[models]]
id = "planned"
provider = "openai"
model = "plan"
base_url = "{url}"
settings = {{ temperature = 0.5 }}
"""

CHANGED_AGENT = """
[[agents]]
id = "{id}"
durable = true
model = "plan"
instructions = "Work."
on_change = "{rule}"
tools = ["ledger_tools:visit", "ledger_tools:note"]
"""


@dataclass(frozen=True)
class LostRun:
    """A run of an agent of its own, which is killed during `visit` and then changed."""

    change: str
    rule: str
    plan: str

    started: dict[str, Any]
    """The run as it was started, with the version of that time."""

    @property
    def name(self) -> str:
        return f"{self.change}-{self.rule}"

    @property
    def goes_on(self) -> bool:
        """Return True if the agent states that it continues, or a person allows it."""
        return self.rule == "continue" or self.name in ("instructions-ask", "model-ask")


def build_agents() -> dict[str, str]:
    """Return a durable agent for each change and rule, by its name."""
    names = {f"{change}-{rule}": rule for change in CHANGES for rule in RULES}
    return {name: CHANGED_AGENT.format(id=name, rule=rule) for name, rule in names.items()}


async def kill_during_visits(site: Site) -> list[LostRun]:
    """Start a run of each changed agent, and kill their server when all make the same call."""
    hold = site.deployment.folder / "hold"
    hold.touch()
    lost = []
    with site.serve_in_thread() as server:
        async with site.connect(server) as operations:
            for name in build_agents():
                note = answer(call("note", text=name))
                plan = json.dumps([note, answer(call("visit", place="inn")), answer(text="done")])
                request = RunRequest(plan, background=True)
                started = dict((await operations.runs.create("agent", name, request)).value)
                change, _, rule = name.partition("-")
                lost.append(LostRun(change, rule, plan, started))
        for run in lost:
            await wait_until(lambda run=run: "visit" in site.tools_called(run.started))
        server.kill()
    hold.unlink()
    return lost


def change_agents(site: Site) -> None:
    """Change each agent in its own way."""
    config = site.deployment.path.read_text()
    for name, table in build_agents().items():
        before, after = CHANGES[name.partition("-")[0]]
        assert before in table
        config = config.replace(table, table.replace(before, after))
    site.deployment.path.write_text(config)


async def test_killed_durable_run_goes_on_under_another_version_only_as_it_states(
    tmp_path: Any, model_endpoint: ModelEndpoint
) -> None:
    model_endpoint.forget()
    extra = CHANGED.format(url=model_endpoint.base_url) + "".join(build_agents().values())
    site = create_site(tmp_path, model_endpoint.base_url, extra=extra)
    lost = await kill_during_visits(site)
    change_agents(site)

    def list_work(run: LostRun) -> tuple[int, list[str]]:
        """Return how many requests the model got, and the calls that were made."""
        sent = sum(asks(body, run.plan) for body in model_endpoint.requests())
        return sent, site.tools_called(run.started)

    with site.serve_in_thread() as server:
        for run in lost:
            run_id = run.started["run_id"]
            record = await site.wait_for_end(server, run_id, "PAUSED", *FINAL)
            assert record["status"] == FIRST_STATUS[run.rule], (run.name, record["error"])

            if run.rule == "ask":
                # Nothing was sent and no tool was called since the kill.
                assert list_work(run) == (2, ["note", "visit"])
                (question,) = await site.pending(run_id)
                assert json.loads(question.arguments)["before"] == run.started["version"]
                verb: Any = "approve" if run.goes_on else "reject"
                await site.decide_rows(server, [question], verb)
                record = await site.wait_for_end(server, run_id, *FINAL)

            changes = [(each["before"], each["after"]) for each in record["version_changes"]]
            if run.goes_on:
                assert (record["status"], record["content"]) == ("COMPLETED", "done")
                assert record["version"] != run.started["version"]
                assert changes == [(run.started["version"], record["version"])]
                # The call under way is made again, as its tool is idempotent.
                assert list_work(run) == (3, ["note", "visit", "visit"])
            else:
                assert record["error"]["code"] == "VERSION_CHANGED", run.name
                assert (record["version"], changes) == (run.started["version"], [])
                assert list_work(run) == (2, ["note", "visit"])

        async with site.connect(server) as operations:
            statuses = await compare(operations, model_endpoint)
    # Each run sent two requests before the kill, and five go on with a third one.
    assert statuses == {"completed": 2 * len(lost) + 5}


def asks(body: dict[str, Any], text: str) -> bool:
    return any(each["role"] == "user" and each["content"] == text for each in body["messages"])


async def test_changed_and_deleted_references_are_noticed(
    site: Site, model_endpoint: ModelEndpoint
) -> None:
    async def read_call(operations: Operations, run: dict[str, Any]) -> dict[str, Any]:
        return dict((await operations.runs.get_model_call(run["run_id"], "model-1")).value)

    with site.serve_in_thread() as server:
        async with site.connect(server) as operations:
            runs = []
            for text in ("the first message", "the second", "the third"):
                request = RunRequest(text, session_id="s1")
                runs.append(dict((await operations.runs.create("agent", "echo", request)).value))
            first, _, last = runs
            whole = await read_call(operations, last)
            sources = [message["source"] for message in whole["messages"]]
            assert sources == ["run", *["history"] * 4, "run"]
            await compare(operations, model_endpoint)

            async with site.open_database() as database:
                changed = Sql(
                    "UPDATE runs SET requests = replace(requests, '0,0,4', '0,1,4')"
                    " WHERE run_id = :run_id RETURNING requests"
                )
                assert await database.write(changed.column(run_id=last["run_id"]))
            with pytest.raises(AssertionError, match="incomplete"):
                await compare(operations, model_endpoint)

            async with site.open_database() as database:
                gone = Sql("UPDATE runs SET messages = NULL WHERE run_id = :run_id RETURNING 1")
                assert await database.write(gone.column(run_id=first["run_id"]))
            left = await read_call(operations, last)
            assert left["state"] == "incomplete"
            missing = {message.get("missing") for message in left["messages"][1:-1]}
            assert missing == {"deleted"}
