"""A fact and its delivery are committed together, or neither is."""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import orjson
import pytest

from agentctl.config import load_settings
from agentctl.config.settings import Settings
from agentctl.config.webhooks import Webhook
from agentctl.records.runs import NewRun
from agentctl.records.times import now
from agentctl.runs.desk.decisions import expire_approvals
from agentctl.runs.engine import cancel as cancelling
from agentctl.runs.log.results import build_run_end
from agentctl.runs.states import Ending
from agentctl.runs.workers.recovery import recover_runs
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.store.database import Database, Sql, Steps, Work, unit
from agentctl.store.databases import Databases
from agentctl.store.outbox import Outbox
from agentctl.store.repositories import approvals, runs, sessions
from agentctl.store.visibility import EVERYONE
from agentctl.webhooks.facts import publish_decision, publish_run
from agentctl.webhooks.signing import generate_secret
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import ADMIN, create_deployment
from tests.kit.process import serve_config
from tests.kit.rows import START, an_approval
from tests.kit.run_specs import a_spec
from tests.webhooks.test_deliveries import find_differences

T = TypeVar("T")

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"

SETTINGS = """
[[databases]]
id = "main"
url = "sqlite:///main.db"

[[webhooks]]
id = "all"
url = "http://127.0.0.1:1/"
events = ["run.completed", "run.failed", "run.cancelled", "run.paused", "approval.expired"]
secret_env = "HOOK_SECRET"
allow_private = true

[[webhooks]]
id = "second"
url = "http://127.0.0.1:1/"
events = ["run.failed", "approval.expired"]
secret_env = "HOOK_SECRET"
allow_private = true
"""


FACTS = Sql(
    "SELECT run_id, status FROM runs WHERE finished_at > 0"
    " UNION ALL SELECT approval_id, status FROM approvals WHERE decided_at > 0"
)
ROWS = Sql("SELECT type, event_id, webhook_id, body FROM webhook_deliveries ORDER BY delivery_id")


class Interrupted(Exception):
    """The transaction ends before one of its statements."""


@unit
def interrupt(work: Work[T], number: int) -> Steps[T]:
    """Execute a unit, but end the transaction before the statement of a number."""
    steps = iter(work)
    left = number
    try:
        statement = next(steps)
        while True:
            if left == 0:
                raise Interrupted
            left -= 1
            rows = yield statement
            statement = steps.send(rows)
    except StopIteration as end:
        result: T = end.value
        return result


class BreakingDatabase:
    """A database whose writes end before the statement of a number."""

    def __init__(self, database: Database, number: int) -> None:
        self._database = database
        self._number = number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def write(self, work: Work[T]) -> T:
        return await self._database.write(interrupt(work, self._number))


@unit
def create_run(run_id: str, **more: Any) -> Steps[None]:
    session = sessions.build_session("s1", "agent", user_id="ann", now=now())
    if (yield from sessions.get("s1", EVERYONE)) is None:
        yield from sessions.create(session)
    yield from runs.create(NewRun(a_spec(run_id, **more), "w1", now()))


async def test_endpoint_of_a_team_gets_the_decisions_of_its_members(tmp_path: Path) -> None:
    def build(id: str, *agents: str) -> Webhook:
        return Webhook(id, "https://example.org", ("approval.decided",), agents=agents)

    webhooks = (build("team", "crew"), build("member", "echo"), build("all"), build("no", "b"))
    outbox = Outbox(Settings(webhooks=webhooks))
    (tmp_path / "agentctl.toml").write_text(SETTINGS)
    databases = Databases(load_settings(tmp_path / "agentctl.toml", {}), create=True)
    main = databases["main"]
    try:
        await main.write(create_run("r1", component_type="team", component_id="crew"))
        # The approval of a call of the member `echo`.
        await main.write(approvals.create([an_approval(expires_at=START + 1)]))
        row = await main.read(approvals.get("a1", EVERYONE))
        assert row is not None
        await main.write(publish_decision(outbox, row))
        _, stored = await main.read(read_facts())
    finally:
        await databases.close()

    assert sorted(webhook_id for _, _, webhook_id, _ in stored) == ["all", "member", "team"]
    assert {orjson.loads(body)["data"]["component_id"] for *_, body in stored} == {"echo"}


@unit
def read_facts() -> Steps[tuple[list[Any], list[Any]]]:
    """Return the runs and approvals that are decided, and the deliveries."""
    facts = yield from FACTS.rows(lambda *row: row)
    rows = yield from ROWS.rows(lambda *row: row)
    return facts, rows


