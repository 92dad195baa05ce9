"""What becomes of the runs of a dead worker."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from agentctl import errors
from agentctl.runs import event_format
from agentctl.runs.recovery import LOST_SEQ_STEP, recover_runs
from agentctl.runs.states import Ending
from agentctl.runtime.events import Content, StepCompleted, ToolCallCompleted, ToolCallStarted
from agentctl.runtime.transcript import Transcript
from agentctl.store.database import Database
from agentctl.store.repositories import events, runs, sessions
from agentctl.store.repositories.events import EventRow
from agentctl.store.visibility import EVERYONE
from tests.runs.rig import Rig, a_live_run, identity, loads, said, stored
from tests.store.made import START, an_end

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


async def test_a_run_ends_as_lost_and_keeps_what_was_stored(rig: Rig) -> None:
    async with rig.open() as databases:
        main = databases["main"]
        run = await a_live_run(main, "w1")
        await said(main, run, "Hello, ", "wo\u2028rld\x85")
        assert await recover_runs(main, "w1") == ["r1"]
        ended = await stored(main)
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


async def test_a_run_without_events_keeps_its_question(rig: Rig) -> None:
    async with rig.open() as databases:
        main = databases["main"]
        await a_live_run(main, "w1")
        assert await recover_runs(main, "w1") == ["r1"]
        ended = await stored(main)
        assert ended.status == "ERROR"
        assert ended.content == ""
        assert [entry["content"] for entry in loads(ended.history)] == ["hello"]
        assert await batches(main) == []


@pytest.mark.parametrize(
    ("given", "told"),
    [("no need", "no need; the worker was lost"), (None, "The worker was lost")],
)
async def test_one_that_was_to_stop_ends_as_cancelled(
    rig: Rig, given: str | None, told: str
) -> None:
    async with rig.open() as databases:
        main = databases["main"]
        run = await a_live_run(main, "w1")
        following = await said(main, run, "part")
        await asked_to_stop(main, "r1", given)
        assert await recover_runs(main, "w1") == ["r1"]
        ended = await stored(main)
        assert (ended.status, ended.cancel_reason) == ("CANCELLED", told)
        assert (ended.cancel_requested_at, ended.cancel_requested_by) == (START + 5, "ann")
        assert (ended.error_code, ended.error_detail) == (None, None)
        last = (await batches(main))[-1]
        assert last.first_seq == last.last_seq == following - 1 + LOST_SEQ_STEP
        transcript = Transcript()
        transcript.add_content("part")
        assert_same(
            last.events,
            event_format.format_end(identity(run), Ending.cancelled("ann", told), transcript),
        )


def assert_same(line: str, event: tuple[str, bytes]) -> None:
    """A stored line is that event, but for the time."""
    name, _, data = line.partition(" ")
    assert line.endswith("}\n")
    assert name == event[0]
    there, wanted = orjson.loads(data), orjson.loads(event[1])
    assert list(there) == list(wanted)
    assert there | {"created_at": 0} == wanted | {"created_at": 0}


async def test_the_last_event_is_that_of_any_other_end(rig: Rig) -> None:
    async with rig.open() as databases:
        main = databases["main"]
        run = await a_live_run(main, "w1", component_type="team", component_id="unconfigured")
        await said(main, run, "so far")
        await recover_runs(main, "w1")
        transcript = Transcript()
        transcript.add_content("so far")
        ending = Ending.failed("WORKER_LOST", DETAIL)
        assert_same(
            (await batches(main))[-1].events,
            event_format.format_end(identity(run), ending, transcript),
        )


async def test_what_the_old_owner_still_writes_is_refused(rig: Rig) -> None:
    async with rig.open() as databases:
        main = databases["main"]
        run = await a_live_run(main, "w1")
        following = await said(main, run, "early")
        await recover_runs(main, "w1", may_still_run=True)
        before, told = await stored(main), await batches(main)
        assert before.stopped_at is None
        assert not await main.write(events.append_batch("r1", 1, following, following, "late {}\n"))
        assert not await main.write(runs.finish(an_end("r1")))
        assert not await main.write(runs.claim("r1", 1, "w1", START))
        assert await stored(main) == before
        assert await batches(main) == told


async def test_children_end_before_their_parents_with_their_own_words(rig: Rig) -> None:
    async with rig.open() as databases:
        main = databases["main"]
        root = await a_live_run(main, "w1", "root", component_type="workflow")
        team = await a_live_run(main, "w1", "team", component_type="team", parent_run_id="root")
        leaf = await a_live_run(main, "w1", "leaf", parent_run_id="team")
        seq = await said(main, root, StepCompleted("first", 0, "of step one"))
        seq = await said(main, team, "from team", root=root, seq=seq)
        seq = await said(main, leaf, "from ", "leaf", root=root, seq=seq)
        assert await recover_runs(main, "w1") == ["leaf", "team", "root"]
        ends = {name: await stored(main, name) for name in ("root", "team", "leaf")}
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


async def test_open_calls_of_tools_are_closed(rig: Rig) -> None:
    async with rig.open() as databases:
        main = databases["main"]
        run = await a_live_run(main, "w1")
        await said(
            main,
            run,
            ToolCallStarted(tool("one", None)),
            ToolCallCompleted(tool("one", "3")),
            ToolCallStarted(tool("two", None)),
        )
        await recover_runs(main, "w1")
        tools = loads((await stored(main)).tools)
        assert [(entry["tool_call_id"], entry["result"]) for entry in tools] == [
            ("one", "3"), ("two", "cancelled"),
        ]  # fmt: skip
        assert [entry["tool_call_error"] for entry in tools] == [False, True]


async def test_many_batches_are_all_read(rig: Rig) -> None:
    async with rig.open() as databases:
        main = databases["main"]
        run = await a_live_run(main, "w1")
        name, data = event_format.format_event(identity(run), Content("x"))
        for seq in range(200):
            line = f"{name} {data.decode()}\n"
            assert await main.write(events.append_batch("r1", 1, seq, seq, line))
        await recover_runs(main, "w1")
        assert (await stored(main)).content == "x" * 200


async def test_what_cannot_be_read_is_passed_over(rig: Rig) -> None:
    async with rig.open() as databases:
        main = databases["main"]
        run = await a_live_run(main, "w1")
        seq = await said(main, run, "kept")
        torn = 'RunContent {"run_id": "r1", "content": "lo\nRunContent\nr1\nRunContent ["r1"]\n'
        assert await main.write(events.append_batch("r1", 1, seq, seq, torn))
        assert await recover_runs(main, "w1") == ["r1"]
        assert (await stored(main)).content == "kept"


async def test_only_the_runs_of_that_worker_that_have_not_ended_are_touched(rig: Rig) -> None:
    async with rig.open() as databases:
        main = databases["main"]
        await a_live_run(main, "w1", "mine")
        await a_live_run(main, "w2", "anothers")
        await a_live_run(main, None, "nobodys")
        await a_live_run(main, "w1", "done")
        await main.write(runs.finish(an_end("done")))
        done = await stored(main, "done")
        assert await recover_runs(main, "w1") == ["mine"]
        assert await stored(main, "done") == done
        assert (await stored(main, "anothers")).status == "RUNNING"
        assert (await stored(main, "nobodys")).status == "PENDING"
        assert await recover_runs(main, None) == ["nobodys"]
        assert (await stored(main, "nobodys")).error_code == "WORKER_LOST"


async def test_several_that_recover_at_once_end_each_run_once(rig: Rig) -> None:
    async with rig.open() as one, rig.open() as two:
        names = [f"r{number:03}" for number in range(150)]
        for name in names:
            await a_live_run(one["main"], "w1", name)
        found = await asyncio.gather(
            recover_runs(one["main"], "w1"),
            recover_runs(two["main"], "w1"),
            recover_runs(one["main"], "w1"),
        )
        assert sorted(run_id for ended in found for run_id in ended) == names
        rows = [await stored(one["main"], name) for name in names]
        assert {row.attempt for row in rows} == {2}


async def test_one_that_cannot_be_ended_does_not_keep_the_others(rig: Rig) -> None:
    async with rig.open() as databases:
        main = databases["main"]
        for name in ("before", "broken", "behind"):
            await a_live_run(main, "w1", name)
        await main.write(_spoiled("broken"))
        with pytest.raises(errors.AgentctlError):
            await recover_runs(main, "w1")
        states = [(await stored(main, name)).status for name in ("before", "broken", "behind")]
        assert states == ["ERROR", "RUNNING", "ERROR"]


def _spoiled(run_id: str) -> Any:
    """Make the end of a run fail in the database, as damage would."""
    from agentctl.store.database import Sql, Statement

    yield Statement(
        Sql(
            "CREATE TRIGGER spoil BEFORE UPDATE ON runs WHEN old.run_id = 'broken'"
            " BEGIN SELECT raise(abort, 'spoiled'); END"
        ),
    )
