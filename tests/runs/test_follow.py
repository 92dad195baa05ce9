"""Followers in the same process, in another one, late and slow: no gap, no repeat."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from agentctl import errors
from agentctl.config.settings import Approvals
from agentctl.interface.requests import CancelRequest, ResumeRequest, RunRequest, StreamEvent
from agentctl.records.kinds import ComponentKind
from agentctl.records.times import now
from agentctl.runs.follow import follow as follow_module
from agentctl.runs.follow.follow import (
    PORTION_BYTES,
    flatten,
    follow_run,
    wait_in_queue,
    wait_until_final,
)
from agentctl.runs.life.finish import store_pause
from agentctl.runs.log import stream
from agentctl.runs.log.event_rows import LOST_SEQ_STEP
from agentctl.runs.log.hub import FollowedRun, News
from agentctl.runs.log.stream import Stream
from agentctl.runs.states import Ending, Pause
from agentctl.runs.workers.recovery import recover_runs
from agentctl.runtime.pauses import Ask
from agentctl.service.service import Service, ServiceOperations
from agentctl.store.database import Database, Sql, Work
from agentctl.store.repositories import events, sessions
from agentctl.work import event_loop
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deployment import Deployment
from tests.kit.service import (
    collect_run_events,
    event_data,
    open_service,
    streamed_run,
    user,
    wait_for_live_run,
    wait_for_running,
)
from tests.runs.bench import open_bench
from tests.runs.shared_databases import create_live_run, store_events


@contextlib.asynccontextmanager
async def two_services(deployment: Deployment) -> AsyncIterator[tuple[Service, Service]]:
    """Open two services on the same files, like two processes."""
    async with open_service(deployment) as owner, open_service(deployment) as other:
        yield owner, other


@contextlib.asynccontextmanager
async def start_hanging_run(service: Service) -> AsyncIterator[str]:
    """Start a run that continues until it is stopped; yield its id when it reads nothing more."""
    port = user(service)
    async with streamed_run(port, "agent", "hang", message="x", session_id="s1") as (run, _):
        live = await wait_for_live_run(service, run["run_id"])
        await wait_until(lambda: live.transcript.messages)
        yield run["run_id"]


async def resume(
    port: ServiceOperations,
    run_id: str,
    after: int = -1,
    *,
    kind: ComponentKind = "agent",
    component_id: str = "echo",
) -> list[StreamEvent]:
    """Return the events after an event, up to the last one."""
    request = ResumeRequest("s1", after)
    return [event async for event in port.runs.resume(kind, component_id, run_id, request)]


async def cancel_run(port: ServiceOperations, run_id: str, component_id: str = "trickle") -> None:
    answer = await port.runs.cancel("agent", component_id, run_id, CancelRequest("s1", 30))
    assert answer.value["cancel"] == "stopped"


def follow(service: Service, run_id: str, after: int = -1) -> AsyncIterator[StreamEvent]:
    hosting = service.hosting
    return flatten(
        follow_run(hosting.engine, main_database(service), hosting.changes, run_id, after)
    )


def main_database(service: Service) -> Database:
    return service.hosting.databases["main"]


def check_numbers(found: list[StreamEvent]) -> None:
    assert [event.seq for event in found] == list(range(len(found)))


async def test_follower_in_another_process_gets_the_same_events(deployment: Deployment) -> None:
    async with two_services(deployment) as (owner, other):
        port = user(owner)
        async with streamed_run(port, "agent", "trickle", message="x", session_id="s1") as (
            run,
            told,
        ):
            run_id = run["run_id"]
            follows = [
                asyncio.create_task(resume(user(service), run_id, component_id="trickle"))
                for service in (owner, other, other)
            ]
            live = await wait_for_live_run(owner, run_id)
            await wait_until(lambda: live.stream.next > 20)
            await cancel_run(user(other), run_id)
            first, *rest = await asyncio.gather(told, *follows)
            assert all(one == first for one in rest)
            check_numbers(first)
            assert first[-1].name == "RunCancelled"


async def test_stored_stream_resumes_after_any_event(deployment: Deployment) -> None:
    async with two_services(deployment) as (owner, other):
        whole = await collect_run_events(
            user(owner), "team", "crew", message="ask echo", session_id="s1"
        )
        run_id = str(event_data(whole[0])["run_id"])
        for service in (owner, other):
            for after in range(-1, len(whole) + 1):
                found = await resume(user(service), run_id, after, kind="team", component_id="crew")
                assert found == whole[after + 1 :]
    async with open_service(deployment) as later:
        found = await resume(user(later), run_id, 2, kind="team", component_id="crew")
        assert found == whole[3:]


async def test_live_stream_resumes_after_any_event(deployment: Deployment) -> None:
    async with two_services(deployment) as (owner, other):
        port = user(owner)
        async with streamed_run(port, "agent", "trickle", message="x", session_id="s1") as (
            run,
            told,
        ):
            live = await wait_for_live_run(owner, run["run_id"])
            await wait_until(lambda: live.stream.next > 10)
            follows = [
                asyncio.create_task(
                    resume(user(service), run["run_id"], after, component_id="trickle")
                )
                for service in (owner, other)
                for after in (-1, 0, 3, 9, 14)
            ]
            await wait_until(lambda: live.stream.next > 25)
            await cancel_run(port, run["run_id"])
            whole = await told
            for found in await asyncio.gather(*follows):
                assert found == whole[found[0].seq :]


async def test_slow_follower_reads_stored_events(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "WINDOW_BYTES", 2_000)
    async with open_service(deployment) as service:
        port = user(service)
        slow = port.runs.stream("agent", "trickle", RunRequest("x", "s1"))
        first = await anext(slow)
        live = service.hosting.engine.find_run(event_data(first)["run_id"])
        assert live is not None
        await wait_until(lambda: live.stream.events_from(30) is None)
        found = [first]
        async for event in slow:
            found.append(event)
            if event.seq == 40:
                await cancel_run(port, live.run_id)
        check_numbers(found)
        assert found[-1].name == "RunCancelled"
        assert live.stream.events_from(0) is None


async def test_long_stream_is_read_in_portions(deployment: Deployment) -> None:
    words = " ".join(f"word{number:0100}" for number in range(1_500))
    async with two_services(deployment) as (owner, other):
        whole = await collect_run_events(
            user(owner), "agent", "echo", message=words, session_id="s1"
        )
        assert sum(len(event.data) for event in whole) > 4 * PORTION_BYTES
        check_numbers(whole)
        said = "".join(event_data(event)["content"] for event in whole[1:-1])
        assert said == event_data(whole[-1])["content"] == words
        run_id = str(event_data(whole[0])["run_id"])
        assert await resume(user(other), run_id) == whole
        middle = len(whole) // 2
        assert await resume(user(other), run_id, middle) == whole[middle + 1 :]


async def test_portion_of_stored_events_ends_with_the_batch_that_fills_it(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "PORTION_BYTES", 1)
    async with open_service(deployment) as service:
        database = main_database(service)
        run = await create_live_run(database, "dead", component_id="echo")
        seq = 0
        for _ in range(3):
            seq = await store_events(database, run, "one ", "two", seq=seq)
        assert await recover_runs(database, "dead") == ["r1"]
        hosting = service.hosting
        following = follow_run(hosting.engine, database, hosting.changes, "r1", -1)
        portions = [[event.seq for event in portion] async for portion in following]
        assert portions == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [8 + LOST_SEQ_STEP]]


async def test_run_that_ends_between_two_reads_loses_no_events(deployment: Deployment) -> None:
    chance = random.Random(7)

    async def one(port: ServiceOperations, elsewhere: ServiceOperations) -> None:
        request = RunRequest("one two three", "s1", background=True)
        run = (await port.runs.create("agent", "echo", request)).value
        await asyncio.sleep(chance.random() * 0.1)
        for follower in (elsewhere, port):
            found = await resume(follower, run["run_id"])
            check_numbers(found)
            assert [event.name for event in found if "Content" not in event.name] == [
                "RunStarted", "RunCompleted",
            ]  # fmt: skip

    async with two_services(deployment) as (owner, other):
        await asyncio.gather(*(one(user(owner), user(other)) for _ in range(40)))


async def test_run_without_stored_events_has_content_and_end(deployment: Deployment) -> None:
    async with two_services(deployment) as (owner, other):
        run = (await user(owner).runs.create("agent", "echo", RunRequest("hello", "s1"))).value
        for service in (owner, other):
            found = await resume(user(service), run["run_id"])
            assert [(event.seq, event.name) for event in found] == [
                (0, "RunContent"), (1, "RunCompleted"),
            ]  # fmt: skip
            content, end = map(event_data, found)
            assert content["content"] == end["content"] == "hello"
            assert end["metrics"] == run["metrics"]
            assert content["agent_name"] == "Echo"
            assert await resume(user(service), run["run_id"], 0) == found[1:]
            assert await resume(user(service), run["run_id"], 1) == []


@pytest.mark.parametrize("here", [True, False])
async def test_follower_waits_for_a_live_run_without_stored_events(
    deployment: Deployment, here: bool
) -> None:
    async with two_services(deployment) as (owner, other):
        port = user(owner)
        waiting = asyncio.create_task(port.runs.create("agent", "hang", RunRequest("x", "s1")))
        run_id = (await wait_for_running(port))["run_id"]
        follower = user(owner if here else other)
        # A client may have got event 0 from a process that died before it stored it.
        following = [
            asyncio.create_task(resume(follower, run_id, after, component_id="hang"))
            for after in (-1, 0)
        ]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in following)
        await port.runs.cancel("agent", "hang", run_id, CancelRequest("s1", 30, "enough"))
        await waiting
        for (end,) in await asyncio.gather(*following):
            assert (end.seq, end.name) == (1, "RunCancelled")
            assert event_data(end)["reason"] == "enough"


async def test_member_run_has_content_and_end(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        port = user(service)
        whole = await collect_run_events(port, "team", "crew", message="ask echo", session_id="s1")
        member = next(event_data(event) for event in whole if event.name == "RunCompleted")
        found = await resume(port, member["run_id"])
        assert [event.name for event in found] == ["RunContent", "RunCompleted"]
        assert event_data(found[1])["parent_run_id"] == event_data(whole[0])["run_id"]
        assert event_data(found[1])["agent_name"] == "echo"


async def test_deleted_events_are_rebuilt_from_the_row(deployment: Deployment) -> None:
    async with two_services(deployment) as (owner, other):
        whole = await collect_run_events(
            user(owner), "agent", "http-500", message="x", session_id="s1"
        )
        run_id = str(event_data(whole[0])["run_id"])
        assert await main_database(owner).write(events.delete_older(now() + 1))
        (end,) = await resume(user(other), run_id, component_id="http-500")
        assert (end.seq, end.name) == (1, "RunError")
        assert event_data(end)["error"] == event_data(whole[-1])["error"]


async def test_end_of_an_orphaned_run_follows_delivered_events(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        database = main_database(service)
        run = await create_live_run(database, "dead", component_id="echo")
        last = await store_events(database, run, "one ", "two") - 1
        late = asyncio.create_task(resume(user(service, run.user_id), "r1", last + 3))
        early = asyncio.create_task(resume(user(service, run.user_id), "r1"))
        await asyncio.sleep(0.05)
        assert await recover_runs(database, "dead") == ["r1"]
        found = await early
        assert [event.seq for event in found] == [0, 1, 2, last + LOST_SEQ_STEP]
        assert found[-1].name == "RunError"
        assert event_data(found[-1])["error"]["code"] == "WORKER_LOST"
        assert await late == found[-1:]


async def test_events_of_a_paused_run_without_stored_ones_have_its_open_questions(
    deployment: Deployment,
) -> None:
    async with open_bench(deployment) as bench:
        member = await bench.start_member()
        for run, call_id in ((member, "call-1"), (bench.root, "call-2")):
            asked = Pause(
                [Ask("approval", call_id, "pay"), Ask("approval", f"{call_id}b", "pay")], {}
            )
            assert isinstance(await store_pause(run, asked, Approvals(), lambda: None), Pause)
        decide = "UPDATE approvals SET status = 'rejected', decided_at = 5 WHERE tool_call_id = :id"
        for call_id in ("call-1b", "call-2b"):
            await bench.database.write(Sql(decide).execute(id=call_id))
        # Those of a root run are the ones of its tree.
        for run_id, calls in (("root", ["call-1", "call-2"]), ("member", ["call-1"])):
            *_, last = await collect_events(follow(bench.service, run_id))
            assert last.name == "RunPaused"
            assert [each["tool_call_id"] for each in event_data(last)["approvals"]] == calls
        await bench.end(bench.root)
        assert "approvals" not in event_data(
            (await collect_events(follow(bench.service, "root")))[-1]
        )


@pytest.mark.parametrize("damaged", ["RunContent [1, 2\n", "RunContent [1, 2", ""])
@pytest.mark.parametrize("batches", [1, 5])
async def test_damaged_events_do_not_stop_the_stream(
    deployment: Deployment, batches: int, damaged: str
) -> None:
    async with open_service(deployment) as service:
        database = main_database(service)
        seq = 0
        run = await create_live_run(database, "dead", component_id="echo")
        for _ in range(batches):
            seq = await store_events(database, run, "one ", "two", seq=seq)
        damage = Sql("UPDATE run_events SET events = :damaged WHERE run_id = 'r1'")
        await database.write(damage.execute(damaged=damaged))
        assert await recover_runs(database, "dead") == ["r1"]
        async with asyncio.timeout(PATIENCE):
            found = await resume(user(service, run.user_id), "r1")
        *shown, last = [(event.seq, event.name) for event in found]
        assert last == (seq - 1 + LOST_SEQ_STEP, "RunError")
        assert len(shown) == (batches if damaged.endswith("\n") else 0)


async def test_stream_of_which_all_events_are_damaged_ends(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        database = main_database(service)
        run = await create_live_run(database, "dead", component_id="echo")
        await store_events(database, run, "one ", "two")
        assert await recover_runs(database, "dead") == ["r1"]
        await database.write(Sql("UPDATE run_events SET events = ''").execute())
        async with asyncio.timeout(PATIENCE):
            assert await resume(user(service, run.user_id), "r1") == []


async def test_follower_waits_through_the_silence_of_another_process(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "CHANGE_WAIT_SECONDS", 0.01)
    wait = FollowedRun.wait
    silences = 0

    async def count_silences(followed: FollowedRun, position: int, seconds: float) -> News | None:
        nonlocal silences
        news = await wait(followed, position, seconds)
        silences += news is None
        return news

    monkeypatch.setattr(FollowedRun, "wait", count_silences)
    async with two_services(deployment) as (owner, other), start_hanging_run(owner) as run_id:
        following = asyncio.create_task(collect_events(follow(other, run_id, 0)))
        await wait_until(lambda: silences >= 3 or following.done())
        assert not following.done()
        await user(owner).runs.cancel("agent", "hang", run_id, CancelRequest("s1", 30))
        assert [event.name for event in await following] == ["RunCancelled"]


async def test_follower_of_a_quiet_run_does_not_poll(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_services(deployment) as (owner, other), start_hanging_run(owner) as run_id:
        database = main_database(other)
        reads = 0
        read = database.read

        async def count_read(work: Work[Any], **options: Any) -> Any:
            nonlocal reads
            reads += 1
            return await read(work, **options)

        monkeypatch.setattr(database, "read", count_read)
        following = asyncio.create_task(collect_events(follow(other, run_id, 0)))
        await wait_until(lambda: reads)
        before = reads
        for _ in range(500):
            await asyncio.sleep(0)
        assert reads - before <= 2
        await user(owner).runs.cancel("agent", "hang", run_id, CancelRequest("s1", 30))
        assert [event.name for event in await following] == ["RunCancelled"]


async def test_follower_in_the_same_process_does_not_read_the_database(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse_read(work: Work[Any], **options: Any) -> Any:
        raise errors.Unavailable("The database does not answer")

    monkeypatch.setattr(follow_module, "RETRY_LIMIT_SECONDS", 0)
    async with open_service(deployment) as service, start_hanging_run(service) as run_id:
        with monkeypatch.context() as refusing:
            refusing.setattr(main_database(service), "read", refuse_read)
            following = follow(service, run_id)
            assert (await anext(following)).name == "RunStarted"
            rest = asyncio.create_task(collect_events(following))
        await user(service).runs.cancel("agent", "hang", run_id, CancelRequest("s1", 30))
        assert [event.name for event in await rest] == ["RunCancelled"]


async def test_follower_waits_for_a_busy_database_until_the_shutdown(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_service(deployment) as service:
        port = user(service)
        run = (await port.runs.create("agent", "echo", RunRequest("hello", "s1"))).value
        database = main_database(service)
        refusals = 2
        read = database.read

        async def refuse_read(work: Work[Any], **options: Any) -> Any:
            nonlocal refusals
            refusals -= 1
            if refusals >= 0:
                raise errors.Unavailable("The database is busy")
            return await read(work, **options)

        monkeypatch.setattr(database, "read", refuse_read)
        found = await collect_events(follow(service, run["run_id"]))
        assert [event.name for event in found] == ["RunContent", "RunCompleted"]
        assert refusals < 0
        refusals = 1_000
        # Nothing but the shutdown ends the wait.
        monkeypatch.setattr(follow_module, "RETRY_LIMIT_SECONDS", 10 * PATIENCE)
        service.hosting.engine.closing.set()
        with pytest.raises(errors.Unavailable) as caught:
            async with asyncio.timeout(PATIENCE):
                await collect_events(follow(service, run["run_id"]))
        assert not isinstance(caught.value, errors.OutcomeUnknown)
        refusals = 0


def refuse_reads(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the database refuse all reads, for longer than a follower waits."""

    async def refuse(work: Work[Any], **options: Any) -> Any:
        raise errors.Unavailable("The database does not answer")

    monkeypatch.setattr(follow_module, "RETRY_LIMIT_SECONDS", 0)
    monkeypatch.setattr(event_loop, "RETRY_LIMIT_SECONDS", 0)
    monkeypatch.setattr(database, "read", refuse)


