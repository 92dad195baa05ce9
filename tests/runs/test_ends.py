"""The end of a run is the same for all who write it.

A run is ended by the process that executes it, by another one that finds its worker dead, by a
cancel while nothing executes it, and by the limit of a queue. Clients can tell these ends apart by
the status, the error and the reason only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import orjson
import pytest

from agentctl.config.settings import Approvals
from agentctl.interface.requests import StreamEvent
from agentctl.records.items import CANCELLED_RESULT
from agentctl.records.run_spec import Origin
from agentctl.records.runs import FinalStatus, RunRow
from agentctl.records.times import format_rfc3339
from agentctl.runs.desk.waiting import cancel_run, end_overdue_run, release_if_decided
from agentctl.runs.life import finish
from agentctl.runs.life.finish import store_pause
from agentctl.runs.life.live import LiveRun
from agentctl.runs.log import event_rows
from agentctl.runs.log.event_rows import LOST_SEQ_STEP, encode_events
from agentctl.runs.states import Ending, Pause
from agentctl.runs.workers.recovery import recover_runs
from agentctl.runtime.pauses import Ask
from agentctl.runtime.transcript.events import Content
from agentctl.runtime.transcript.history import mark_kept
from agentctl.store.database import Sql
from agentctl.store.repositories import approvals, events, queue, quotas, run_reads, runs, sessions
from agentctl.store.repositories.quotas import Counters
from agentctl.store.repositories.runs import NewVersion
from agentctl.store.visibility import EVERYONE
from tests.kit.deployment import Deployment
from tests.kit.rows import START, a_run, a_whole_run, an_end
from tests.runs.bench import OWNER, Bench, open_bench
from tests.runs.shared_databases import build_identity, create_live_run, loads
from tests.runs.test_waiting import record

AHEAD = 4_000_000_000_000_000
"""A time in the year 2096, in microseconds."""

FILE = {"file_id": "f1", "name": "a.txt", "media_type": "text/plain", "size": 3}
SAVED = {**FILE, "file_id": "f2", "created_at": "2026-01-01T00:00:00Z"}

CALL = {"id": "call", "name": "pay", "arguments": {"amount": 1}}


async def read_run(bench: Bench, run_id: str = "root") -> RunRow:
    run = await bench.database.read(run_reads.get(run_id, EVERYONE))
    assert run is not None
    return run


async def cancel(bench: Bench, run_id: str = "root") -> None:
    states = await bench.database.write(cancel_run(bench.database.outbox, run_id, "ann", "enough"))
    assert states is not None
    assert states[1].status == "CANCELLED"


def say(run: LiveRun, text: str, *calls: dict[str, Any]) -> None:
    """Add an answer to the transcript of a run, as its component does."""
    transcript = run.transcript
    if not transcript.messages:
        transcript.add_user(run.spec.input)
    transcript.begin_answer("m")
    transcript.extend_answer(text)
    transcript.add_content(text)
    transcript.end_answer(list(calls), "tool_call" if calls else "stop")
    for call in calls:
        transcript.open_call(call["id"], call["name"], call["arguments"])


async def pause_and_approve(bench: Bench) -> None:
    """Let the root run wait for a decision, which any process may go on with now."""
    asked = Pause([Ask("approval", "call", "pay", {"amount": 1})], {})
    stored = await store_pause(bench.root, asked, Approvals(), lambda: None)
    assert isinstance(stored, Pause)
    decide = Sql("UPDATE approvals SET status = 'approved', decided_at = 5")
    await bench.database.write(decide.execute())
    assert await bench.database.write(release_if_decided("root"))


async def claim(bench: Bench) -> int:
    """Give the leg that waits to the worker, which will be found dead; return its attempt."""
    work = runs.claim_leg("root", OWNER, START + 1, NewVersion(None))
    assert await bench.database.write(work)
    return (await bench.read("root")).attempt


async def publish_leg(bench: Bench, before: str, *texts: str) -> None:
    """Store the events of the leg that is claimed.

    Args:
        before: the content of the legs before it.
    """
    run = await read_run(bench)
    named = build_identity(run)
    published = [(*event_rows.format_continued(named, run.attempt, before, []), None)]
    published += [event_rows.format_event(named, Content(text)) for text in texts]
    first = (await bench.database.read(events.get_last_seq("root"))) + LOST_SEQ_STEP
    portion = [StreamEvent(seq, name, data) for seq, (name, data, _) in enumerate(published, first)]
    text = encode_events("root", portion, [piece for _, _, piece in published])
    last = portion[-1].seq
    assert await bench.database.write(events.append_batch("root", run.attempt, first, last, text))


async def lose_for_good(bench: Bench) -> RunRow:
    """Find the worker dead, in a leg that must not be repeated; return the ended run."""
    attempt = (await bench.read("root")).attempt
    assert await bench.database.write(runs.mark_effects("root", attempt))
    assert await recover_runs(bench.database, OWNER) == ["root"]
    return await read_run(bench)


def list_roles(run: RunRow) -> list[str]:
    return [message["role"] for message in loads(run.messages)]


@pytest.mark.parametrize("texts", [(), ("And ", "more.")])
async def test_lost_leg_keeps_what_the_legs_before_it_did(
    deployment: Deployment, texts: Sequence[str]
) -> None:
    """The events of a run that nobody followed begin with its second leg."""
    async with open_bench(deployment, durable=False) as bench:
        say(bench.root, "I pay. ", CALL)
        await pause_and_approve(bench)
        await claim(bench)
        if texts:
            await publish_leg(bench, "I pay. ", *texts)
        run = await lose_for_good(bench)
        assert (run.status, run.error_code) == ("ERROR", "WORKER_LOST")
        assert run.content == "".join(["I pay. ", *texts])
        (call,) = loads(run.tools)
        assert (call["tool_call_id"], call["result"]) == ("call", CANCELLED_RESULT)
        assert list_roles(run)[:2] == ["user", "assistant"]
        assert sorted(list_roles(run)[2:]) == sorted(["tool", *["assistant"] * bool(texts)])
        assert loads(run.history)[0]["content"] == "hello"
        assert {span["kind"] for span in loads(run.spans)} == {"model", "tool"}


async def test_leg_that_was_repeated_counts_once(deployment: Deployment) -> None:
    """A lost leg is done again from its checkpoint: its text is not that of the run any more."""
    async with open_bench(deployment, durable=False, recorded=True) as bench:
        say(bench.root, "I pay. ", CALL)
        bench.root.emit(Content("I pay. "))
        await pause_and_approve(bench)
        await claim(bench)
        await publish_leg(bench, "I pay. ", "Onc")
        assert await recover_runs(bench.database, OWNER) == []
        await claim(bench)
        await publish_leg(bench, "I pay. ", "Once.")
        run = await lose_for_good(bench)
        assert run.content == "I pay. Once."


async def end_as_lost(bench: Bench) -> None:
    await recover_runs(bench.database, OWNER, returns=False)


async def return_and_cancel(bench: Bench) -> None:
    assert await bench.lose() == "PENDING"
    await cancel(bench)


@pytest.mark.parametrize("end", [end_as_lost, return_and_cancel])
async def test_end_of_a_durable_run_keeps_its_journal(
    deployment: Deployment, end: Callable[[Bench], Awaitable[None]]
) -> None:
    async with open_bench(deployment) as bench:
        await bench.answer_with_call(noted=1)
        await end(bench)
        run = await read_run(bench)
        assert [call["result"] for call in loads(run.tools)] == ["noted"]
        assert list_roles(run)[-2:] == ["assistant", "tool"]
        assert await bench.list_steps() == []
        state = await bench.database.read(sessions.get_state("s1"))
        assert loads(state) == {"noted": 1}


async def test_run_with_a_damaged_journal_ends_with_its_events(deployment: Deployment) -> None:
    async with open_bench(deployment, recorded=True) as bench:
        await bench.answer_with_call(noted=1)
        damage = Sql("UPDATE run_steps SET body = '{' WHERE kind = 'answer'")
        await bench.database.write(damage.execute())
        await publish_leg(bench, "", "so far")
        await end_as_lost(bench)
        run = await read_run(bench)
        assert (run.status, run.content) == ("ERROR", "so far")
        assert list_roles(run) == ["user", "assistant"]


async def test_cancel_counts_the_reported_use_of_a_lost_leg(deployment: Deployment) -> None:
    async with open_bench(deployment, durable=False) as bench:
        await pause_and_approve(bench)
        await claim(bench)
        reported = Counters('{"total_tokens": 30}', '{"m": {"total_tokens": 30}}')
        await bench.database.write(quotas.report("root", 30, 0, reported))
        assert await recover_runs(bench.database, OWNER) == []
        await cancel(bench)
        assert loads((await read_run(bench)).metrics)["total_tokens"] == 30


async def test_cancel_of_a_lost_leg_follows_its_unstored_events(deployment: Deployment) -> None:
    """Otherwise a follower that has one of them would wait for an end that it never gets."""
    async with open_bench(deployment, durable=False, recorded=True) as bench:
        await pause_and_approve(bench)
        await claim(bench)
        await publish_leg(bench, "", "stored")
        last = await bench.database.read(events.get_last_seq("root"))
        assert await recover_runs(bench.database, OWNER) == []
        await cancel(bench)
        (end,) = await bench.database.read(events.list_after("root", last))
        assert end.first_seq == last + LOST_SEQ_STEP
        assert end.events.startswith("RunCancelled ")


async def end_live(bench: Bench) -> RunRow:
    await bench.end(bench.root, Ending.cancelled("ann", "enough"))
    return await read_run(bench)


async def cancel_accepted(bench: Bench) -> RunRow:
    await bench.database.write(runs.create(a_run("new", owner="w1", files=files())))
    await cancel(bench, "new")
    return await read_run(bench, "new")


async def cancel_queued(bench: Bench) -> RunRow:
    queued = a_run("new", files=files())._replace(queue_turn=queue.AFTER_RUNS)
    await bench.database.write(runs.create(queued))
    await cancel(bench, "new")
    return await read_run(bench, "new")


async def time_out(bench: Bench) -> RunRow:
    queued = a_run("new", files=files())._replace(queue_turn=queue.AFTER_RUNS)
    await bench.database.write(runs.create(queued))
    assert await bench.database.write(end_overdue_run(bench.database.outbox, "new", START))
    return await read_run(bench, "new")


async def lose(bench: Bench) -> RunRow:
    await create_live_run(bench.database, "w1", "new", files=files())
    assert await recover_runs(bench.database, "w1") == ["new"]
    return await read_run(bench, "new")


async def lose_accepted(bench: Bench) -> RunRow:
    await bench.database.write(runs.create(a_run("new", owner="w1", files=files())))
    assert await recover_runs(bench.database, "w1") == ["new"]
    return await read_run(bench, "new")


def files() -> str:
    return orjson.dumps([FILE]).decode()


_DIFFERS = {
    "run_id", "seq", "attempt", "status", "owner", "background", "recorded", "error_code",
    "error_detail", "cancel_requested_at", "cancel_requested_by", "cancel_reason", "created_at",
    "started_at", "queued_at", "finished_at", "stopped_at", "survives_disconnect",
}  # fmt: skip
"""The columns that differ because the runs do, or that say who has ended a run and why."""


def describe(run: RunRow) -> dict[str, Any]:
    """Return what the end of a run has left, without times."""
    values = {name: value for name, value in asdict(run).items() if name not in _DIFFERS}
    for name in ("messages", "history"):
        values[name] = [
            {**message, "created_at": 0} for message in orjson.loads(values[name] or "[]")
        ]
    return values


@pytest.mark.parametrize("end", [cancel_accepted, cancel_queued, time_out, lose, lose_accepted])
async def test_run_without_any_work_ends_like_a_live_one(
    deployment: Deployment, end: Callable[[Bench], Awaitable[RunRow]]
) -> None:
    async with open_bench(deployment, durable=False) as bench:
        root = bench.root
        root.spec = replace(root.spec, files=files())
        name = Sql("UPDATE runs SET files = :files WHERE run_id = 'root'")
        await bench.database.write(name.execute(files=files()))
        assert describe(await end(bench)) == describe(await end_live(bench))
        session = await bench.database.read(sessions.get("s1", EVERYONE))
        assert session is not None
        rows = [await read_run(bench, "root"), await read_run(bench, "new")]
        assert session.history_bytes == sum(len((row.history or "").encode()) for row in rows)


async def test_question_of_a_lost_run_has_the_files_of_its_message(deployment: Deployment) -> None:
    """A file that the run has saved is not one of its message."""
    async with open_bench(deployment, durable=False) as bench:
        await create_live_run(bench.database, "w1", "new", files=files())
        await bench.database.write(runs.add_file("new", orjson.dumps(SAVED).decode()))
        assert await recover_runs(bench.database, "w1") == ["new"]
        (message,) = loads((await read_run(bench, "new")).messages)
        assert message["files"] == [FILE]


async def test_last_event_of_a_lost_run_has_the_time_of_its_row(deployment: Deployment) -> None:
    """The clock of the process that ends it may be behind that of the one that began it."""
    async with open_bench(deployment, durable=False) as bench:
        await bench.database.write(events.append_batch("root", 1, 0, 0, "RunStarted {}\n"))
        ahead = Sql("UPDATE runs SET started_at = :at WHERE run_id = 'root'")
        await bench.database.write(ahead.execute(at=AHEAD))
        assert await recover_runs(bench.database, OWNER) == ["root"]
        run = await read_run(bench)
        assert run.finished_at == AHEAD
        (end,) = await bench.database.read(events.list_after("root", 0))
        data = orjson.loads(end.events.partition(" ")[2])
        assert data["at"] == format_rfc3339(AHEAD)


async def end_repeating_live(bench: Bench) -> RunRow:
    origin = Origin("r0", "retry", at=2, messages=mark_kept(MESSAGES[:2], "r0"))
    bench.root.spec = replace(bench.root.spec, origin=origin)
    return await end_live(bench)


async def lose_repeating(bench: Bench) -> RunRow:
    origin = Origin("r0", "retry", at=2)
    await create_live_run(bench.database, "w1", "new", origin=origin)
    assert await recover_runs(bench.database, "w1") == ["new"]
    return await read_run(bench, "new")


async def cancel_repeating(bench: Bench) -> RunRow:
    row = a_run("new", origin=Origin("r0", "retry", at=2), owner="w1")
    await bench.database.write(runs.create(row))
    await cancel(bench, "new")
    return await read_run(bench, "new")


MESSAGES = [
    {"role": "user", "content": "before", "created_at": 1},
    {"role": "assistant", "content": "an answer", "created_at": 2},
    {"role": "user", "content": "not kept", "created_at": 3},
]


@pytest.mark.parametrize("end", [end_repeating_live, lose_repeating, cancel_repeating])
async def test_run_that_repeats_another_one_keeps_what_it_began_with(
    deployment: Deployment, end: Callable[[Bench], Awaitable[RunRow]]
) -> None:
    async with open_bench(deployment, durable=False) as bench:
        messages = orjson.dumps(MESSAGES).decode()
        await bench.database.write(a_whole_run(a_run("r0"), an_end("r0", messages=messages)))
        run = await end(bench)
        assert [(message["role"], message["content"]) for message in loads(run.messages)] == [
            ("user", "before"),
            ("assistant", "an answer"),
            ("user", "hello"),
        ]


async def test_cancel_of_a_run_that_has_not_begun_lets_the_next_one_begin(
    deployment: Deployment,
) -> None:
    async with open_bench(deployment, durable=False) as bench:
        await bench.end(bench.root)
        await bench.database.write(runs.create(a_run("new", owner="w1")))
        queued = a_run("next")._replace(queue_turn=queue.AFTER_RUNS)
        await bench.database.write(runs.create(queued))
        await bench.database.write(queue.add("s1", START))
        assert (await bench.read("next")).waits_for_turn
        await cancel(bench, "new")
        assert not (await bench.read("next")).waits_for_turn


@pytest.mark.parametrize("has_work", [False, True])
async def test_last_event_of_a_cancelled_run_has_the_time_of_its_row(
    deployment: Deployment, has_work: bool
) -> None:
    """The clock of the process that records the request may be ahead of that of the worker."""
    async with open_bench(deployment, durable=False, recorded=True) as bench:
        assert await bench.database.write(runs.request_cancel("root", AHEAD, "ann", "enough"))
        if has_work:
            work = asyncio.get_running_loop().create_future()
            bench.root.transcript.unstopped.add(work)
        await bench.end(bench.root, Ending.cancelled("bob", "too late"))
        run = await read_run(bench)
        assert (run.finished_at, run.cancel_requested_by) == (AHEAD, "ann")
        assert run.stopped_at == (None if has_work else AHEAD)
        (end,) = await bench.database.read(events.list_after("root", -1))
        data = orjson.loads(end.events.partition(" ")[2])
        assert (data["at"], data["reason"]) == (format_rfc3339(AHEAD), "enough")
        assert bench.root.finished_at == AHEAD
        if has_work:
            work.set_result(None)


@pytest.mark.parametrize("has_ended", [False, True])
async def test_recovery_wakes_the_deliveries(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    """The end of a lost run is reported to the receivers of webhooks as soon as any other."""
    async with open_bench(deployment, durable=False) as bench:
        if has_ended:
            await bench.end(bench.root)
        wakes: list[str] = []
        monkeypatch.setattr(bench.database.outbox, "wake", lambda: wakes.append("woken"))
        await recover_runs(bench.database, OWNER)
        assert wakes == ([] if has_ended else ["woken"])


@pytest.mark.parametrize("recorded", [False, True])
async def test_end_of_a_plain_run_makes_no_statement_in_vain(
    deployment: Deployment, recorded: bool
) -> None:
    async with open_bench(deployment, durable=False, recorded=recorded) as bench:
        completed = Ending.completed()
        end = await finish._build_live_end(bench.root, completed)
        texts: list[str] = []
        work = finish._write_end(bench.root, completed, end, None)
        assert await bench.database.write(record(work, texts)) == completed
        plain = ["UPDATE runs", "INSERT INTO usage_ends", "UPDATE sessions"]
        assert len(texts) == len(plain) + recorded
        for text, begin in zip(texts[recorded:], plain, strict=True):
            assert text.startswith(begin)


async def cancel_as_a_client(bench: Bench) -> None:
    canceller = bench.service.hosting.canceller
    await canceller.cancel(bench.database, "new", actor="ann", reason=None, wait=0)


async def end_overdue(bench: Bench) -> None:
    await bench.service.hosting.engine.claims.end_overdue(bench.database)


async def sweep(bench: Bench) -> None:
    on_ended = bench.service.hosting.monitor.on_lost_run
    await recover_runs(bench.database, None, returns=False, on_ended=on_ended)


@pytest.mark.parametrize(
    ("end", "status"), [(cancel_as_a_client, "CANCELLED"), (end_overdue, "ERROR"), (sweep, "ERROR")]
)
async def test_process_counts_the_runs_that_it_has_not_executed(
    deployment: Deployment, end: Callable[[Bench], Awaitable[None]], status: FinalStatus
) -> None:
    async with open_bench(deployment, durable=False) as bench:
        queued = a_run("new")._replace(queue_turn=queue.AFTER_RUNS)
        await bench.database.write(runs.create(queued))
        await end(bench)
        assert bench.service.hosting.engine.counters.finished == {("agent", status): 1}


async def test_ends_close_what_the_run_waited_for(deployment: Deployment) -> None:
    """Its approvals, its checkpoint and the members below it end in one transaction with it."""
    async with open_bench(deployment) as bench:
        member = await bench.start_member()
        asked = Pause([Ask("approval", "call", "pay", {"amount": 1})], {})
        assert isinstance(await store_pause(member, asked, Approvals(), lambda: None), Pause)
        await bench.end(bench.root)
        assert (await bench.read("member")).status == "CANCELLED"
        (row,) = await bench.database.read(approvals.list_of_run("member"))
        assert row.status == "cancelled"
        assert await bench.database.read(approvals.load_checkpoint("root")) is None
