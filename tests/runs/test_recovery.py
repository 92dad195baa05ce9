"""Recovery of the runs of a dead worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from agentctl import errors
from agentctl.records.runs import RunPause
from agentctl.runs.log import event_rows
from agentctl.runs.log.event_rows import LOST_SEQ_STEP, encode_event
from agentctl.runs.log.results import encode_counters, take_counters
from agentctl.runs.states import Ending
from agentctl.runs.workers.recovery import recover_runs
from agentctl.runtime.transcript.events import (
    Content,
    StepCompleted,
    ToolCallCompleted,
    ToolCallStarted,
)
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.store.database import Database, Sql, Statement, Steps, unit
from agentctl.store.repositories import events, quotas, runs, sessions
from agentctl.store.repositories.events import EventRow
from agentctl.store.repositories.quotas import Used
from agentctl.store.repositories.runs import NewVersion
from agentctl.store.repositories.usage_reads import UsageScope
from agentctl.store.visibility import EVERYONE
from tests.kit.rows import START, an_end
from tests.runs.shared_databases import (
    SharedDatabases,
    build_identity,
    create_live_run,
    loads,
    read_run,
    store_events,
)

DETAIL = "The process that worked on the run is gone"


async def batches(database: Database, run_id: str = "r1") -> list[EventRow]:
    return await database.read(events.list_after(run_id, -1))


async def asked_to_stop(database: Database, run_id: str, reason: str | None) -> None:
    request = runs.request_cancel(run_id, START + 5, "ann", reason, claimed=True)
    assert await database.write(request)


def tool(call_id: str, result: str | None) -> dict[str, Any]:
    return {
        "tool_call_id": call_id,
        "tool_name": "add",
        "tool_args": {"a": 1},
        "tool_call_error": None if result is None else False,
        "result": result,
    }


async def test_orphaned_run_ends_as_worker_lost_with_stored_events(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        main = databases["main"]
        run = await create_live_run(main, "w1")
        await store_events(main, run, "Hello, ", "wo\u2028rld\x85")
        assert await recover_runs(main, "w1") == ["r1"]
        ended = await read_run(main)
        assert (ended.status, ended.error_code, ended.error_detail) == (
            "ERROR", "WORKER_LOST", DETAIL,
        )  # fmt: skip
        assert ended.attempt == run.attempt + 1
        assert ended.content == "Hello, wo\u2028rld\x85"
        assert ended.stopped_at == ended.finished_at is not None
        assert (ended.cancel_requested_at, ended.cancel_reason) == (None, None)
        messages = [(entry["role"], entry["content"]) for entry in loads(ended.messages)]
        assert messages == [("user", "hello"), ("assistant", ended.content)]
        assert [entry["content"] for entry in loads(ended.history)] == ["hello", ended.content]
        session = await main.read(sessions.get("s1", EVERYONE))
        assert session is not None
        assert session.last_status == "ERROR"
        assert session.history_bytes == len((ended.history or "").encode())


async def test_run_without_events_keeps_its_message(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        main = databases["main"]
        await create_live_run(main, "w1")
        assert await recover_runs(main, "w1") == ["r1"]
        ended = await read_run(main)
        assert ended.status == "ERROR"
        assert ended.content == ""
        assert [entry["content"] for entry in loads(ended.history)] == ["hello"]
        assert await batches(main) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [("no need", "no need; the worker was lost"), (None, "The worker was lost")],
)
async def test_run_with_a_cancel_request_ends_as_cancelled(
    shared: SharedDatabases, given: str | None, expected: str
) -> None:
    async with shared.open() as databases:
        main = databases["main"]
        run = await create_live_run(main, "w1")
        following = await store_events(main, run, "part")
        await asked_to_stop(main, "r1", given)
        assert await recover_runs(main, "w1") == ["r1"]
        ended = await read_run(main)
        assert (ended.status, ended.cancel_reason) == ("CANCELLED", expected)
        assert (ended.cancel_requested_at, ended.cancel_requested_by) == (START + 5, "ann")
        assert (ended.error_code, ended.error_detail) == (None, None)
        last = (await batches(main))[-1]
        assert last.first_seq == last.last_seq == following - 1 + LOST_SEQ_STEP
        transcript = Transcript()
        transcript.add_content("part")
        assert_same(
            last.events,
            event_rows.format_end(
                build_identity(run), Ending.cancelled("ann", expected), transcript
            ),
        )


def assert_same(line: str, event: tuple[str, bytes]) -> None:
    """Check that a stored line is the given event, except for the time."""
    name, _, data = line.partition(" ")
    assert line.endswith("}\n")
    assert name == event[0]
    there = orjson.loads(data)
    wanted = orjson.loads(event[1])
    assert list(there) == list(wanted)
    times = {"created_at": 0, "at": ""}
    assert there | times == wanted | times


async def test_last_event_has_the_usual_form(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        main = databases["main"]
        run = await create_live_run(main, "w1", component_type="team", component_id="unconfigured")
        await store_events(main, run, "so far")
        await recover_runs(main, "w1")
        transcript = Transcript()
        transcript.add_content("so far")
        ending = Ending.failed("WORKER_LOST", DETAIL)
        assert_same(
            (await batches(main))[-1].events,
            event_rows.format_end(build_identity(run), ending, transcript),
        )


async def test_writes_of_the_old_owner_are_refused(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        main = databases["main"]
        run = await create_live_run(main, "w1")
        following = await store_events(main, run, "early")
        await recover_runs(main, "w1", may_still_run=True)
        before = await read_run(main)
        stored_batches = await batches(main)
        assert before.stopped_at is None
        assert not await main.write(events.append_batch("r1", 1, following, following, "late {}\n"))
        assert not await main.write(runs.finish(an_end("r1")))
        assert not await main.write(runs.claim("r1", 1, "w1", START))
        assert await read_run(main) == before
        assert await batches(main) == stored_batches


async def test_children_end_before_parents_with_their_own_content(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        main = databases["main"]
        root = await create_live_run(main, "w1", "root", component_type="workflow")
        team = await create_live_run(
            main, "w1", "team", component_type="team", parent_run_id="root"
        )
        leaf = await create_live_run(main, "w1", "leaf", parent_run_id="team")
        seq = await store_events(main, root, StepCompleted("first", 0, "of step one"))
        seq = await store_events(main, team, "from team", root=root, seq=seq)
        seq = await store_events(main, leaf, "from ", "leaf", root=root, seq=seq)
        assert await recover_runs(main, "w1") == ["leaf", "team", "root"]
        ends = {name: await read_run(main, name) for name in ("root", "team", "leaf")}
        assert {name: row.content for name, row in ends.items()} == {
            "root": "of step one", "team": "from team", "leaf": "from leaf",
        }  # fmt: skip
        assert {row.status for row in ends.values()} == {"ERROR"}
        assert loads(ends["root"].messages) == []
        assert {row.history for row in ends.values()} == {None}
        (last,) = [row for row in await batches(main, "root") if row.first_seq >= seq]
        assert last.events.startswith("WorkflowError ")
        assert orjson.loads(last.events.partition(" ")[2])["run_id"] == "root"
        assert await batches(main, "leaf") == await batches(main, "team") == []


async def test_open_tool_calls_are_closed(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        main = databases["main"]
        run = await create_live_run(main, "w1")
        await store_events(
            main,
            run,
            ToolCallStarted(tool("one", None)),
            ToolCallCompleted(tool("one", "3")),
            ToolCallStarted(tool("two", None)),
        )
        await recover_runs(main, "w1")
        tools = loads((await read_run(main)).tools)
        assert [(entry["tool_call_id"], entry["result"]) for entry in tools] == [
            ("one", "3"), ("two", "cancelled"),
        ]  # fmt: skip
        assert [entry["tool_call_error"] for entry in tools] == [False, True]


async def test_all_batches_are_read(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        main = databases["main"]
        run = await create_live_run(main, "w1")
        name, data, _ = event_rows.format_event(build_identity(run), Content("x"))
        for seq in range(200):
            line = encode_event(name, data)
            assert await main.write(events.append_batch("r1", 1, seq, seq, line))
        await recover_runs(main, "w1")
        assert (await read_run(main)).content == "x" * 200


async def test_unreadable_events_are_skipped(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        main = databases["main"]
        run = await create_live_run(main, "w1")
        seq = await store_events(main, run, "kept")
        torn = 'RunContent {"run_id": "r1", "content": "lo\nRunContent\nr1\nRunContent ["r1"]\n'
        assert await main.write(events.append_batch("r1", 1, seq, seq, torn))
        assert await recover_runs(main, "w1") == ["r1"]
        assert (await read_run(main)).content == "kept"


async def test_only_live_runs_of_the_worker_are_ended(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        main = databases["main"]
        await create_live_run(main, "w1", "mine")
        await create_live_run(main, "w2", "anothers")
        await create_live_run(main, None, "nobodys")
        await create_live_run(main, "w1", "done")
        await main.write(runs.finish(an_end("done")))
        done = await read_run(main, "done")
        assert await recover_runs(main, "w1") == ["mine"]
        assert await read_run(main, "done") == done
        assert (await read_run(main, "anothers")).status == "RUNNING"
        assert (await read_run(main, "nobodys")).status == "PENDING"
        assert await recover_runs(main, None) == ["nobodys"]
        assert (await read_run(main, "nobodys")).error_code == "WORKER_LOST"


async def test_concurrent_recoveries_end_each_run_once(shared: SharedDatabases) -> None:
    async with shared.open() as one, shared.open() as two:
        names = [f"r{number:03}" for number in range(150)]
        for name in names:
            await create_live_run(one["main"], "w1", name)
        found = await asyncio.gather(
            recover_runs(one["main"], "w1"),
            recover_runs(two["main"], "w1"),
            recover_runs(one["main"], "w1"),
        )
        assert sorted(run_id for ended in found for run_id in ended) == names
        rows = [await read_run(one["main"], name) for name in names]
        assert {row.attempt for row in rows} == {2}


async def test_failure_of_one_run_does_not_block_the_others(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        main = databases["main"]
        for name in ("before", "broken", "behind"):
            await create_live_run(main, "w1", name)
        await main.write(_spoil_final_status())
        with pytest.raises(errors.AgentctlError):
            await recover_runs(main, "w1")
        states = [(await read_run(main, name)).status for name in ("before", "broken", "behind")]
        assert states == ["ERROR", "RUNNING", "ERROR"]


@unit
def _spoil_final_status() -> Steps[None]:
    """Make the write of a final status fail in the database, like corrupt data would."""
    yield Statement(
        Sql(
            "CREATE TRIGGER spoil BEFORE UPDATE ON runs WHEN old.run_id = 'broken'"
            " BEGIN SELECT raise(abort, 'spoiled'); END"
        )
    )


@pytest.mark.parametrize("pauses", [False, True])
async def test_reported_use_of_a_lost_run_counts(shared: SharedDatabases, pauses: bool) -> None:
    async with shared.open() as databases:
        main = databases["main"]
        await create_live_run(main, "w1")
        transcript = Transcript()
        for model, count in (("small", 3), ("large", 40), ("small", 500)):
            transcript.begin_answer(model)
            transcript.set_usage({"output_tokens": count, "total_tokens": count})
            transcript.end_answer([], "stop")

        counters = encode_counters(transcript)
        if pauses:
            texts = {"content": "", "messages": "[]", "tools": "[]", "spans": "[]"}
            at = START + 10
            await main.write(
                runs.pause(RunPause("r1", 1, "PENDING", at, **counters._asdict(), **texts))
            )
            await main.write(runs.claim_leg("r1", "w1", at, NewVersion(None)))
        else:
            await main.write(quotas.report("r1", 543, 1_046, counters))
        live = await read_use(main)
        await recover_runs(main, "w1")

        ended = await read_run(main)
        assert ended.error_code == "WORKER_LOST"
        assert loads(ended.metrics)["total_tokens"] == 543
        used = await read_use(main)
        assert (used.tokens, used.cost, used.live_tokens) == (543, 1_046, 0)
        assert pauses or (live.tokens, live.cost, live.live_tokens) == (543, 1_046, 543)


@pytest.mark.parametrize("by_model", [True, False])
def test_use_that_the_transcript_has_counts_once(by_model: bool) -> None:
    transcript = Transcript()
    for model in ("small", "large"):
        transcript.begin_answer(model)
        transcript.set_usage({"output_tokens": 3, "total_tokens": 3})
        transcript.end_answer([], "stop")
    stored = encode_counters(transcript)
    # An earlier version stored no counters by model at a pause.
    take_counters(transcript, stored if by_model else stored._replace(model_metrics=None))
    assert transcript.metrics["total_tokens"] == 6


async def read_use(database: Database) -> Used:
    """Return what all runs have used; a token of the model `small` costs 2, one of `large` 1."""

    def cost_of(model: str, counters: Mapping[str, int]) -> int:
        return {"small": 2, "large": 1}[model] * counters["total_tokens"]

    scope = UsageScope("day", 0, 2**60, EVERYONE)
    return (await database.read(quotas.read_used(scope, (), cost_of))).get("", Used())