async def test_follower_of_a_run_that_its_request_has_started_names_the_run(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client must not start the run again."""
    async with open_service(deployment) as service:
        hosting = service.hosting
        database = main_database(service)
        with monkeypatch.context() as refusing:
            refuse_reads(database, refusing)
            following = follow_run(
                hosting.engine, database, hosting.changes, "r1", -1, is_started=True
            )
            with pytest.raises(errors.OutcomeUnknown) as caught:
                await anext(following)
        assert caught.value.run_id == "r1"


async def test_begun_stream_ends_without_a_last_event_if_the_database_stays_away(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_services(deployment) as (owner, other), start_hanging_run(owner) as run_id:
        following = follow(other, run_id)
        assert (await anext(following)).name == "RunStarted"
        with monkeypatch.context() as refusing:
            refuse_reads(main_database(other), refusing)
            monkeypatch.setattr(FollowedRun, "wait", report_a_gap)
            async with asyncio.timeout(PATIENCE):
                assert await collect_events(following) == []
        assert "its database is unavailable for too long" in caplog.text


async def report_a_gap(followed: FollowedRun, position: int, seconds: float) -> News:
    """Tell a follower that the hub has dropped the events that come next."""
    return News(None, settled=False)


async def test_following_an_unknown_run_raises_not_found(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        hosting = service.hosting
        with pytest.raises(errors.NotFound):
            await anext(follow(service, "nothing"))
        with pytest.raises(errors.NotFound):
            await wait_until_final(
                hosting.engine, main_database(service), hosting.changes, "nothing"
            )


async def test_wait_for_a_run_ends_with_it(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "CHANGE_WAIT_SECONDS", 0.01)
    async with two_services(deployment) as (owner, other), start_hanging_run(owner) as run_id:
        waits = [
            asyncio.create_task(
                wait_until_final(
                    service.hosting.engine, main_database(service), service.hosting.changes, run_id
                )
            )
            for service in (owner, other)
        ]
        # Longer than the interval in which a wait looks for a shutdown.
        await asyncio.sleep(0.05)
        assert not any(wait.done() for wait in waits)
        await user(owner).runs.cancel("agent", "hang", run_id, CancelRequest("s1", 30))
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*waits)


async def test_wait_for_a_run_of_this_process_does_not_read_the_database(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_service(deployment) as service, start_hanging_run(service) as run_id:
        hosting = service.hosting
        database = main_database(service)
        # The worker of the service reads, too, when a heartbeat is due.
        readers: list[asyncio.Task[Any] | None] = []
        read = database.read

        async def keep_reader(work: Work[Any], **options: Any) -> Any:
            readers.append(asyncio.current_task())
            return await read(work, **options)

        monkeypatch.setattr(database, "read", keep_reader)
        live = await wait_for_live_run(service, run_id)
        waiting = wait_until_final(hosting.engine, database, hosting.changes, run_id)
        task = asyncio.create_task(waiting)
        for _ in range(20):
            await asyncio.sleep(0)
        assert task not in readers
        live.stop(Ending.cancelled("me", None))
        async with asyncio.timeout(PATIENCE):
            await task


@pytest.mark.parametrize("is_closing", [True, False])
async def test_wait_in_the_queue_ends_at_the_shutdown_if_the_database_is_away(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, is_closing: bool
) -> None:
    async with open_service(deployment) as service:
        hosting = service.hosting
        database = main_database(service)
        waiting = wait_in_queue(hosting.engine, database, hosting.changes, "r1")
        with monkeypatch.context() as refusing:
            refuse_reads(database, refusing)
            if is_closing:
                hosting.engine.closing.set()
                # Nothing but the shutdown ends the wait.
                refusing.setattr(event_loop, "RETRY_LIMIT_SECONDS", 10 * PATIENCE)
                async with asyncio.timeout(PATIENCE):
                    await waiting
            else:
                with pytest.raises(errors.Unavailable):
                    await waiting


class OneRun:
    """An engine that executes one run, of which it has only the stream."""

    def __init__(self, stream: Stream) -> None:
        self._live = SimpleNamespace(parent=None, stream=stream)
        self.closing = asyncio.Event()

    def find_run(self, run_id: str) -> Any:
        return self._live


def publish(stream: Stream, *numbers: int) -> None:
    for number in range(*numbers):
        stream.publish("RunContent", b'{"content":"%03d"}' % number)


async def store(database: Database, stream: Stream) -> None:
    """Store the events of a run in batches of two, and drop them from memory."""
    while (batch := stream.unstored_batch()) is not None:
        last = batch.first_seq + 1
        lines = "".join(batch.events.splitlines(keepends=True)[:2])
        assert await database.write(events.append_batch("r1", 1, last - 1, last, lines))
        stream.mark_stored(last)


async def test_slow_follower_that_read_from_memory_repeats_no_stored_event(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have stored events at hand that it has meanwhile got from memory."""
    monkeypatch.setattr(follow_module, "PORTION_BYTES", 1)
    async with open_service(deployment) as service:
        database = main_database(service)
        await create_live_run(database, "w1", component_id="echo")
        followed = Stream("r1", recorded=True)
        engine: Any = OneRun(followed)
        following = flatten(follow_run(engine, database, service.hosting.changes, "r1", -1))
        # The last four events stay in memory.
        monkeypatch.setattr(stream, "WINDOW_BYTES", 4 * len(b'{"content":"000"}'))
        publish(followed, 10)
        await store(database, followed)
        assert followed.events_from(5) is None
        found = [(await anext(following)).seq for _ in range(8)]
        publish(followed, 10, 14)
        found += [(await anext(following)).seq for _ in range(6)]
        publish(followed, 14, 30)
        await store(database, followed)
        assert followed.events_from(14) is None
        followed.close(None)
        found += [event.seq async for event in following]
        assert found == list(range(30))


async def test_follower_of_many_events_lets_other_tasks_work(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "PORTION_BYTES", 1)
    monkeypatch.setattr(event_loop, "STEP_SECONDS", 0)
    async with open_service(deployment) as service:
        followed = Stream("r1", recorded=True)
        publish(followed, 50)
        followed.close(None)
        engine: Any = OneRun(followed)
        database = main_database(service)
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(count_turns())
        following = follow_run(engine, database, service.hosting.changes, "r1", -1)
        assert len([portion async for portion in following]) == 50
        assert turns >= 25
        other.cancel()


async def test_stream_of_a_deleted_run_stops_without_last_event(deployment: Deployment) -> None:
    async with two_services(deployment) as (owner, other), start_hanging_run(owner) as run_id:
        found = follow(other, run_id)
        assert (await anext(found)).name == "RunStarted"
        behind = asyncio.create_task(collect_events(follow(other, run_id, 0)))
        await asyncio.sleep(0.05)
        await main_database(owner).write(sessions.delete("s1"))
        assert [event async for event in found] == []
        with pytest.raises(errors.NotFound):
            await behind


async def collect_events(found: AsyncIterator[StreamEvent]) -> list[StreamEvent]:
    return [event async for event in found]


def follow_from_start(service: Service, run_id: str) -> AsyncIterator[StreamEvent]:
    return user(service).runs.resume("agent", "hang", run_id, ResumeRequest("s1"))


async def test_shutdown_releases_followers_of_other_processes(deployment: Deployment) -> None:
    async with open_service(deployment) as owner, start_hanging_run(owner) as run_id:
        async with open_service(deployment) as other:
            hosting = other.hosting
            following = follow_from_start(other, run_id)
            assert (await anext(following)).name == "RunStarted"
            rest = asyncio.create_task(collect_events(following))
            waiting = asyncio.create_task(
                wait_until_final(hosting.engine, main_database(other), hosting.changes, run_id)
            )
            await asyncio.sleep(0.05)
            await other.hosting.engine.close()
            assert await rest == []
            with pytest.raises(errors.Unavailable):
                await waiting
        assert owner.hosting.engine.find_run(run_id) is not None


async def test_shutdown_sends_the_last_event_to_followers(deployment: Deployment) -> None:
    async with two_services(deployment) as (owner, other), start_hanging_run(owner) as run_id:
        follows = [follow_from_start(service, run_id) for service in (owner, other)]
        for found in follows:
            assert (await anext(found)).name == "RunStarted"
        await owner.hosting.engine.close()
        for found in follows:
            assert [event.name async for event in found] == ["RunCancelled"]


async def test_leaving_a_resumed_stream_does_not_stop_the_run(deployment: Deployment) -> None:
    async with two_services(deployment) as (owner, other), start_hanging_run(owner) as run_id:
        for service in (owner, other):
            follower = user(service)
            found = follower.runs.resume("agent", "hang", run_id, ResumeRequest("s1"))
            assert (await anext(found)).name == "RunStarted"
            left = asyncio.ensure_future(anext(found))
            await asyncio.sleep(0.02)
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
        await asyncio.sleep(0.2)  # The run must continue.
        assert (await user(owner).runs.get(run_id)).value["status"] == "RUNNING"


async def test_follower_without_access_is_refused(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        port = user(service)
        run = (await port.runs.create("agent", "echo", RunRequest("hello", "s1"))).value
        run_id = run["run_id"]

        async def refused(
            port: ServiceOperations, component_id: str, *request: str | int | None
        ) -> str:
            asked = ResumeRequest(*request)  # type: ignore[arg-type]
            with pytest.raises(errors.AgentctlError) as caught:
                await anext(port.runs.resume("agent", component_id, run_id, asked))
            return caught.value.error_code

        assert await refused(port, "echo") == "BAD_REQUEST"
        assert await refused(port, "echo", "s2") == "NOT_FOUND"
        assert await refused(port, "hang", "s1") == "NOT_FOUND"
        assert await refused(port, "nothing", "s1") == "NOT_FOUND"
        assert await refused(user(service, "other"), "echo", "s1") == "NOT_FOUND"
        assert await refused(port, "echo", "s1", -2) == "VALIDATION_ERROR"
        assert await refused(port, "echo", "s1", 2**63) == "VALIDATION_ERROR"
        own = user(service, session_id="s1")
        assert await anext(own.runs.resume("agent", "echo", run_id, ResumeRequest()))
