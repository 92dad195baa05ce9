"""The end or the pause of a leg is stored with everything that belongs to it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from agentctl import errors
from agentctl.config.settings import Approvals, Settings
from agentctl.config.webhooks import Webhook
from agentctl.runs.life import finish
from agentctl.runs.life.finish import store_end, store_pause
from agentctl.runs.states import Ending, Pause
from agentctl.runtime.pauses import Ask
from agentctl.runtime.transcript.history import StateChanges
from agentctl.store.database import Sql
from agentctl.store.outbox import Outbox
from agentctl.store.repositories import approvals, run_reads, runs, sessions
from agentctl.store.visibility import EVERYONE
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import Deployment
from tests.runs.bench import Bench, open_bench, report_while_storing

ASKED = Pause([Ask("approval", "call", "pay", {"amount": 1})], {})


async def pause(bench: Bench, asked: Pause = ASKED) -> Pause:
    paused = await store_pause(bench.root, asked, Approvals(), lambda: None)
    assert isinstance(paused, Pause)
    return paused


async def test_end_wakes_the_deliveries(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported to the receivers of webhooks."""
    async with open_bench(deployment) as bench:
        wakes: list[str] = []
        monkeypatch.setattr(bench.database.outbox, "wake", lambda: wakes.append("woken"))
        await bench.end(bench.root)
        assert wakes == ["woken"]


async def test_end_of_a_root_run_is_a_fact_for_webhooks(deployment: Deployment) -> None:
    webhook = Webhook("ops", "https://example.com/", ("run.completed",))
    told = Sql("SELECT run_id FROM webhook_deliveries").column()
    async with open_bench(deployment) as bench:
        bench.database.outbox = Outbox(Settings(webhooks=(webhook,)))
        await bench.end(await bench.start_member())
        assert await bench.database.read(told) == []
        await bench.end(bench.root)
        assert await bench.database.read(told) == ["root"]


