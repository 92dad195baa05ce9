"""Runs that wait while their component changes: they go on, ask a person, or end, as configured."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentctl.auth.principal import Principal
from agentctl.errors import FourEyes, NotFound, ValidationFailed
from agentctl.interface.requests import ForkRequest, RetryRequest, RunRequest, RunView
from agentctl.interface.requests.approvals import ApprovalFilter, ContinueRequest, Ruling
from agentctl.service.service import Service
from tests.kit.conditions import wait_for_run, wait_until
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.service import admin, open_service, user, wait_for_running

CONFIG = """
[[agents]]
id = "configured"
model = "tool-add"
instructions = "Old instructions."
tools = ["world_tools:add"]
approve = { add = "user" }
on_change = "RULE"

[[agents]]
id = "function"
object = "changing_agents:function"
on_change = "RULE"

[[agents]]
id = "library"
object = "changing_agents:library"
on_change = "RULE"

[[agents]]
id = "graph"
object = "changing_agents:graph"
on_change = "RULE"

[[agents]]
id = "queued"
model = "history"
instructions = "Old instructions."
on_busy = "enqueue"
on_change = "RULE"

[[agents]]
id = "lasting"
model = "hang"
instructions = "Old instructions."
durable = true
on_change = "RULE"

[[teams]]
id = "payers"
model = "delegate"
members = ["configured"]
on_change = "RULE"
"""

KINDS = ("configured", "function", "library", "graph")

MESSAGES = {"configured": '{"a": 1, "b": 2}', "library": '{"amount": 5}', "queued": "hi"}


class World:
    """A configuration whose servers start one after the other."""

    def __init__(self, deployment: Deployment, endpoint: ModelEndpoint) -> None:
        self.deployment = deployment
        self.endpoint = endpoint
        self.ledger = deployment.folder / "ledger"

    def change(self, *pairs: tuple[str, str]) -> None:
        """Change the instructions and the code, and other texts of the configuration."""
        path = self.deployment.path
        text = path.read_text()
        for old, new in (("Old instructions.", "New instructions."), *pairs):
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        code = self.deployment.folder / "changing_agents.py"
        # Another size: bytecode is cached by the size of a file and the second of its change.
        code.write_text(code.read_text().replace("EDITION = 1", "EDITION = 2  # new"))
        sys.modules.pop("changing_agents", None)

    @property
    def payments(self) -> list[str]:
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []


@pytest.fixture
def world(
    tmp_path: Path, model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    monkeypatch.setenv("CHANGING_URL", model_endpoint.base_url)
    shutil.copy(Path(__file__).with_name("changing_agents.py"), tmp_path)
    path = list(sys.path)
    yield World(create_deployment(tmp_path, model_endpoint.base_url), model_endpoint)
    sys.path[:] = path
    sys.modules.pop("changing_agents", None)


def configure(world: World, rule: str) -> None:
    path = world.deployment.path
    path.write_text(path.read_text() + CONFIG.replace("RULE", rule))


async def start(service: Service, name: str, **more: Any) -> dict[str, Any]:
    request = RunRequest(MESSAGES.get(name, "hello"), **more)
    document: Any = await user(service).runs.create("agent", name, request)
    return dict(document.value)


async def decide(service: Service, run: dict[str, Any], verb: str = "approve") -> dict[str, Any]:
    """Decide about what a run waits for, and return its record when it has ended or waits again."""
    found: Any = (await user(service).runs.get(run["run_id"])).value
    decisions = []
    for each in found["approvals"]:
        if each["status"] != "pending":
            continue
        asked = {"approval_id": each["approval_id"]}
        if each["kind"] == "input":
            decisions.append(Ruling("answer", answer="left", **asked))
        else:
            decisions.append(Ruling(verb, each["arguments_hash"], **asked))  # type: ignore[arg-type]
    assert decisions
    request = ContinueRequest(tuple(decisions))
    name = found["agent_id"]
    document: Any = await user(service).runs.continue_run("agent", name, run["run_id"], request)
    return dict(document.value)


async def find_question(service: Service, run_id: str) -> dict[str, Any]:
    wanted = ApprovalFilter(run_id=run_id, status="pending")
    document: Any = await admin(service).approvals.list(wanted)
    (question,) = document.value["data"]
    return dict(question)


async def pause_all(world: World, rule: str) -> dict[str, dict[str, Any]]:
    """Start a run of each kind with the first configuration, which waits then."""
    configure(world, rule)
    async with open_service(world.deployment) as service:
        await service.prepare()
        runs = {name: await start(service, name) for name in KINDS}
    assert {run["status"] for run in runs.values()} == {"PAUSED"}
    assert all(run["version"] and run["version_changes"] == [] for run in runs.values())
    return runs


def check_changed(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert after["status"] == "COMPLETED"
    assert after["version"] != before["version"]
    (change,) = after["version_changes"]
    assert (change["before"], change["after"]) == (before["version"], after["version"])


async def read_notices(service: Service, run_id: str) -> list[str]:
    document: Any = await user(service).runs.get(run_id, form=RunView("items"))
    return [item["text"] for item in document.value["items"] if item["type"] == "notice"]


async def test_run_goes_on_with_the_new_version_and_shows_it(world: World) -> None:
    runs = await pause_all(world, "continue")
    world.change()
    world.endpoint.forget()
    async with open_service(world.deployment) as service:
        await service.prepare()
        for name in ("configured", "graph"):
            ended = await decide(service, runs[name])
            check_changed(runs[name], ended)
            notice = f"changed from version {runs[name]['version']} to {ended['version']}"
            assert [notice in text for text in await read_notices(service, ended["run_id"])] == [
                True
            ]
        (sent,) = world.endpoint.requests("tool:add")
        assert sent["messages"][0] == {"role": "system", "content": "New instructions."}
        graph: Any = (await user(service).runs.get(runs["graph"]["run_id"])).value
        assert graph["content"] == "left 2"


async def test_approved_call_of_changed_code_is_asked_about_again(world: World) -> None:
    runs = await pause_all(world, "continue")
    world.change()
    async with open_service(world.deployment) as service:
        await service.prepare()
        for name in ("function", "library"):
            waiting = await decide(service, runs[name])
            assert waiting["status"] == "PAUSED"
            question = await find_question(service, waiting["run_id"])
            assert question["tool_name"] == "agentctl.change_version"
            approved = next(each for each in waiting["approvals"] if each["status"] == "approved")
            assert question["arguments"]["calls"] == [approved["approval_id"]]
            assert "pay" in question["question"]
        assert world.payments == []
        for number, name in enumerate(("function", "library"), 1):
            check_changed(runs[name], await decide(service, runs[name]))
            assert world.payments == ["2 5"] * number


async def test_run_asks_before_it_goes_on_with_another_version(world: World) -> None:
    runs = await pause_all(world, "ask")
    world.change()
    async with open_service(world.deployment) as service:
        await service.prepare()
        for name in KINDS:
            waiting = await decide(service, runs[name])
            assert (waiting["status"], waiting["version"]) == ("PAUSED", runs[name]["version"])
            question = await find_question(service, waiting["run_id"])
            paths = [change["path"] for change in question["arguments"]["changes"]]
            assert paths == (
                ["instructions"] if name == "configured" else ["code.changing_agents.py"]
            )
            edited = Ruling("approve", question["arguments_hash"], arguments={})
            with pytest.raises(ValidationFailed):
                await admin(service).approvals.decide(
                    "agent", name, question["approval_id"], edited
                )
            check_changed(runs[name], await decide(service, runs[name]))
        assert world.payments == ["2 5", "2 5"]


async def test_refused_change_ends_the_run(world: World) -> None:
    runs = await pause_all(world, "ask")
    world.change()
    async with open_service(world.deployment) as service:
        await service.prepare()
        for name in KINDS:
            await decide(service, runs[name])
            ended = await decide(service, runs[name], "reject")
            assert (ended["status"], ended["error"]["code"]) == ("ERROR", "VERSION_CHANGED")
            assert "was rejected by me" in ended["error"]["detail"]
            assert ended["version"] == runs[name]["version"]
        assert world.payments == []


async def test_run_fails_under_another_version(world: World) -> None:
    runs = await pause_all(world, "fail")
    world.change()
    async with open_service(world.deployment) as service:
        await service.prepare()
        for name in KINDS:
            ended = await decide(service, runs[name])
            assert (ended["status"], ended["error"]["code"]) == ("ERROR", "VERSION_CHANGED")
            assert (ended["version"], ended["version_changes"]) == (runs[name]["version"], [])
        assert world.payments == []


async def test_run_goes_on_without_a_word_under_its_version(world: World) -> None:
    runs = await pause_all(world, "fail")
    async with open_service(world.deployment) as service:
        await service.prepare()
        for name in KINDS:
            ended = await decide(service, runs[name])
            assert (ended["status"], ended["version_changes"]) == ("COMPLETED", [])
            assert await read_notices(service, ended["run_id"]) == []


async def test_member_that_waits_goes_on_with_its_new_version(world: World) -> None:
    configure(world, "continue")
    async with open_service(world.deployment) as service:
        await service.prepare()
        request = RunRequest('{"a": 1, "b": 2}')
        run: Any = (await user(service).runs.create("team", "payers", request)).value
        assert run["status"] == "PAUSED"
        member: Any = (await user(service).runs.get(run["member_runs"][0])).value
    world.change()
    world.endpoint.forget()
    async with open_service(world.deployment) as service:
        await service.prepare()
        (asked,) = run["approvals"]
        ruling = Ruling("approve", asked["arguments_hash"], approval_id=asked["approval_id"])
        request_to_continue = ContinueRequest((ruling,))
        ended: Any = (
            await user(service).runs.continue_run(
                "team", "payers", run["run_id"], request_to_continue
            )
        ).value
        check_changed(run, ended)
        check_changed(member, (await user(service).runs.get(member["run_id"])).value)
        (sent,) = world.endpoint.requests("tool:add")
        assert sent["messages"][0]["content"] == "New instructions."


async def test_runs_that_wait_stay_in_their_database(world: World) -> None:
    configure(world, "continue")
    async with open_service(world.deployment) as service:
        await service.prepare()
        service.hosting.engine.claims.is_serving = False
        paused = await start(service, "configured", session_id="busy")
        queued = await start(service, "queued", session_id="busy", background=True)
        assert (paused["status"], queued["status"]) == ("PAUSED", "PENDING")
    moved = 'on_change = "continue"\ndatabase = "second"'
    world.change(('on_change = "continue"', moved))
    async with open_service(world.deployment) as service:
        await service.prepare()
        check_changed(paused, await decide(service, paused))

        async def is_completed() -> Any:
            found: Any = (
                await user(service).runs.get_of_component("agent", "queued", run_id)
            ).value
            return found if found["status"] == "COMPLETED" else None

        run_id = queued["run_id"]
        assert await wait_until(is_completed)
        with pytest.raises(NotFound):
            await user(service).runs.get(run_id, db_id="second")
        assert (await start(service, "configured"))["status"] == "PAUSED"
        pending: Any = (await admin(service).approvals.list(ApprovalFilter(db_id="second"))).value
        assert pending["meta"]["total_count"] == 1


@pytest.mark.parametrize(
    "steps",
    [
        '[{ name = "one", agent = "echo" }, { name = "two", agent = "other" }]',
        '[{ name = "two", agent = "configured" }, { name = "one", agent = "echo" }]',
        '[{ name = "one", agent = "echo" }]',
    ],
)
async def test_approved_call_of_a_step_is_not_made_by_another_one(world: World, steps: str) -> None:
    path = world.deployment.path
    made = path.parent / "made"
    (path.parent / "other_tools.py").write_text(
        f'def add(a: int, b: int) -> int:\n    """Add."""\n    open({str(made)!r}, "w").close()\n'
    )
    configure(world, "continue")
    first = '[{ name = "one", agent = "echo" }, { name = "two", agent = "configured" }]'
    other = '[[agents]]\nid = "other"\nmodel = "tool-add"\ntools = ["other_tools:add"]\n'
    flow = f'{other}[[workflows]]\nid = "flow"\nsteps = {first}\n'
    path.write_text(f"{path.read_text()}\n{flow}")
    async with open_service(world.deployment) as service:
        await service.prepare()
        request = RunRequest('{"a": 1, "b": 2}')
        run: Any = (await user(service).runs.create("workflow", "flow", request)).value
        assert run["status"] == "PAUSED"
    path.write_text(path.read_text().replace(first, steps))
    async with open_service(world.deployment) as service:
        await service.prepare()
        (asked,) = run["approvals"]
        ruling = Ruling("approve", asked["arguments_hash"], approval_id=asked["approval_id"])
        ended: Any = (
            await user(service).runs.continue_run(
                "workflow", "flow", run["run_id"], ContinueRequest((ruling,))
            )
        ).value
        assert (ended["status"], ended["error"]["code"]) == ("ERROR", "VERSION_CHANGED")
        waited: Any = (await user(service).runs.get(run["member_runs"][-1])).value
        assert (waited["agent_id"], waited["status"]) == ("configured", "CANCELLED")
        assert not made.exists()


async def test_repeated_runs_have_the_database_and_the_history_of_their_origin(
    world: World,
) -> None:
    others = '[[agents]]\nid = "again"\nmodel = "history"\ninstructions = "Old instructions."\n'
    world.deployment.path.write_text(world.deployment.path.read_text() + others)
    async with open_service(world.deployment) as service:
        await start(service, "again", session_id="busy", session_state={"seen": 1})
        origin = await start(service, "again", session_id="busy")
    world.change(('id = "again"', 'id = "again"\ndatabase = "second"'))
    async with open_service(world.deployment) as service:
        caller = user(service)
        run_id = origin["run_id"]
        details = await caller.runs.read_details("agent", "again", origin)
        assert details.session_state == {"seen": 1}
        retried: Any = (await caller.runs.retry("agent", "again", run_id, RetryRequest())).value
        again = ForkRequest(at=0, message="third", session_id="busy")
        forked: Any = (await caller.runs.fork("agent", "again", run_id, again)).value
        for run in (retried, forked):
            assert (await caller.runs.get(run["run_id"], db_id="main")).value[
                "session_id"
            ] == "busy"
            assert "assistant" in run["content"]
        apart = ForkRequest(at=1, message="third")
        forked = (await caller.runs.fork("agent", "again", run_id, apart)).value
        assert (await caller.runs.get(forked["run_id"], db_id="second")).value["session_id"]
        assert "assistant" in forked["content"]


async def test_members_and_steps_are_in_the_database_of_their_root(world: World) -> None:
    path = world.deployment.path
    others = '[[teams]]\nid = "mixed"\nmodel = "delegate"\nmembers = ["apart"]\n'
    others += '[[workflows]]\nid = "steps"\nsteps = [{ name = "one", team = "mixed" }]\n'
    path.write_text(path.read_text() + others)
    async with open_service(world.deployment) as service:
        for kind, name in (("team", "mixed"), ("workflow", "steps")):
            run: Any = (await user(service).runs.create(kind, name, RunRequest("hello"))).value  # type: ignore[arg-type]
            assert (run["status"], run["content"]) == ("COMPLETED", "hello")
            (member,) = run["member_runs"]
            assert (await user(service).runs.get(member, db_id="main")).value["session_id"]


@pytest.mark.parametrize("rule", ["continue", "ask", "fail"])
async def test_durable_run_of_a_stopped_server_keeps_its_version_or_says_so(
    world: World, rule: str
) -> None:
    configure(world, rule)
    async with open_service(world.deployment) as service:
        await service.prepare()
        run: Any = (
            await user(service).runs.create("agent", "lasting", RunRequest("hi", background=True))
        ).value
        await wait_for_running(user(service), component_id="lasting")
        await asyncio.to_thread(world.endpoint.wait_for_open, 1)
    world.change(('model = "hang"\ninstructions = "New', 'model = "echo"\ninstructions = "New'))
    async with open_service(world.deployment) as service:
        await service.prepare()

        async def is_settled() -> Any:
            found: Any = (await user(service).runs.get(run["run_id"])).value
            return found if found["status"] not in ("PENDING", "RUNNING") else None

        ended = await wait_until(is_settled)
        if rule == "ask":
            assert ended["status"] == "PAUSED"
            ended = await decide(service, ended)
        if rule == "fail":
            assert ended["error"]["code"] == "VERSION_CHANGED"
        else:
            check_changed(run, ended)


CHARGING = """
from pathlib import Path

