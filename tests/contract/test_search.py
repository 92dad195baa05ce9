"""Search in the texts of sessions: results, their owners and their order, on both engines."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from agentctl import errors
from agentctl.admin.databases import count_unindexed, index_texts
from agentctl.interface.requests import (
    NewSession,
    Page,
    RunFilter,
    RunRequest,
    RunView,
    SessionFilter,
    SessionLocator,
)
from agentctl.records.times import now
from agentctl.service.documents.paging import pack_cursor
from agentctl.service.service import Service, ServiceOperations
from agentctl.store.repositories import search as search_texts
from agentctl.store.repositories import search_pages
from agentctl.store.search import SearchWords, Snippet
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.engines import Engine, empty
from tests.kit.model import ModelEndpoint
from tests.kit.service import admin, user

ENABLED = "[search]\nenabled = true\n"

on_sqlite = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
"""For rules of the service, or of SQLite, which a second engine would show again."""


@pytest.fixture(scope="module")
def shared_folder(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint, engine: Engine
) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("searched")
    with engine.databases() as databases:
        yield create_deployment(folder, model_endpoint.base_url, extra=ENABLED, databases=databases)


@pytest.fixture
def searched(shared_folder: Deployment) -> Deployment:
    empty(shared_folder)
    return shared_folder


@contextlib.asynccontextmanager
async def opened(searched: Deployment) -> AsyncIterator[Service]:
    async with Service.open(searched.settings, create=True) as service:
        await service.hosting.databases.open_all()
        yield service


async def say(operations: ServiceOperations, session_id: str, text: str) -> str:
    record = (await operations.runs.create("agent", "echo", RunRequest(text, session_id))).value
    return str(record["run_id"])


async def find(operations: ServiceOperations, text: str, **fields: Any) -> list[str]:
    page = await operations.sessions.list(SessionFilter(search=text, **fields))
    return [row["session_id"] for row in page.value["data"]]


async def test_words_of_messages_and_names_are_found(searched: Deployment) -> None:
    async with opened(searched) as service:
        me = user(service)
        run_id = await say(me, "one", "The Café refunds <b>every</b> order")
        await say(me, "two", "no money back")
        await me.sessions.create(NewSession(session_id="named", session_name="Quarterly refund"))
        assert await find(me, "refunds") == ["one"]
        assert await find(me, "ORDER café") == ["one"]
        assert await find(me, "order money") == []
        assert await find(me, "refu*") == ["named", "one"]
        assert await find(me, 'refu* AND "(') == []
        assert await find(me, '"refunds" ( - \' \\') == ["one"]
        page = (await me.sessions.list(SessionFilter(search="EVERY"))).value
        (row,) = page["data"]
        match = row["match"]
        assert match["run_id"] == run_id
        assert "<b>every</b> order" in match["snippet"]
        (start, end), *_ = match["highlights"]
        assert match["snippet"][start:end] == "every"
        assert page["meta"]["total_count"] == 1
        named = (await me.sessions.list(SessionFilter(search="quarterly"))).value["data"]
        assert named[0]["match"] == {
            "run_id": None, "snippet": "Quarterly refund", "highlights": [[0, 9]],
        }  # fmt: skip


async def test_only_visible_sessions_are_found(searched: Deployment) -> None:
    async with opened(searched) as service:
        for owner in ("a", "b", None):
            await say(user(service, owner), f"of-{owner}", "the secret plan")
        for owner in ("a", "b", None):
            for other in ("a", "b", None):
                seen = await find(user(service, owner), "secret")
                assert (f"of-{other}" in seen) is (owner == other)
        assert set(await find(admin(service), "secret")) == {"of-a", "of-b", "of-None"}
        assert await find(admin(service), "secret", where=SessionLocator(user_id="a")) == ["of-a"]
        assert await find(user(service, "a"), "secret", where=SessionLocator(user_id="b")) == []


async def test_owner_is_compared_in_the_session_not_only_in_the_index(searched: Deployment) -> None:
    async with opened(searched) as service:
        await say(user(service, "a"), "of-a", "the secret plan")
        forged = search_texts.Sql("UPDATE search_texts SET owner = :owner")
        key = search_texts.build_owner_key("b")
        await service.hosting.databases.system.write(forged.execute(owner=key))
        assert await find(user(service, "b"), "secret") == []


async def test_snippet_is_of_the_session_that_was_found(
    searched: Deployment, engine: Engine
) -> None:
    """Writers at the same time give texts of one millisecond the same place, on PostgreSQL."""
    async with opened(searched) as service:
        for owner in ("a", "b"):
            await say(user(service, owner), f"of-{owner}", f"the secret of {owner}")
        same = search_texts.Sql(
            "UPDATE search_texts SET place = (SELECT min(other.place) FROM search_texts AS other)"
        )
        if engine.name == "postgres":
            await service.hosting.databases.system.write(same.execute())
        for owner in ("a", "b"):
            wanted = SessionFilter(search="secret")
            page = (await user(service, owner).sessions.list(wanted)).value
            (row,) = page["data"]
            assert row["session_id"] == f"of-{owner}"
            assert f"secret of {owner}" in row["match"]["snippet"]


async def test_changed_and_deleted_texts_are_not_found(searched: Deployment) -> None:
    async with opened(searched) as service:
        me = user(service)
        await say(me, "kept", "first words")
        await say(me, "gone", "second words")
        await me.sessions.rename("gone", "Zebra")
        assert await find(me, "zebra") == ["gone"]
        await me.sessions.rename("gone", "Yak")
        assert await find(me, "zebra") == []
        assert await find(me, "yak") == ["gone"]
        await me.sessions.delete("gone")
        assert await find(me, "second") == []
        assert await find(me, "yak") == []
        assert await find(me, "words") == ["kept"]


async def test_first_name_of_a_session_is_found(searched: Deployment) -> None:
    async with opened(searched) as service:
        me = user(service)
        await me.sessions.create(NewSession(session_id="unnamed"))
        await me.sessions.rename("unnamed", "Zebra")
        assert await find(me, "zebra") == ["unnamed"]


async def test_words_that_the_engine_ignores_find_nothing(searched: Deployment) -> None:
    async with opened(searched) as service:
        me = user(service)
        await say(me, "one", "no markup at all")
        for text in ("<div>", "&nbsp;", "<div*"):
            for caller in (me, admin(service)):
                assert await find(caller, text) == [], text


async def test_text_without_spaces_does_not_delay_the_end_of_its_run(searched: Deployment) -> None:
    async with opened(searched) as service:
        me = user(service)
        for session_id, text in (("one", "a_" * 16_000), ("two", "ab-c-1-" * 4_000)):
            await asyncio.wait_for(say(me, session_id, f"begin {text} end"), PATIENCE)
        assert await find(me, "begin end") == ["two", "one"]


async def test_snippet_begins_before_a_word_in_quotes(searched: Deployment) -> None:
    async with opened(searched) as service:
        me = user(service)
        await say(me, "one", "word " * 100 + "the refund_order, by E-Mail")
        for text, marked in (('"refund"', "refund"), ("e-mail", "E-Mail"), ("refu*", "refu")):
            page = (await me.sessions.list(SessionFilter(search=text))).value
            match = page["data"][0]["match"]
            start, end = match["highlights"][0]
            assert match["snippet"][start:end] == marked


@on_sqlite
async def test_snippets_are_not_cut_on_the_event_loop(
    searched: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = list[threading.Thread]()
    cut = SearchWords.cut

    def record(self: SearchWords, text: str) -> Snippet:
        threads.append(threading.current_thread())
        return cut(self, text)

    monkeypatch.setattr(SearchWords, "cut", record)
    async with opened(searched) as service:
        me = user(service)
        await say(me, "one", "some words")
        assert await find(me, "words") == ["one"]
    assert threads
    assert threading.current_thread() not in threads


async def test_every_time_of_a_session_has_a_place(searched: Deployment) -> None:
    async with opened(searched) as service:
        me = user(service)
        database = service.hosting.databases.system
        service.hosting.databases.outbox.tokenizer = None
        ids = ["s0", "s1", "s2"]
        for session_id in ids:
            await say(me, session_id, "any time")
        move = search_texts.Sql("UPDATE sessions SET created_at = :at WHERE session_id = :id")
        for session_id, at in zip(ids, (-62_000_000_000_000_000, -1, 1), strict=True):
            await database.write(move.execute(at=at, id=session_id))
        service.hosting.databases.outbox.tokenizer = "words"
        await index_texts(searched.settings.databases[0], "words", lambda *_: None)
        assert await find(me, "time") == ids[::-1]
        order = Page(sort_order="asc")
        assert await find(me, "time", page=order) == ids
        for key in (-(2**63) + 1, 2**63 - 1):
            cursor = pack_cursor(f"sessions:created_at:asc:{key}:s")
            later = await find(me, "time", page=replace(order, cursor=cursor))
            assert later == (ids if key < 0 else [])


async def test_pages_follow_the_creation_of_sessions(searched: Deployment) -> None:
    async with opened(searched) as service:
        me = user(service)
        ids = [f"s{number:02}" for number in range(7)]
        for session_id in ids:
            await say(me, session_id, "hello again")
        await say(me, "s00", "hello once more")
        for order, expected in (("asc", ids), ("desc", ids[::-1])):
            found = list[str]()
            cursor = None
            while True:
                page = Page(limit=3, cursor=cursor, sort_order=order)  # type: ignore[arg-type]
                shown = (await me.sessions.list(SessionFilter(search="hello", page=page))).value
                assert shown["meta"]["total_count"] == 7
                found += [row["session_id"] for row in shown["data"]]
                cursor = shown["meta"]["next_cursor"]
                if cursor is None:
                    break
            assert found == expected
        second = Page(limit=3, page=2)
        assert await find(me, "hello", page=second) == ids[::-1][3:6]
        assert await find(me, "hello", component_id="echo", session_name="HELLO a") == ids[::-1]
        assert await find(me, "hello", status="ERROR") == []


async def walk(
    operations: ServiceOperations, text: str, order: str, **fields: Any
) -> tuple[list[str], int]:
    """Return the results of all pages of two, and the number of pages."""
    found = list[str]()
    cursor = None
    pages = 0
    totals = list[tuple[int, bool]]()
    while cursor is not None or not pages:
        page = Page(limit=2, cursor=cursor, sort_order=order)  # type: ignore[arg-type]
        wanted = SessionFilter(search=text, page=page, **fields)
        shown = (await operations.sessions.list(wanted)).value
        found += [row["session_id"] for row in shown["data"]]
        pages = pages + 1
        cursor = shown["meta"]["next_cursor"]
        totals.append((shown["meta"]["total_count"], shown["meta"]["total_is_capped"]))
    assert len(set(totals)) == 1
    assert totals[0] == (len(found), False) or (totals[0][1] and totals[0][0] <= len(found))
    return found, pages


SMALL_READS = {
    "MAXIMUM_READ": 3,
    "FIRST_WINDOW": 2,
    "SECOND_WINDOW": 3,
    "CHUNK": 2,
    "COMPARED_TEXTS": 3,
    "COMPARED_BYTES": 40,
}


@pytest.mark.parametrize(
    ("few", "leaves"), [(0, 0), (search_pages.FEW, search_pages.MAXIMUM_LEAVES)]
)
async def test_frequent_words_are_read_in_parts(
    searched: Deployment, monkeypatch: pytest.MonkeyPatch, few: int, leaves: int
) -> None:
    async with opened(searched) as service:
        for name, value in {**SMALL_READS, "FEW": few, "MAXIMUM_LEAVES": leaves}.items():
            monkeypatch.setattr(search_pages, name, value)
        me = user(service)
        other = user(service, "other")
        database = service.hosting.databases
        ids = [f"s{number:02}" for number in range(9)]
        for number, session_id in enumerate(ids):
            for _ in range(1 + 3 * (number % 3)):
                await say(me, session_id, "frequent word")
            await say(other, f"x{session_id}", "frequent word")
        # Some sessions of one millisecond, one of them before the first time with a place.
        move = search_texts.Sql("UPDATE sessions SET created_at = :at WHERE session_id = :id")
        place = search_texts.Sql("UPDATE search_texts SET place = :new WHERE place = :old")
        listed = search_texts.Sql(
            "SELECT place, session_id FROM search_texts ORDER BY session_id, place"
        )
        rows = await database.system.read(listed.rows(lambda *row: row))
        for number, (old, session_id) in enumerate(rows):
            at = max(0, int(session_id[-2:]) - 1) // 3 * 1_000_000
            await database.system.write(move.execute(at=at + int(session_id[-2:]), id=session_id))
            new = (at // 1000 << 20) + number
            await database.system.write(place.execute(new=new, old=old))
        others = [f"x{each}" for each in ids]
        both = sorted([*ids, *others], key=lambda each: each[-2:] + each)
        for operations, expected in ((me, ids), (other, others), (admin(service), both)):
            for text in ("freq*", "frequent word"):
                assert (await walk(operations, text, "asc"))[0] == expected
                assert (await walk(operations, text, "desc"))[0] == expected[::-1]
        assert (await walk(me, "freq* nowhere", "desc"))[0] == []
        assert (await walk(me, "frequent word nowhere", "desc"))[0] == []


async def test_page_compares_a_bounded_number_of_texts_with_filters(
    searched: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(searched) as service:
        for name, value in {**SMALL_READS, "FEW": 0}.items():
            monkeypatch.setattr(search_pages, name, value)
        me = user(service)
        for number in range(30):
            await say(me, f"s{number:02}", "frequent word")
        await me.sessions.rename("s02", "Zebra")
        for order in ("asc", "desc"):
            found, pages = await walk(me, "frequent", order, session_name="zebra")
            assert found == ["s02"]
            assert pages >= 5
        first = (await me.sessions.list(SessionFilter(search="frequent", status="ERROR"))).value
        assert first["data"] == []
        assert first["meta"]["next_cursor"]
        assert first["meta"]["total_is_capped"]


# The index of PostgreSQL has no leaves.
@pytest.mark.parametrize(
    ("engine", "leaves"),
    [
        ("sqlite", 0),
        ("sqlite", 2),
        ("sqlite", search_pages.MAXIMUM_LEAVES),
        ("postgres", search_pages.MAXIMUM_LEAVES),
    ],
    indirect=["engine"],
)
async def test_beginnings_of_few_and_of_many_words_find_the_same(
    searched: Deployment, monkeypatch: pytest.MonkeyPatch, leaves: int
) -> None:
    monkeypatch.setattr(search_pages, "MAXIMUM_LEAVES", leaves)
    async with opened(searched) as service:
        me = user(service)
        other = user(service, "other")
        await say(other, "x", "counters")
        await say(me, "accent", "Count\u00e9r")
        for number in range(5):
            await say(me, f"few{number}", f"COUNT{number} and countries")
        few = await find(me, "count*")
        assert few == ["few4", "few3", "few2", "few1", "few0", "accent"]
        assert await find(me, "Countri* AND*") == few[:5]
        assert await find(me, "count* nothing*") == []
        is_sqlite = service.hosting.databases.system.load().kind == "sqlite"
        assert await find(me, "and-coun*") == (few[:5] if is_sqlite else [])
        assert await find(me, "ount*") == []
        many = " ".join(f"count{number}x" for number in range(40))
        await say(me, "many", many)
        assert await find(me, "count*") == ["many", *few]
        await me.sessions.delete("few0")
        assert await find(me, "count0*") == ["many"]
        await me.sessions.delete("many")
        assert await find(me, "count0*") == []


async def find_runs(
    operations: ServiceOperations, text: str, order: str = "desc", limit: int = 20, **fields: Any
) -> tuple[list[str], int]:
    """Return the ids of the found runs of all pages, and the number of pages."""
    found = list[str]()
    cursor = None
    pages = 0
    while cursor is not None or not pages:
        page = Page(limit=limit, cursor=cursor, sort_order=order)  # type: ignore[arg-type]
        shown = (await operations.runs.list(RunFilter(search=text, page=page, **fields))).value
        found += [row["run_id"] for row in shown["data"]]
        pages = pages + 1
        cursor = shown["meta"]["next_cursor"]
        assert ("searched_until" in shown["meta"]) <= (cursor is not None)
    return found, pages


async def test_each_run_with_the_words_is_found(searched: Deployment) -> None:
    async with opened(searched) as service:
        me = user(service)
        other = user(service, "other")
        runs = [await say(me, "one", f"the cake {number}") for number in range(3)]
        runs.append(await say(me, "two", "a cake, and Tea"))
        await me.sessions.create(NewSession(session_id="named", session_name="cake"))
        theirs = await say(other, "three", "another cake")
        assert (await find_runs(me, "cake"))[0] == runs[::-1]
        assert (await find_runs(me, "CAKE tea"))[0] == [runs[3]]
        assert (await find_runs(me, "the cake*", session_id="one"))[0] == runs[2::-1]
        assert (await find_runs(me, "cake", status="ERROR"))[0] == []
        assert (await find_runs(me, "cake", component_id="echo", order="asc"))[0] == runs
        assert (await find_runs(me, "cake", user_id="other"))[0] == []
        assert (await find_runs(admin(service), "cake", user_id="other"))[0] == [theirs]
        assert (await find_runs(admin(service), "cake"))[0] == [theirs, *runs[::-1]]
        for view in ("full", "summary", "phase", "items"):
            form = RunView(view)  # type: ignore[arg-type]
            page = (await me.runs.list(RunFilter(search="tea", form=form))).value
            (row,) = page["data"]
            (start, end), *_ = row["match"]["highlights"]
            assert row["match"]["snippet"][start:end] == "Tea"
            assert (row["run_id"], row["match"]["run_id"]) == (runs[3], runs[3])
            assert (page["meta"]["total_count"], page["meta"]["total_is_capped"]) == (1, False)


async def test_failures_are_found_by_words(searched: Deployment) -> None:
    async with opened(searched) as service:
        me = user(service)
        for word in ("cake", "tea"):
            with contextlib.suppress(errors.AgentctlError):
                await me.runs.create("agent", "http-500", RunRequest(f"{word} please", "one"))
        page = (await admin(service).runs.list_failures(RunFilter(search="cake"))).value
        (run_id,) = (await find_runs(me, "cake"))[0]
        assert [row["run_id"] for row in page["data"]] == [run_id]


# SQLite does not estimate the number of texts.
@pytest.mark.parametrize(
    ("engine", "few"),
    [("sqlite", 0), ("postgres", 0), ("postgres", search_pages.FEW)],
    indirect=["engine"],
)
async def test_runs_of_one_session_are_read_in_parts(
    searched: Deployment, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    async with opened(searched) as service:
        for name, value in {**SMALL_READS, "FEW": few}.items():
            monkeypatch.setattr(search_pages, name, value)
        me = user(service)
        other = user(service, "other")
        runs = list[str]()
        for session_id in ("one", "two"):
            for _ in range(8):
                runs.append(await say(me, session_id, "frequent word"))
                await say(other, f"x{session_id}", "frequent word")
        for order, expected in (("asc", runs), ("desc", runs[::-1])):
            assert (await find_runs(me, "freq*", order, 3))[0] == expected
            assert len((await find_runs(admin(service), "frequent", order, 3))[0]) == 32
            found, pages = await find_runs(me, "frequent", order, 1, id_prefix=runs[5])
            assert found == [runs[5]]
            assert pages >= 4
        wanted = RunFilter(search="frequent", status="ERROR", page=Page(limit=1))
        first = (await me.runs.list(wanted)).value
        assert (first["data"], first["meta"]["total_is_capped"]) == ([], True)
        newest = (await me.runs.get(runs[8])).value["created_at"]
        assert first["meta"]["searched_until"][:16] == newest[:16]


@on_sqlite
async def test_cursor_of_a_search_is_not_one_of_the_list(searched: Deployment) -> None:
    async with opened(searched) as service:
        me = user(service)
        for number in range(2):
            await say(me, "one", f"the cake {number}")
        for text, another in ((None, "cake"), ("cake", None)):
            page = (await me.runs.list(RunFilter(search=text, page=Page(1)))).value
            following = Page(1, cursor=page["meta"]["next_cursor"])
            with pytest.raises(errors.ValidationFailed, match="another list"):
                await me.runs.list(RunFilter(search=another, page=following))


REFUSED = {
    "a word": ("", "search must contain a word"),
    "letters": ('- ( * "', "search must contain a word"),
    "many words": ("word" + " word".join(map(str, range(18))), "at most 16 words"),
    "length": ("x" * 501, "at most 500 characters"),
    "beginning": ("re*", "at least 3 characters"),
    "NUL": ("a\0b", "NUL"),
    "beginning of nothing": ("* ** *", "search must contain a word"),
    "emoji": ("\U0001f600 \U0001f468\u200d\U0001f469", "search must contain a word"),
    "combining characters": ("\u0301" * 400, "search must contain a word"),
    "very long": ("word " * 200_000, "at most 500 characters"),
}


@on_sqlite
async def test_searches_are_refused(searched: Deployment) -> None:
    async with opened(searched) as service:
        for text, detail in REFUSED.values():
            with pytest.raises(errors.ValidationFailed, match=detail):
                await find(user(service), text)


@on_sqlite
async def test_other_order_and_disabled_search_are_refused(searched: Deployment) -> None:
    async with opened(searched) as service:
        me = user(service)
        with pytest.raises(errors.ValidationFailed, match="sort_by must be created_at"):
            await find(me, "word", page=Page(sort_by="updated_at"))
        service.hosting.databases.outbox.tokenizer = None
        with pytest.raises(errors.BadRequest, match=r"not enabled: .*\[search\]") as refused:
            await find(me, "word")
        assert "agentctl db index" in str(refused.value.hint)


async def test_runs_that_ended_before_are_indexed_later(
    searched: Deployment, engine: Engine
) -> None:
    async with opened(searched) as service:
        me = user(service)
        database = service.hosting.databases.system
        service.hosting.databases.outbox.tokenizer = None
        for number in range(3):
            await say(me, f"old{number}", f"earlier text {number}")
        service.hosting.databases.outbox.tokenizer = "words"
        await say(me, "new", "later text")
        assert await count_unindexed(database, "words") == (3, 4)
        assert await find(me, "text") == ["new"]
        entry = searched.settings.databases[0]
        for added in (6, 0):
            result = await index_texts(entry, "words", lambda *_: None)
            assert (result.sessions, result.added) == (4, added)
        assert await count_unindexed(database, "words") == (0, 4)
        assert await find(me, "text") == ["new", "old2", "old1", "old0"]
        if engine.name == "sqlite":
            await index_texts(entry, "trigram", lambda *_: None)
            assert await find(me, "text") == []
            service.hosting.databases.outbox.tokenizer = "trigram"
            assert await find(me, "arlie") == ["old2", "old1", "old0"]
            with pytest.raises(errors.ValidationFailed, match="at least 3 characters"):
                await find(me, "ar")


@on_sqlite
async def test_no_byte_of_a_deleted_text_stays_in_the_index(searched: Deployment) -> None:
    """On PostgreSQL, VACUUM removes dead rows."""
    async with opened(searched) as service:
        me = user(service)
        for number in range(30):
            await say(me, f"s{number}", f"common{number} and markerzebra{number} words")
        path = searched.folder / "main.db"
        assert "markerzebra" in _read_index(path)
        for number in range(30):
            await me.sessions.delete(f"s{number}")
        assert "zebra" not in _read_index(path)


def _read_index(path: Path) -> str:
    """Return the bytes of all pages of the index, with the prefixes of terms undone."""
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        terms = "CREATE VIRTUAL TABLE temp.terms USING fts5vocab('main', 'search_words', 'row')"
        connection.execute(terms)
        words = " ".join(str(row[0]) for row in connection.execute("SELECT term FROM terms"))
        blocks = connection.execute("SELECT block FROM search_words_data").fetchall()
        return words + b" ".join(bytes(row[0]) for row in blocks).decode("latin-1")  # type: ignore[arg-type]


async def test_sessions_of_one_millisecond_are_in_order(searched: Deployment) -> None:
    async with opened(searched) as service:
        me = user(service)
        at = now()
        database = service.hosting.databases.system
        for number in range(4):
            await me.sessions.create(NewSession(session_id=f"s{number}"))
        same = search_texts.Sql("UPDATE sessions SET created_at = :at")
        await database.write(same.execute(at=at))
        for number in (2, 0, 3, 1):
            await say(me, f"s{number}", "same moment")
        page = Page(limit=3)
        shown = (await me.sessions.list(SessionFilter(search="moment", page=page))).value
        assert [row["session_id"] for row in shown["data"]] == ["s3", "s2", "s1"]
        rest = replace(page, cursor=shown["meta"]["next_cursor"])
        assert await find(me, "moment", page=rest) == ["s0"]
