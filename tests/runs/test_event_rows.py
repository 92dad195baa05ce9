"""Rows with pieces of text give the same events as rows with their JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctl import errors
from agentctl.admin.databases import check_servers, finish_upgrade
from agentctl.interface.requests import StreamEvent
from agentctl.records.events import EVENT_NAMES, EventKind
from agentctl.records.kinds import KINDS
from agentctl.records.times import format_rfc3339, now
from agentctl.runs.log import stream as stream_module
from agentctl.runs.log.event_rows import (
    Members,
    Piece,
    RunIdentity,
    decode_events,
    encode_events,
    find_frame,
)
from agentctl.runs.log.stream import RETRY_SECONDS, Stream, StreamRecorder
from agentctl.runs.workers.liveness import identify_this_process
from agentctl.service.service import Service
from agentctl.store.database import Sql
from agentctl.store.repositories import events, workers
from agentctl.store.repositories.events import EventRow
from agentctl.store.repositories.workers import WorkerRow
from agentctl.store.schema import TEXT_ROWS_SINCE, UNRELEASED
from tests.kit.clock import pass_time
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.engines import Engine
from tests.kit.model import ModelEndpoint
from tests.kit.service import open_service, streamed_run, user, wait_for_live_run
from tests.runs.test_follow import cancel_run, main_database, resume, two_services

ROOT = RunIdentity("root", "s1", None, "team", "crew", "Crew")

# JSON text: no surrogates. `""` and separators of lines and of JSON are common.
TEXT = st.text(st.sampled_from('a "\\[]{},:\n\r\u2028\0é😀') | st.characters(codec="utf-8"))
IDENTITY = st.just(ROOT) | st.builds(
    RunIdentity,
    st.sampled_from(["root", "m1", "m2"]), st.just("s1"), st.sampled_from([None, "root", "m1"]),
    st.sampled_from(sorted(KINDS)), TEXT, TEXT,
)  # fmt: skip
MEMBERS = st.just(()) | st.lists(
    st.tuples(st.sampled_from(["node", "message_id", "member_run_id"]), TEXT),
    unique_by=lambda member: member[0],
).map(tuple)
TIME = st.integers(0, 4_000_000_000_000_000) | st.integers(
    1_763_892_000_000_000, 1_763_892_000_100_000
)


def build_json(
    run: RunIdentity, kind: EventKind, at: int, text: str, members: Members
) -> tuple[str, bytes]:
    """Return an event as the releases without text rows have sent it."""
    name = EVENT_NAMES[run.kind][kind]
    names = KINDS[run.kind]
    body: dict[str, Any] = {
        "event": name,
        "created_at": at // 1_000_000,
        "at": format_rfc3339(at),
        names.id_field: run.component_id,
        f"{run.kind}_name": run.component_name,
        "run_id": run.run_id,
        "session_id": run.session_id,
    }
    if run.parent_run_id is not None:
        body["parent_run_id"] = run.parent_run_id
    if kind is EventKind.CONTENT:
        body |= {"content": text, "content_type": "str"}
    else:
        body |= {"reasoning_content": text}
    return name, orjson.dumps(body | dict(members))


TEXT_EVENT = st.tuples(
    IDENTITY, st.sampled_from([EventKind.CONTENT, EventKind.THINKING]), TIME, TEXT, MEMBERS
)


@settings(max_examples=40)
@given(
    st.lists(TEXT_EVENT | st.sampled_from([b"{}", b'{"run_id":"root"}']), min_size=1),
    st.integers(0, 10**9),
)
def test_both_forms_of_a_row_are_read_as_the_same_events(happened: list[Any], first: int) -> None:
    portion = list[StreamEvent]()
    pieces = list[Piece | None]()
    for seq, each in enumerate(happened, first):
        if isinstance(each, bytes):
            portion.append(StreamEvent(seq, "ToolCallStarted", each))
            pieces.append(None)
            continue
        run, kind, at, text, members = each
        portion.append(StreamEvent(seq, *build_json(run, kind, at, text, members)))
        is_plain = kind is EventKind.CONTENT and not members
        frame = run.content_frame if is_plain else find_frame(run, kind, members)
        assert frame.format(text, at) == portion[-1].data
        pieces.append(Piece(frame, at, text))
    last = portion[-1].seq
    as_json: list[Piece | None] = [None] * len(pieces)
    mixed = [piece if number % 3 else None for number, piece in enumerate(pieces)]
    for stored in (pieces, as_json, mixed):
        row = EventRow("root", first, last, encode_events("root", portion, stored), "s1")
        assert list(decode_events(row)) == portion
        assert [event.seq for event in decode_events(row, texts=False)] == [
            event.seq for event in portion if event.name == "ToolCallStarted"
        ]


def test_a_text_row_has_only_what_the_run_does_not_determine() -> None:
    member = RunIdentity("m1", "s1", "root", "agent", "offers", "Offers")
    thinking = find_frame(member, EventKind.THINKING, (("node", "n"),))
    at = 1_763_892_000_123_456
    pieces = [
        Piece(ROOT.content_frame, at, "Hel"),
        Piece(ROOT.content_frame, at + 20_013, "lo"),
        Piece(member.content_frame, at, "x"),
        Piece(thinking, at, "y"),
    ]
    portion = [
        StreamEvent(seq, piece.frame.name, piece.frame.format(piece.text, piece.at))
        for seq, piece in enumerate(pieces)
    ]

    assert encode_events("root", portion, pieces).splitlines() == [
        'TeamRunContent [["team","crew","Crew"],[1763892000123456,20013],["Hel","lo"]]',
        'RunContent [["agent","offers","Offers","m1","root"],[1763892000123456],["x"]]',
        'ReasoningContentDelta [["agent","offers","Offers","m1","root","node","n"],'
        '[1763892000123456],["y"]]',
    ]


@pytest.mark.parametrize(
    "line",
    [
        "RunContent [",
        'RunContent ["r1"]',
        "RunContent [[],[],[]]",
        'RunContent [["agent","a","A"],[1],[]]',
        'RunContent [["robot","a","A"],[1],["x"]]',
        'RunContent [[{},"a","A"],[1],["x"]]',
    ],
)
def test_an_unreadable_line_is_one_event_with_its_text(line: str) -> None:
    row = EventRow("root", 7, 8, f"{line}\nRunCompleted {{}}\n", "s1")
    found = [(event.seq, event.name, event.data) for event in decode_events(row)]
    assert found == [(7, "RunContent", line.partition(" ")[2].encode()), (8, "RunCompleted", b"{}")]


def test_batches_of_a_stream_have_each_event_once() -> None:
    stream = Stream("root", recorded=True, first=5)
    for number in range(40):
        piece = Piece(ROOT.content_frame, number, f"word {number}")
        data = piece.frame.format(piece.text, piece.at)
        # A database may allow text rows from some event on.
        stream.publish(piece.frame.name, data, piece if number > 10 else None)
        if number % 7 == 6 and (batch := stream.next_batch()) is not None:
            check_batch(stream, batch)
            stream.mark_stored(batch.last_seq)
    rest = stream.unstored_batch()
    assert rest is not None
    check_batch(stream, rest)
    last = stream.last_batch(("TeamRunCompleted", b"{}"))
    stream.close(("TeamRunCompleted", b"{}"))
    check_batch(stream, last)
    assert (rest.first_seq, rest.last_seq, last.last_seq) == (40, 44, 45)


class AwayDatabase:
    """A database that does not answer."""

    version = SimpleNamespace(allows_text_rows=True)

    def __init__(self) -> None:
        self.gives_up = asyncio.Event()
        self.writes = 0

    async def write(self, work: Any) -> Any:
        self.writes += 1
        await self.gives_up.wait()
        raise errors.Unavailable("away")


async def test_failed_write_of_events_is_repeated_until_the_run_ends() -> None:
    stream = Stream("root", recorded=True)
    database: Any = AwayDatabase()
    recorder = StreamRecorder(stream, database)
    stream.publish("RunStarted", b"{}")
    database.gives_up.set()
    await wait_until(lambda: database.writes == 1)
    await pass_time(RETRY_SECONDS)
    await wait_until(lambda: database.writes == 2)

    database.gives_up.clear()
    await pass_time(RETRY_SECONDS)
    await wait_until(lambda: database.writes == 3)
    end = asyncio.create_task(recorder.end())
    await asyncio.sleep(0)
    database.gives_up.set()
    await end
    # The end of a run stores its last events: a write that is due does not store them again.
    await pass_time(RETRY_SECONDS)
    for _ in range(10):
        await asyncio.sleep(0)
    assert database.writes == 3


def check_batch(stream: Stream, batch: Any) -> None:
    row = EventRow("root", batch.first_seq, batch.last_seq, batch.events, "s1")
    published = stream.events_from(batch.first_seq)
    assert published is not None
    assert list(decode_events(row)) == published[: batch.last_seq + 1 - batch.first_seq]


def test_the_schema_names_the_first_programs_that_read_text_rows() -> None:
    """No release before 0.3.0 reads them, and all from it on do."""
    assert UNRELEASED.start <= TEXT_ROWS_SINCE <= UNRELEASED.stop


@pytest.fixture(params=["sqlite", "postgres"])
def migrated(
    request: pytest.FixtureRequest, tmp_path: Path, model_endpoint: ModelEndpoint
) -> Iterator[Deployment]:
    """A deployment whose databases an earlier release has created."""
    is_server = request.param == "postgres"
    engine = Engine(request.getfixturevalue("postgres_url") if is_server else None)
    with engine.databases() as databases:
        deployment = create_deployment(tmp_path, model_endpoint.base_url, databases=databases)
        asyncio.run(allow_earlier_programs(deployment))
        yield deployment


async def allow_earlier_programs(deployment: Deployment) -> None:
    allow = Sql("UPDATE schema_version SET compatible_from = 15")
    async with open_service(deployment) as service:
        for database in service.hosting.databases.values():
            await database.check()
            assert database.version.allows_text_rows
            await database.write(allow.execute())


def follow(
    services: Sequence[Service], run_id: str, *positions: int
) -> list[asyncio.Task[list[StreamEvent]]]:
    """Begin to follow a run of `trickle` after each position, through each service."""
    return [
        asyncio.create_task(resume(user(service), run_id, after, component_id="trickle"))
        for service in services
        for after in positions
    ]


async def read_rows(service: Service, run_id: str) -> list[EventRow]:
    return await main_database(service).read(events.list_after(run_id, -1, 1_000))


async def test_server_of_an_earlier_release_prevents_the_end_of_the_upgrade(
    migrated: Deployment,
) -> None:
    old = WorkerRow("old", *identify_this_process(), beat=now(), started_at=1)
    async with open_service(migrated) as service:
        system = service.hosting.databases.system
        await system.write(workers.register(old))
        with pytest.raises(errors.Conflict, match="earlier version") as refused:
            await check_servers(migrated.settings)
        assert refused.value.cause == f"pid {old.pid} on {old.host}"

        await system.write(workers.remove("old"))
        await check_servers(migrated.settings)


async def test_events_stay_json_until_the_upgrade_is_finished(
    migrated: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The followers of a run see no change when its rows become text."""
    monkeypatch.setattr(stream_module, "VERSION_SECONDS", 0.05)
    async with two_services(migrated) as services:
        owner, _ = services
        start = streamed_run(user(owner), "agent", "trickle", message="x", session_id="s1")
        async with start as (run, streamed):
            run_id = run["run_id"]
            early = follow(services, run_id, -1, 3, 9)
            live = await wait_for_live_run(owner, run_id)
            await wait_until(lambda: live.stream.next > 20)
            rows = await read_rows(owner, run_id)
            assert len(rows) > 1
            assert "[[" not in "".join(row.events for row in rows)

            await finish_upgrade(migrated.settings, "main")

            async def has_text_row() -> bool:
                return (await read_rows(owner, run_id))[-1].events.startswith("RunContent [[")

            await wait_until(has_text_row)
            late = follow(services, run_id, -1, live.stream.next - 3)
            await wait_until(lambda: live.stream.next > 40)
            await cancel_run(user(owner), run_id)

            whole = await streamed
            for followed in await asyncio.gather(*early, *late):
                assert followed == whole[followed[0].seq :]
            rows = await read_rows(owner, run_id)
            assert [event for row in rows for event in decode_events(row)] == whole