import agentctl


def charge():
    with Path(__file__).with_name("ledger").open("a") as ledger:
        ledger.write("charged\\n")


async def function(message: str, context: agentctl.RunContext):
    await context.step("charge", charge)
    return await context.ask("Go on?")
"""


async def test_function_that_is_not_asynchronous_any_more_is_not_called(world: World) -> None:
    path = world.deployment.path
    code = world.deployment.folder / "charging.py"
    code.write_text(CHARGING)
    path.write_text(f'{path.read_text()}[[agents]]\nid = "payer"\nobject = "charging:function"\n')
    async with open_service(world.deployment) as service:
        await service.prepare()
        run = await start(service, "payer")
        assert (run["status"], world.payments) == ("PAUSED", ["charged"])
    plain = "def function(message: str):\n    charge()\n"
    code.write_text(CHARGING.partition("async")[0] + plain)
    del sys.modules["charging"]
    async with open_service(world.deployment) as service:
        await service.prepare()
        ended = await decide(service, run)
        assert (ended["status"], ended["error"]["code"]) == ("ERROR", "REPLAY_MISMATCH")
    assert world.payments == ["charged"]
    del sys.modules["charging"]


MOVING = '''
import asyncio
from pathlib import Path

import agentctl


@agentctl.tool(idempotent=True)
async def look() -> str:
    """Look around, for long."""
    with Path(__file__).with_name("ledger").open("a") as ledger:
        ledger.write("looked\\n")
    return await asyncio.sleep(600)


async def function(message: str, context: agentctl.RunContext):
    return await context.step("look", look, idempotent=True)


async def generator(message: str, context: agentctl.RunContext):
    yield await context.step("look", look, idempotent=True)
'''

MOVING_KINDS = {
    "configured": 'model = "look"\ntools = ["moving_agents:look"]',
    "function": 'object = "moving_agents:function"',
    "generator": 'object = "moving_agents:generator"',
}


@pytest.mark.parametrize(
    ("before", "after"),
    [("configured", "function"), ("function", "configured"), ("function", "generator")],
)
async def test_durable_run_ends_if_its_agent_has_another_kind(
    world: World, before: str, after: str
) -> None:
    path = world.deployment.path
    (path.parent / "moving_agents.py").write_text(MOVING)
    model = f'id = "look"\nprovider = "openai"\nbase_url = "{world.endpoint.base_url}"'
    agent = f'[[agents]]\nid = "mover"\ndurable = true\n{MOVING_KINDS[before]}\n'
    path.write_text(f'{path.read_text()}\n[[models]]\n{model}\nmodel = "tool:look"\n{agent}')
    async with open_service(world.deployment) as service:
        await service.prepare()
        request = RunRequest("{}", background=True)
        run: Any = (await user(service).runs.create("agent", "mover", request)).value
        await wait_until(lambda: world.payments == ["looked"])
    path.write_text(path.read_text().replace(MOVING_KINDS[before], MOVING_KINDS[after]))
    async with open_service(world.deployment) as service:
        await service.prepare()

        async def is_settled() -> Any:
            found: Any = (await user(service).runs.get(run["run_id"])).value
            return found if found["status"] not in ("PENDING", "RUNNING") else None

        ended = await wait_until(is_settled)
        assert (ended["status"], ended["error"]["code"]) == ("ERROR", "VERSION_CHANGED")
    assert world.payments == ["looked"]
    del sys.modules["moving_agents"]


async def test_server_with_the_version_of_a_run_has_precedence(world: World) -> None:
    configure(world, "fail")
    async with open_service(world.deployment) as old:
        await old.prepare()
        run = await start(old, "configured")
        world.change()
        async with open_service(world.deployment) as new:
            await new.prepare()
            ended = await decide(new, run)
            assert (ended["status"], ended["version"]) == ("COMPLETED", run["version"])
            assert ended["version_changes"] == []


async def test_stricter_policy_holds_for_a_call_that_waits(world: World) -> None:
    runs = await pause_all(world, "continue")
    path = world.deployment.path
    path.write_text(path.read_text().replace('{ add = "user" }', '{ add = "other" }'))
    async with open_service(world.deployment) as service:
        await service.prepare()
        question = await find_question(service, runs["configured"]["run_id"])
        assert question["policy"] == "other"
        with pytest.raises(FourEyes):
            await decide(service, runs["configured"])


async def test_stricter_policy_holds_for_a_call_that_was_approved(world: World) -> None:
    runs = await pause_all(world, "continue")
    async with open_service(world.deployment) as service:
        # A command decides, and its process does not go on with the run.
        service.hosting.engine.draining = True
        await decide_only(service, runs["configured"])
    path = world.deployment.path
    path.write_text(path.read_text().replace('{ add = "user" }', '{ add = "other" }'))
    async with open_service(world.deployment) as service:
        await service.prepare()

        async def is_paused() -> bool:
            run: Any = (await user(service).runs.get(runs["configured"]["run_id"])).value
            return bool(run["status"] == "PAUSED")

        await wait_until(is_paused)
        question = await find_question(service, runs["configured"]["run_id"])
        assert (question["tool_name"], question["policy"]) == ("agentctl.change_version", "other")
        with pytest.raises(FourEyes):
            await decide(service, runs["configured"])


async def decide_only(service: Service, run: dict[str, Any]) -> None:
    (each,) = run["approvals"]
    ruling = Ruling("approve", each["arguments_hash"])
    await user_with_approvals(service).approvals.decide(
        "agent", "configured", each["approval_id"], ruling
    )


def user_with_approvals(service: Service) -> Any:
    scopes = frozenset({"agents:read", "approvals:read", "approvals:write", "sessions:read"})
    return service.operations_for(Principal("me", scopes=scopes))


async def change_below_queued_run(world: World, rule: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Queue a run behind a paused one of its session, and change what both execute.

    Return the paused run and the queued one.
    """
    configure(world, rule)
    async with open_service(world.deployment) as service:
        await service.prepare()
        service.hosting.engine.claims.is_serving = False
        blocking = await start(service, "configured", session_id="busy")
        queued = await start(
            service, "queued", session_id="busy", background=True, session_state={"a": 1}
        )
        assert (blocking["status"], queued["status"]) == ("PAUSED", "PENDING")
    world.change()
    return blocking, queued