async def test_interrupted_end_has_neither_status_nor_delivery(tmp_path: Path) -> None:
    (tmp_path / "agentctl.toml").write_text(SETTINGS)
    databases = Databases(load_settings(tmp_path / "agentctl.toml", {}), create=True)
    main = databases["main"]
    try:
        await main.write(create_run("r1"))
        await main.write(approvals.create([an_approval(expires_at=START + 1)]))
        for recover, fact, wanted in (
            (expire_approvals, ("a1", "expired"), ["approval.expired"] * 2),
            (lambda database: recover_runs(database, "w1"), ("r1", "ERROR"), ["run.failed"] * 2),
        ):
            before = await main.read(read_facts())
            number = 0
            while True:
                broken: Any = BreakingDatabase(main, number)
                try:
                    await recover(broken)  # type: ignore[operator]
                except Interrupted:
                    assert await main.read(read_facts()) == before
                    number += 1
                    continue
                break
            facts, rows = await main.read(read_facts())
            assert number > 3
            assert [each for each in facts if each not in before[0]] == [fact]
            assert [row[0] for row in rows if row not in before[1]] == wanted
            # Both endpoints have the same event.
            assert len({row[1] for row in rows if row not in before[1]}) == 1
    finally:
        await databases.close()


@unit
def end_between(work: Work[T], run_id: str, outbox: Outbox) -> Steps[T]:
    """Execute a unit, and end the run after its first statement, as its worker may."""
    steps = iter(work)
    rows = yield next(steps)
    ending = Ending.completed()
    end = build_run_end(
        a_spec(run_id), 1, ending, Transcript(), finished_at=now(), stopped_at=now()
    )
    assert (yield from runs.finish(end))
    yield from publish_run(outbox, run_id)
    try:
        statement = steps.send(rows)
        while True:
            rows = yield statement
            statement = steps.send(rows)
    except StopIteration as finished:
        result: T = finished.value
        return result


async def test_cancel_does_not_repeat_an_end_that_was_stored_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "agentctl.toml").write_text(SETTINGS)
    databases = Databases(load_settings(tmp_path / "agentctl.toml", {}), create=True)
    main = databases["main"]
    outbox = databases.outbox
    try:
        await main.write(create_run("r1"))
        cancel = cancelling._request_cancel(outbox, "r1", "ann", None, None)
        _, after = await main.write(end_between(cancel, "r1", outbox))
        assert after.status == "COMPLETED"
        _, rows = await main.read(read_facts())
        assert [row[0] for row in rows] == ["run.completed"]
    finally:
        await databases.close()


SERVED = """
[[agents]]
id = "quick"
object = "quick_agent:answer"

[[webhooks]]
id = "all"
url = "http://127.0.0.1:1/"
events = ["run.completed", "run.failed", "run.cancelled", "run.paused"]
secret_env = "HOOK_SECRET"
allow_private = true
"""

AGENT = "async def answer(message, context):\n    return message\n"

PROGRAM = (sys.executable, str(Path(__file__).parents[1] / "lab" / "killed_server.py"))

# The end of a run writes: its row, its session, the delivery, COMMIT.
STATEMENTS = range(1, 9) if LONG else (2, 4)


@pytest.mark.parametrize("number", STATEMENTS)
def test_killed_end_has_neither_status_nor_delivery(tmp_path: Path, number: int) -> None:
    (tmp_path / "quick_agent.py").write_text(AGENT)
    deployment = create_deployment(tmp_path, "http://127.0.0.1:1", extra=SERVED)
    variables = {
        "HOOK_SECRET": generate_secret(),
        "AGENTCTL_KILL_AT": str(number),
        "AGENTCTL_KILL_FROM": "UPDATE runs SET status = :status, content",
    }
    headers = deployment.bearer("boss", ADMIN)
    with serve_config(deployment.path, variables=variables, program=PROGRAM) as server:
        body = {"message": "x", "stream": False, "background": True}
        url = f"{server.url}/agents/quick/runs"
        assert httpx2.post(url, json=body, headers=headers, timeout=PATIENCE).status_code == 202
        server.process.wait(PATIENCE)
    with closing(sqlite3.connect(tmp_path / "main.db")) as database:
        assert find_differences(database) == []
        ended = database.execute("SELECT count(*) FROM runs WHERE finished_at > 0").fetchone()[0]
    # Before the commit nothing is stored; afterwards both are.
    assert ended in (0, 1)
    if number <= 2:
        assert ended == 0
    del variables["AGENTCTL_KILL_AT"]
    with serve_config(deployment.path, variables=variables) as server:

        def has_ended() -> bool:
            with closing(sqlite3.connect(tmp_path / "main.db")) as database:
                sql = "SELECT count(*) FROM runs WHERE finished_at > 0"
                return bool(database.execute(sql).fetchone()[0])

        wait_for(has_ended)
    with closing(sqlite3.connect(tmp_path / "main.db")) as database:
        assert find_differences(database) == []
        assert database.execute("SELECT count(*) FROM webhook_deliveries").fetchone() == (1,)
