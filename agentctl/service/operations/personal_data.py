"""The operations on the data of a person (docs/personal-data.md)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import orjson

from agentctl import errors
from agentctl.config.databases import is_sqlite_url, sqlite_path
from agentctl.interface.operations.users import UsersFamily
from agentctl.interface.requests import DELETION_WAIT, MAXIMUM_USER_ID_LENGTH
from agentctl.interface.requests.administration import Erasure, PersonalPart, PersonalRowsFilter
from agentctl.records.document import Document, build_document
from agentctl.records.personal_data import (
    ErasureRecord,
    KeptData,
    PersonalDatabase,
    PersonalDataRecord,
    PersonalRows,
    PersonalRowsPage,
    RewrittenFile,
)
from agentctl.records.text import check_text
from agentctl.records.times import format_optional_time, format_rfc3339
from agentctl.service.audit_log import AuditedCall
from agentctl.service.documents.paging import check_limit, pack_cursor, unpack_cursor
from agentctl.service.family import OperationFamily
from agentctl.service.operations.audit import build_entry
from agentctl.store.database import Database, Work
from agentctl.store.repositories import personal_data, store_items
from agentctl.store.repositories.audit import AuditRow
from agentctl.store.repositories.personal_data import (
    COUNTED_ROWS,
    COUNTED_RUNS,
    PERSONAL_TABLES,
    DecisionOnOthers,
    Delivery,
    Erased,
)
from agentctl.store.repositories.usage import NANODOLLARS, SumKey, Sums
from agentctl.store.sqlite.thread import VACUUM_BYTES, rewrite_file

EXPORTED_ITEMS = 20
"""Items of a store on one page: each has up to 256 KB."""

PART_SECONDS = 2.0
"""Seconds after which a part of an erasure ends; its last unit may take longer."""

_OF_ACCOUNTS = (
    "A service account sees its own data only, also with the admin scope: use the token of an"
    " administrator, or work locally"
)

_AS_USER = "An administrator who acts for a user cannot do this: omit --as-user"
"""The reasons for a 403 of an administrator, with the remedy."""

_KEPT = {
    "audit_log": "changes and denied calls by or about the person, until audit.keep_days",
    "service_accounts": "the name of the creator of service accounts, which belong to the operator",
    "halts": "halts that the person has created or ended, and those of the runs of the person",
}
"""The tables that an erasure leaves, with the reason."""

_KEPT_UNCOUNTED = {
    "records of others": "where the person decided, started or cancelled something in the sessions"
    " of other users: the name and the note",
    "copies": "earlier backups, exports, log files and traces, which agentctl cannot find",
}
"""The data that an erasure leaves and that is not counted, with the reason."""

_ERASURES = {table.name: table.erasure for table in PERSONAL_TABLES}
"""The fate of the rows of a table in an erasure."""

_PartPage = tuple[list[dict[str, Any]], str | None]
"""Rows of a page, and the position of the next page; None on the last page."""

_UNITS: Mapping[str, Callable[[str], Work[Erased]]] = {
    "sessions": personal_data.erase_sessions,
    "files": personal_data.erase_files,
    "keys": personal_data.erase_keys,
    "usage": personal_data.anonymise_usage,
    "memories": partial(personal_data.erase_texts, table="memories"),
    "store_items": partial(personal_data.erase_texts, table="store_items"),
}
"""The units of the steps that are repeated until they erase nothing."""


class _Step(NamedTuple):
    """One step of an erasure: its name, and the number of its database."""

    name: str
    database: int


@dataclass(slots=True)
class _Place:
    """The place of an erasure: the number of its step, and the position in it."""

    step: int = 0
    position: str = ""


class PersonalDataOperations(OperationFamily, UsersFamily):
    """Export and erasure of the data of a person, for administrators."""

    async def get_data(self, user_id: str = "") -> Document[PersonalDataRecord]:
        async with self.audit("get_user_data") as call:
            self._check_user(call, user_id)
            databases = self.hosting.databases
            record = PersonalDataRecord(
                user_id=user_id,
                tables=[],
                databases=[],
                kept=[],
                open_runs=0,
                held=[],
                held_count=0,
                audit_days=self.hosting.settings.audit.keep_days,
            )

            for entry, database in zip(
                self.hosting.settings.databases, databases.values(), strict=True
            ):
                is_system = database is databases.system
                record["tables"] += await _count_rows(database, user_id, is_system=is_system)
                record["databases"].append(
                    PersonalDatabase(
                        db_id=database.id,
                        engine="sqlite" if is_sqlite_url(entry.url) else "postgres",
                    )
                )

                open_data = await database.read(personal_data.find_open(user_id), size="large")
                record["open_runs"] += open_data.open_runs
                record["held"] = [*record["held"], *open_data.held][:100]
                record["held_count"] += open_data.held_count

            record["kept"] = list(_list_kept(record))
            return build_document(record)

    async def list_rows(self, filter: PersonalRowsFilter) -> Document[PersonalRowsPage]:
        async with self.audit("get_user_rows") as call:
            self._check_user(call, filter.user_id)
            check_limit(filter.limit)

            database = self.lookups.database(filter.db_id)
            read = _READERS[filter.part]
            position = ""
            if filter.cursor is not None:
                position = unpack_cursor(filter.cursor, lambda text: _read_bound(text, filter.part))

            rows, next_position = await read(database, filter.user_id, position, filter.limit)
            cursor = None
            if next_position is not None:
                cursor = pack_cursor(f"{filter.part}:{next_position}")
            return build_document(PersonalRowsPage(data=rows, meta={"next_cursor": cursor}))

    async def erase(self, erasure: Erasure) -> Document[ErasureRecord]:
        """Execute one part, for some seconds; without a cursor an erasure begins again."""
        async with self.audit("erase_user_data") as call:
            self._check_user(call, erasure.user_id)
            if erasure.vacuum not in ("auto", "always", "never"):
                raise errors.ValidationFailed("vacuum must be one of: auto, always, never")

            steps = self._list_steps()
            place = _Place()
            if erasure.cursor is not None:
                place = unpack_cursor(
                    erasure.cursor, lambda text: _read_place(text, erasure.user_id, len(steps))
                )

            record = ErasureRecord(erased=[], files=[], next_cursor=None)
            end = time.monotonic() + PART_SECONDS

            while place.step < len(steps):
                await self._take_step(call, steps[place.step], place, erasure, record)
                if time.monotonic() > end and place.step < len(steps):
                    text = f"{place.step}:{place.position}:{erasure.user_id}"
                    record["next_cursor"] = pack_cursor(text)
                    break

            return build_document(record)

    def _check_user(self, call: AuditedCall, user_id: str) -> None:
        if not 1 <= len(user_id) <= MAXIMUM_USER_ID_LENGTH:
            raise errors.ValidationFailed(
                f"user_id must be 1 to {MAXIMUM_USER_ID_LENGTH} characters"
            )
        check_text("user_id", user_id)
        call.add_resource("user", user_id)
        if not self.lookups.visibility.everyone:
            raise errors.Forbidden(_OF_ACCOUNTS if self.principal.caller is None else _AS_USER)

    def _list_steps(self) -> list[_Step]:
        numbers = range(len(self.hosting.databases))
        steps = [_Step("open", number) for number in numbers]
        for number in numbers:
            for name in ("sessions", "files", "keys", "deliveries", "usage"):
                steps.append(_Step(name, number))

        # Only the system database, the first, has these tables.
        steps += [_Step("memories", 0), _Step("store_items", 0)]
        return steps + [_Step("file", number) for number in numbers]

    async def _take_step(
        self, call: AuditedCall, step: _Step, place: _Place, erasure: Erasure, record: ErasureRecord
    ) -> None:
        """Execute one unit of a step and advance the place."""
        database = list(self.hosting.databases.values())[step.database]
        user_id = erasure.user_id
        erased = Erased()
        next_position: str | None = None  # None: the step is done

        if step.name == "open":
            await self._end_open_runs(call, database, erasure)

        elif step.name == "file":
            record["files"].append(await self._rewrite(step.database, erasure))

        elif step.name == "deliveries":
            deliveries, next_position = await database.read(
                personal_data.find_deliveries(user_id, place.position, of_deleted=True),
                size="large",
            )
            ids = [row.delivery_id for row in deliveries]
            if ids:
                erased = await call.write(database, personal_data.erase_deliveries(ids))

        else:
            erased = await call.write(database, _UNITS[step.name](user_id))
            if any(erased.rows.values()):
                next_position = ""

        _add_rows(record["erased"], database.id, erased.rows)

        if erased.busy:
            raise errors.Conflict(
                f"The user has started runs in the meantime, in {len(erased.busy)} sessions"
            )

        if next_position is None:
            place.step += 1
            place.position = ""
        else:
            place.position = next_position

    async def _end_open_runs(self, call: AuditedCall, database: Database, erasure: Erasure) -> None:
        """Cancel the live and paused runs of the person in a database.

        Raises:
            Conflict: there are such runs, and they may not be cancelled or do not stop.
        """
        work = personal_data.list_open_runs(erasure.user_id)
        while open_runs := await database.read(work, size="unknown"):
            if not erasure.cancel:
                raise errors.Conflict(f"The user has live or paused runs: {', '.join(open_runs)}")

            await call.commit_first(database)
            await self.hosting.canceller.cancel_several(
                database,
                open_runs,
                actor=self.principal.actor,
                reason="The data of the user is erased",
                wait=DELETION_WAIT,
            )

            still_open = await database.read(work, size="unknown")
            left_runs = sorted(set(open_runs).intersection(still_open))
            if left_runs:
                raise errors.Conflict(f"Runs of the user have not stopped: {', '.join(left_runs)}")

    async def _rewrite(self, number: int, erasure: Erasure) -> RewrittenFile:
        """Remove the erased bytes from the file of a database; PostgreSQL does it by itself."""
        entry = self.hosting.settings.databases[number]
        if not is_sqlite_url(entry.url):
            return RewrittenFile(
                db_id=entry.id,
                engine="postgres",
                bytes=None,
                vacuumed=False,
                log_emptied=False,
                seconds=0.0,
            )

        maximum_bytes = {"auto": VACUUM_BYTES, "always": None, "never": -1}[erasure.vacuum]
        rewrite = await rewrite_file(sqlite_path(entry.url), maximum_bytes)
        return RewrittenFile(
            db_id=entry.id,
            engine="sqlite",
            bytes=rewrite.bytes,
            vacuumed=rewrite.vacuumed,
            log_emptied=rewrite.log_emptied,
            seconds=round(rewrite.seconds, 3),
        )


async def _count_rows(database: Database, user_id: str, *, is_system: bool) -> list[PersonalRows]:
    """Count the rows of a person by table, with a bounded read for each."""
    tables = [table for table in PERSONAL_TABLES if is_system or not table.is_system]
    counts = {
        table.name: await database.read(personal_data.count_rows(user_id, table), size="large")
        for table in tables
    }

    has_many = max(counts["runs"], counts["sessions"]) > COUNTED_RUNS
    capped_tables = {table.name for table in tables if table.of_runs and has_many}
    capped_tables |= {name for name, count in counts.items() if count > COUNTED_ROWS}
    rows = {name: min(count, COUNTED_ROWS) for name, count in counts.items()}
    rows["webhook_deliveries"] += await _count_of_deleted_runs(database, user_id)

    records = _build_rows(database.id, rows)
    for record in records:
        if record["table"] in capped_tables:
            record["is_capped"] = True

    return records


async def _count_of_deleted_runs(database: Database, user_id: str) -> int:
    """Count the deliveries about runs of a person that do not exist any more."""
    count = 0
    position: str | None = ""
    while position is not None:
        work = personal_data.find_deliveries(user_id, position, of_deleted=True)
        deliveries, position = await database.read(work, size="large")
        count += len(deliveries)
    return count


def _read_place(text: str, user_id: str, step_count: int) -> _Place:
    """Read the text of a cursor of an erasure; ValueError if it belongs to another one."""
    step, position, owner = text.split(":", 2)
    if owner != user_id or not 0 <= int(step) < step_count:
        raise ValueError
    return _Place(int(step), check_text("cursor", position))


def _read_bound(text: str, part: PersonalPart) -> str:
    """Read the position in the text of a cursor of a list; ValueError if it is not one."""
    name, _, position = text.partition(":")
    if name != part:
        raise ValueError

    if part in ("usage", "audit", "store"):
        # The position begins with a number; the databases have numbers of 64 bits.
        number = position.partition(":")[0] if part == "store" else position
        if abs(int(number)) >= 2**63:
            raise ValueError
    return check_text("cursor", position)


def _build_rows(db_id: str, rows: Mapping[str, int]) -> list[PersonalRows]:
    return [
        PersonalRows(db_id=db_id, table=name, rows=count, erasure=_ERASURES[name])
        for name, count in rows.items()
    ]


def _list_kept(record: PersonalDataRecord) -> Iterator[KeptData]:
    for row in record["tables"]:
        table = row["table"]
        if row["erasure"] != "keep":
            continue
        if table == "audit_log":
            # Also without entries: an erasure itself is recorded.
            days = record["audit_days"]
            yield KeptData(what=table, rows=row["rows"], days=days, reason=_KEPT[table])
        elif row["rows"]:
            yield KeptData(what=table, rows=row["rows"], days=None, reason=_KEPT[table])

    if record["held_count"]:
        reason = "an administrator holds the sessions"
        yield KeptData(what="held sessions", rows=record["held_count"], days=None, reason=reason)

    for what, reason in _KEPT_UNCOUNTED.items():
        yield KeptData(what=what, rows=None, days=None, reason=reason)

    if any(database["engine"] == "postgres" for database in record["databases"]):
        reason = "dead rows stay in the files of PostgreSQL until VACUUM"
        yield KeptData(what="dead rows", rows=None, days=None, reason=reason)


def _add_rows(total: list[PersonalRows], db_id: str, rows: Mapping[str, int]) -> None:
    """Add the numbers of erased rows to a total, in place; a table without any is left out."""
    total_rows = {(row["db_id"], row["table"]): row for row in total}
    for row in _build_rows(db_id, rows):
        total_row = total_rows.get((db_id, row["table"]))
        if total_row is not None:
            total_row["rows"] += row["rows"]
        elif row["rows"]:
            total.append(row)


async def _read_decisions(database: Database, user_id: str, after: str, limit: int) -> _PartPage:
    # A read is bounded by the rows that it compares: it may find none, and not be the last.
    position: str | None = after
    decisions: list[DecisionOnOthers] = []
    while position is not None and not decisions:
        work = personal_data.find_decisions(user_id, position)
        decisions, position = await database.read(work, size="large")

    rows = [
        {**row._asdict(), "decided_at": format_optional_time(row.decided_at)} for row in decisions
    ]
    return rows, position


async def _read_deliveries(database: Database, user_id: str, after: str, limit: int) -> _PartPage:
    position: str | None = after
    deliveries: list[Delivery] = []
    while position is not None and not deliveries:
        work = personal_data.find_deliveries(user_id, position)
        deliveries, position = await database.read(work, size="large")

    rows: list[dict[str, Any]] = [
        {
            **row._asdict(),
            "created_at": format_optional_time(row.created_at),
            "delivered_at": format_optional_time(row.delivered_at),
            "body": orjson.loads(row.body),
        }
        for row in deliveries
    ]
    return rows, position


async def _read_usage(database: Database, user_id: str, after: str, limit: int) -> _PartPage:
    work = personal_data.list_days(user_id, int(after or -1), min(limit, 30))
    days = await database.read(work, size="large")
    if not days:
        return [], None

    last_key, _ = days[-1]
    return [_build_day(key, sums) for key, sums in days], str(last_key.start)


def _build_day(key: SumKey, sums: Sums) -> dict[str, Any]:
    return {
        "day": format_rfc3339(key.start)[:10],
        "component_type": key.component_type,
        "component_id": key.component_id,
        "model": key.model or None,
        **{column.name: getattr(sums, column.name) for column in fields(sums)},
        "cost": sums.cost / NANODOLLARS,
    }


async def _read_store(database: Database, user_id: str, after: str, limit: int) -> _PartPage:
    # A position has the length of the namespace of the last item, the namespace and the key.
    last_item = ("", "")
    if after:
        length_text, _, names = after.partition(":")
        length = int(length_text)
        last_item = (names[:length], names[length:])

    limit = min(limit, EXPORTED_ITEMS)
    rows = await database.read(store_items.list_of_user(user_id, last_item, limit), size="large")
    items: list[dict[str, Any]] = [
        {
            "namespace": row.labels,
            "key": row.key,
            "value": orjson.loads(row.value),
            "created_at": format_rfc3339(row.created_at),
            "updated_at": format_rfc3339(row.updated_at),
        }
        for row in rows
    ]

    if len(rows) < limit:
        return items, None

    namespace = rows[-1].namespace
    return items, f"{len(namespace)}:{namespace}{rows[-1].key}"


async def _read_audit(database: Database, user_id: str, after: str, limit: int) -> _PartPage:
    position: int | None = int(after or 0)
    entries: list[AuditRow] = []
    while position is not None and not entries:
        work = personal_data.find_audit_entries(user_id, position)
        entries, position = await database.read(work, size="large")

    rows: list[dict[str, Any]] = [{**build_entry(row)} for row in entries]
    if position is None:
        return rows, None
    return rows, str(position)


_READERS: Mapping[PersonalPart, Callable[[Database, str, str, int], Awaitable[_PartPage]]] = {
    "decisions": _read_decisions,
    "deliveries": _read_deliveries,
    "usage": _read_usage,
    "audit": _read_audit,
    "store": _read_store,
}