async def wait_for_queued(service: Service, run_id: str) -> dict[str, Any]:
    """Wait until a queued run has ended or waits for a person, and return its record."""
    return await wait_for_run(user(service), run_id, "COMPLETED", "ERROR", "CANCELLED", "PAUSED")


async def check_continued_in_its_session(
    service: Service, queued: dict[str, Any], run: dict[str, Any]
) -> None:
    check_changed(queued, run)
    session: Any = (await user(service).sessions.get("busy")).value
    assert session["session_state"] == {"a": 1}
    assert len(await read_notices(service, run["run_id"])) == 1


async def test_queued_run_begins_with_the_new_version(world: World) -> None:
    blocking, queued = await change_below_queued_run(world, "continue")
    async with open_service(world.deployment) as service:
        await service.prepare()
        await decide(service, blocking)
        run = await wait_for_queued(service, queued["run_id"])
        await check_continued_in_its_session(service, queued, run)


async def test_queued_run_asks_before_it_begins_with_another_version(world: World) -> None:
    blocking, queued = await change_below_queued_run(world, "ask")
    async with open_service(world.deployment) as service:
        await service.prepare()
        await decide(service, blocking)
        # The paused run asks about its own change, too.
        await decide(service, blocking)
        waiting = await wait_for_queued(service, queued["run_id"])
        assert waiting["status"] == "PAUSED"
        run = await decide(service, waiting)
        await check_continued_in_its_session(service, queued, run)


async def test_queued_run_of_another_version_fails(world: World) -> None:
    blocking, queued = await change_below_queued_run(world, "fail")
    async with open_service(world.deployment) as service:
        await service.prepare()
        await decide(service, blocking)
        run = await wait_for_queued(service, queued["run_id"])
        assert (run["status"], run["error"]["code"]) == ("ERROR", "VERSION_CHANGED")
