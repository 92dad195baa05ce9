"""The data of a person: every table is searched after an erasure, on both engines."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentctl import errors
from agentctl.auth.principal import Principal, local_principal
from agentctl.interface.requests import RunRequest
from agentctl.interface.requests.administration import Erasure, PersonalPart, PersonalRowsFilter
from agentctl.interface.requests.memories import NewMemory
from agentctl.service.operations import personal_data as service_module
from agentctl.service.service import Service, ServiceOperations
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import sessions
from agentctl.store.repositories.personal_data import COUNTED_RUNS, OTHER_TABLES, PERSONAL_TABLES
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.engines import Engine
from tests.kit.model import ModelEndpoint
from tests.kit.rows import a_run, a_session, a_whole_run, an_end
from tests.kit.service import admin, open_service, streamed_run, wait_for_live_run, wait_for_running
from tests.service.personal_rows import MARKER, SEARCH, Raw, fill, find_tables


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> Engine:
    is_sqlite = request.param == "sqlite"
    return Engine(None if is_sqlite else request.getfixturevalue("postgres_url"))


@pytest.fixture
def place(engine: Engine, tmp_path: Path, model_endpoint: ModelEndpoint) -> Iterator[Deployment]:
    with engine.databases() as databases:
        yield create_deployment(
            tmp_path, model_endpoint.base_url, databases=databases, extra=SEARCH
        )


async def erase(
    operations: ServiceOperations, user_id: str, **options: Any
) -> list[dict[str, Any]]:
    """Erase the data of a user; return the parts."""
    parts = list[dict[str, Any]]()
    cursor = None
    while True:
        done = await operations.users.erase(Erasure(user_id, cursor=cursor, **options))
        parts.append(dict(done.value))
        cursor = parts[-1]["next_cursor"]
        if cursor is None:
            return parts


@contextlib.asynccontextmanager
async def filled(place: Deployment) -> AsyncIterator[tuple[Service, Raw]]:
    async with open_service(place) as service:
        await service.hosting.databases.open_all()
        raw = Raw(place.settings.databases[0])
        await fill(service, raw, "vera", MARKER)
        yield service, raw


async def test_every_table_is_personal_or_not(place: Deployment) -> None:
    async with open_service(place) as service:
        await service.hosting.databases.open_all()
        tables = set(await Raw(place.settings.databases[0]).list_columns())
    known = {table.name for table in PERSONAL_TABLES}
    assert tables == known | OTHER_TABLES
    assert not known & OTHER_TABLES


async def test_erasure_leaves_no_text_in_any_table(place: Deployment) -> None:
    async with filled(place) as (service, raw):
        await fill(service, raw, "bob", "granite")
        before = await raw.read_all()
        personal = {table.name for table in PERSONAL_TABLES if table.erasure != "keep"}
        sums = {"usage_hourly", "usage_daily", "usage_ends"}  # without texts but ids
        assert find_tables(before, MARKER) >= personal - sums
        assert find_tables(before, "vera") >= sums
        counted = (await admin(service).users.get_data("vera")).value
        assert {row["table"] for row in counted["tables"] if row["rows"]} >= personal
        parts = await erase(admin(service), "vera")
        after = await raw.read_all()
        assert find_tables(after, MARKER) == set()
        assert find_tables(after, "vera") == {"audit_log"}
        erased = {row["table"] for part in parts for row in part["erased"]}
        assert erased == personal
        untouched = set(after) - {
            "audit_log", "removals", "schema_version", "workers", "usage_hourly", "usage_daily",
            "usage_ends", "leases", "blob_checks",
        }  # fmt: skip
        for table in untouched:
            kept = [row for row in before[table] if row in after[table]]
            assert kept == after[table]
            assert not any("bob" in repr(row) for row in before[table] if row not in kept)
        counted = (await admin(service).users.get_data("vera")).value
        assert not [row for row in counted["tables"] if row["rows"] and row["erasure"] != "keep"]
        reasons = {each["what"]: each["reason"] for each in counted["kept"]}
        assert reasons.keys() >= {"audit_log", "records of others", "copies"}
        assert all(reasons.values())
        for table in ("usage_hourly", "usage_daily"):
            assert sum(row[6] for row in before[table]) == sum(row[6] for row in after[table])


async def test_file_has_no_byte_of_the_text(tmp_path: Path, model_endpoint: ModelEndpoint) -> None:
    place = create_deployment(tmp_path, model_endpoint.base_url, extra=SEARCH)
    async with filled(place) as (service, _):
        for number in range(40):
            await admin(service).memories.create(NewMemory(f"{MARKER} {number} " * 30, (), "vera"))
        # A part of the erasure ends after some seconds; the next one has the other files.
        parts = await erase(admin(service), "vera")
        file, _other = [rewritten for part in parts for rewritten in part["files"]]
        assert (file["db_id"], file["vacuumed"], file["log_emptied"]) == ("main", True, True)

        paths = [path for path in place.folder.glob("main.db*") if path.is_file()]
        assert {path.name for path in paths} == {"main.db", "main.db-wal", "main.db-shm"}
        for path in paths:
            assert MARKER.encode() not in path.read_bytes(), path


async def test_live_runs_are_a_conflict_without_cancel(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    place = create_deployment(tmp_path, model_endpoint.base_url)
    async with open_service(place) as service:
        await service.hosting.databases.open_all()
        operations = service.operations_for(local_principal("boss", acting_for="vera"))
        async with streamed_run(operations, "agent", "hang", message="wait") as (run, _):
            await wait_for_live_run(service, run["run_id"])
            with pytest.raises(errors.Conflict, match="live or paused runs"):
                await erase(admin(service), "vera")
            assert (await admin(service).users.get_data("vera")).value["open_runs"] == 1
            await erase(admin(service), "vera", cancel=True)
        counted = (await admin(service).users.get_data("vera")).value
        assert not [row for row in counted["tables"] if row["rows"] and row["erasure"] != "keep"]


async def test_background_work_stores_no_memory_after_an_erasure(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    extractor = (
        '[[agents]]\nid = "extractor"\nmodel = "echo"\n'
        'memory = { mode = "after_run", model = "hang" }\n'
    )
    place = create_deployment(tmp_path, model_endpoint.base_url, extra=extractor)
    async with open_service(place) as service:
        await service.hosting.databases.open_all()
        operations = service.operations_for(local_principal("boss", acting_for="vera"))
        await operations.runs.create("agent", "extractor", RunRequest("I live in Rome", "s1"))
        work = await wait_for_running(operations, session_id="s1")
        assert work["purpose"] == "memory"
        with pytest.raises(errors.Conflict, match="live or paused runs"):
            await erase(admin(service), "vera")
        live = await wait_for_live_run(service, work["run_id"])
        await erase(admin(service), "vera", cancel=True)
        assert live.ended.done()
        assert (await admin(service).users.get_data("vera")).value["open_runs"] == 0


async def test_held_session_stays_whole(place: Deployment) -> None:
    async with filled(place) as (service, raw):
        await admin(service).sessions.hold("session-of-vera", "Claim 17")
        before = await raw.read_all()
        await erase(admin(service), "vera")
        counted = (await admin(service).users.get_data("vera")).value
        assert counted["held"] == ["session-of-vera"]
        after = await raw.read_all()
        for table in ("sessions", "runs", "run_steps", "run_checkpoints", "approvals"):
            assert after[table] == before[table]
        assert [row[0] for row in after["webhook_deliveries"]] == ["d-vera-0"]
        assert not after["memories"]


async def test_interrupted_erasure_is_finished_from_the_start(
    place: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "PART_SECONDS", 0.0)
    async with filled(place) as (service, raw):
        steps = 0
        cursor = None
        while True:
            done = await admin(service).users.erase(Erasure("vera", cursor=cursor))
            steps = steps + 1
            cursor = done.value["next_cursor"]
            if steps == 5:  # as after a kill: the cursor is lost
                cursor = None
                monkeypatch.setattr(service_module, "PART_SECONDS", 60.0)
            elif cursor is None:
                break
        assert find_tables(await raw.read_all(), "vera") <= {"audit_log"}


async def test_rows_of_a_person_are_pages(place: Deployment) -> None:
    async with filled(place) as (service, raw):
        await raw.insert(
            "approvals",
            MARKER,
            approval_id="a-other",
            user_id="bob",
            status="approved",
            decided_by="vera",
            session_id="session-of-vera",
            arguments="{}",
            note="too much",
            run_id=(await raw.query("SELECT run_id FROM runs"))[0][0],
        )
        parts: dict[PersonalPart, int] = {"usage": 2, "deliveries": 2, "decisions": 1}
        for part, count in parts.items():
            found = await admin(service).users.list_rows(PersonalRowsFilter("vera", part, "main"))
            assert len(found.value["data"]) >= count, part
        entries = await admin(service).users.list_rows(PersonalRowsFilter("vera", "audit"))
        assert any("user:vera" in (row["resource"] or "") for row in entries.value["data"]) or any(
            row["principal"] == "vera" for row in entries.value["data"]
        )


async def test_administrators_without_all_data_are_denied_with_a_reason(place: Deployment) -> None:
    async with open_service(place) as service:
        acting = service.operations_for(local_principal("boss", acting_for="vera"))
        account = service.operations_for(Principal(subject="sa:7", admin=True))
        for own, reason in ((acting, "omit --as-user"), (account, "use the token of an admin")):
            for call in (
                partial(own.users.get_data, "vera"),
                partial(own.users.erase, Erasure("vera")),
                partial(own.users.list_rows, PersonalRowsFilter("vera", "usage")),
            ):
                with pytest.raises(errors.Forbidden, match=reason):
                    await call()


async def test_rows_of_many_runs_are_counted_in_part(place: Deployment) -> None:
    @unit
    def add() -> Steps[None]:
        for number in range(COUNTED_RUNS + 1):
            session = a_session(f"s{number}", user_id="ada")
            yield from sessions.create(session)
            run = a_run(f"r{number}", f"s{number}", user_id="ada")
            yield from a_whole_run(run, an_end(f"r{number}"))

    async with open_service(place) as service:
        await service.hosting.databases["main"].write(add())
        counted = (await admin(service).users.get_data("ada")).value
        rows = {row["table"]: row for row in counted["tables"] if row["db_id"] == "main"}
        assert rows["runs"]["rows"] == rows["sessions"]["rows"] == COUNTED_RUNS + 1
        capped = {name for name, row in rows.items() if row.get("is_capped")}
        assert capped == {table.name for table in PERSONAL_TABLES if table.of_runs}

        await erase(admin(service), "ada")
        counted = (await admin(service).users.get_data("ada")).value
        left = [row for row in counted["tables"] if row["erasure"] == "delete"]
        assert not any(row["rows"] or row.get("is_capped") for row in left)