async def test_end_changes_the_state_of_its_session(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        stored = 'UPDATE sessions SET session_state = \'{"old": 1, "kept": 2}\''
        await bench.database.write(Sql(stored).execute())
        bench.root.state_changes = StateChanges({"new": 3}, ("old",))
        await bench.end(bench.root)
        session = await bench.database.read(sessions.get("s1", EVERYONE))
        assert session is not None
        assert json.loads(session.session_state or "") == {"kept": 2, "new": 3}


async def test_first_of_two_cancels_counts(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        await bench.database.write(runs.request_cancel("root", 7, "bob", "enough"))
        stored = await store_end(
            bench.root,
            Ending.cancelled("ann", "too late"),
            lambda late: None,
            lambda: None,
            lambda: None,
        )
        assert (stored.actor, stored.reason, stored.requested_at) == ("bob", "enough", 7)
        assert (await bench.read("root")).cancel_requested_by == "bob"


async def test_failure_that_another_process_has_stored_is_kept(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        failed = (
            "UPDATE runs SET status = 'ERROR', finished_at = 6, error_code = 'WORKER_LOST',"
            " error_detail = 'its worker died' WHERE run_id = 'root'"
        )
        await bench.database.write(Sql(failed).execute())
        stored = await store_end(
            bench.root, Ending.completed(), lambda late: None, lambda: None, lambda: None
        )
        assert (stored.status, stored.error_code) == ("ERROR", "WORKER_LOST")
        assert stored.error_detail == "its worker died"


async def test_run_whose_state_cannot_be_stored_ends_without_it(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "RETRY_SECONDS", (0.0,))
    async with open_bench(deployment) as bench, asyncio.timeout(PATIENCE):
        bench.root.state_changes = StateChanges({"key": object()}, ())
        await bench.end(bench.root)
        run = await bench.database.read(run_reads.get("root", EVERYONE))
        assert run is not None
        assert (run.status, run.error_code) == ("ERROR", "INTERNAL")


async def test_work_that_ends_after_its_run_is_reported(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench, asyncio.timeout(PATIENCE):
        loop = asyncio.get_running_loop()
        reports = asyncio.Queue[str]()
        works = [loop.create_future(), loop.create_future()]
        unstopped = bench.root.transcript.unstopped
        for number, work in enumerate(works):
            unstopped.add(work, f"work {number}")
        await store_end(
            bench.root,
            Ending.completed(),
            lambda late: reports.put_nowait(f"all have ended, late: {late}"),
            lambda: reports.put_nowait(", ".join(unstopped.names)),
            lambda: None,
        )
        assert not unstopped.has_ended
        for work, report in zip(works, ("work 1", "all have ended, late: True"), strict=True):
            work.set_result(None)
            assert await reports.get() == report


async def test_run_that_leaves_no_work_has_stopped_with_its_end(deployment: Deployment) -> None:
    """A task that a timer of its code starts later is cancelled, not reported."""
    async with open_bench(deployment) as bench:
        await bench.end(bench.root)
        assert bench.root.transcript.unstopped.has_ended


async def test_completed_summary_becomes_that_of_the_session(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        bench.root.spec = replace(bench.root.spec, purpose="summary", covered=3)
        bench.root.transcript.add_content("They met.")
        await bench.end(bench.root)
        stored = await bench.database.read(sessions.get_summary("s1"))
        assert stored is not None
        summary = json.loads(stored)
        assert (summary["summary"], summary["covered_runs"]) == ("They met.", 3)


async def test_failed_summary_leaves_that_of_the_session(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        bench.root.spec = replace(bench.root.spec, purpose="summary", covered=3)
        bench.root.transcript.add_content("They m")
        await bench.end(bench.root, Ending.failed("MODEL_UNAVAILABLE", "no answer"))
        assert await bench.database.read(sessions.get_summary("s1")) is None


async def test_call_whose_begin_was_in_doubt_has_not_begun(deployment: Deployment) -> None:
    """The commit of its begin had an unknown outcome, and the run stopped before it was known."""
    async with open_bench(deployment) as bench:
        await pause(bench)
        begun = (
            "UPDATE approvals SET status = 'approved', decided_at = 5, execution = 'executing',"
            " executing_at = 6"
        )
        await bench.database.write(Sql(begun).execute())
        await bench.database.write(Sql("UPDATE runs SET status = 'RUNNING'").execute())
        (row,) = await bench.database.read(approvals.list_of_run("root"))
        bench.root.begins_in_doubt[row.approval_id] = 6
        await bench.end(bench.root, Ending.cancelled("ann", None))
        (row,) = await bench.database.read(approvals.list_of_run("root"))
        assert (row.execution, row.executing_at) == (None, None)


async def test_no_event_follows_that_of_a_pause(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that ignores its stop may still report while the pause is stored."""
    async with open_bench(deployment, recorded=True) as bench:
        stream = report_while_storing(bench, monkeypatch)
        await pause(bench)
        assert stream.next == 1


@pytest.mark.parametrize(("asked", "continues"), [(ASKED, False), (Pause([], {}), True)])
async def test_pause_whose_commit_had_an_unknown_outcome_is_stored_once(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, asked: Pause, continues: bool
) -> None:
    monkeypatch.setattr(finish, "RETRY_SECONDS", (0.0,))
    async with open_bench(deployment) as bench:
        write = bench.database.write
        failures = [errors.Unavailable("no answer")]

        async def lose_the_first_answer(work: Any) -> Any:
            result = await write(work)
            if failures:
                raise failures.pop()
            return result

        monkeypatch.setattr(bench.database, "write", lose_the_first_answer)
        assert (await pause(bench, asked)).continues is continues
        assert (await bench.read("root")).status == ("PENDING" if continues else "PAUSED")
        rows = await bench.database.read(approvals.list_of_run("root"))
        assert len(rows) == len(asked.asks)


@pytest.mark.parametrize(("asked", "run_ids"), [(ASKED, ["root"]), (Pause([], {}), [])])
async def test_pause_that_waits_is_a_fact_for_webhooks(
    deployment: Deployment, asked: Pause, run_ids: list[str]
) -> None:
    webhook = Webhook("ops", "https://example.com/", ("run.paused",))
    async with open_bench(deployment) as bench:
        bench.database.outbox = Outbox(Settings(webhooks=(webhook,)))
        await pause(bench, asked)
        told = Sql("SELECT run_id FROM webhook_deliveries").column()
        assert await bench.database.read(told) == run_ids


async def test_pause_changes_the_state_of_its_session(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        bench.root.state_changes = StateChanges({"new": 3}, ())
        await pause(bench)
        session = await bench.database.read(sessions.get("s1", EVERYONE))
        assert session is not None
        assert json.loads(session.session_state or "") == {"new": 3}


async def test_pause_without_open_questions_continues_at_once(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        assert (await pause(bench, Pause([], {}))).continues
        assert (await bench.read("root")).status == "PENDING"


@pytest.mark.parametrize(("tokens", "cost"), [(543, 1_046), (543, 0)])
async def test_pause_with_a_question_waits_and_counts_for_budgets(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, tokens: int, cost: int
) -> None:
    async def measure(run: object) -> tuple[int, int, None]:
        return tokens, cost, None

    async with open_bench(deployment) as bench:
        monkeypatch.setattr(bench.service.hosting.gate.budgets, "measure", measure)
        assert not (await pause(bench)).continues
        assert (await bench.read("root")).status == "PAUSED"
        used = Sql("SELECT tokens, cost FROM live_usage").rows(lambda *row: row)
        assert await bench.database.read(used) == [(tokens, cost)]
