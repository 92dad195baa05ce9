"""Rows of a person in every table, and a search through all of them."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import apsw
import asyncpg

from agentctl import errors
from agentctl.auth.principal import local_principal
from agentctl.config.databases import is_sqlite_url, sqlite_path
from agentctl.config.quotas import Quotas
from agentctl.config.settings import Database as Entry
from agentctl.interface.requests import NewSession, RunRequest
from agentctl.interface.requests.administration import PersonalRowsFilter
from agentctl.interface.requests.memories import NewMemory
from agentctl.records.store_items import ItemPut
from agentctl.records.times import now
from agentctl.service.service import Service
from agentctl.store.repositories import store_items
from agentctl.store.repositories.store_items import Space

__all__ = ["MARKER", "SEARCH", "Raw", "Rows", "fill", "find_tables"]

MARKER = "sapphire7731"
"""A text of the person, in every table; it is also a word of a memory."""

SEARCH = "[search]\nenabled = true\n"

Rows = dict[str, list[tuple[Any, ...]]]


class Raw:
    """A database without agentctl."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self.is_sqlite = is_sqlite_url(entry.url)

    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        if self.is_sqlite:
            with contextlib.closing(apsw.Connection(str(sqlite_path(self._entry.url)))) as opened:
                opened.set_busy_timeout(5_000)
                return list(opened.execute(sql))
        opened_pg = await asyncpg.connect(
            self._entry.url, server_settings={"search_path": self._entry.search_path}
        )
        try:
            return [tuple(row) for row in await opened_pg.fetch(sql)]
        finally:
            await opened_pg.close()

    async def list_columns(self) -> dict[str, list[tuple[str, bool]]]:
        """Return the columns of each table, with True for texts."""
        if self.is_sqlite:
            sql = (
                "SELECT m.name, c.name, c.type = 'TEXT' FROM pragma_table_list m,"
                " pragma_table_info(m.name) c WHERE m.schema = 'main' AND m.type = 'table'"
                " AND m.name NOT LIKE 'sqlite%'"
            )
        else:
            sql = (
                "SELECT table_name::text, column_name::text, data_type = 'text'"
                " FROM information_schema.columns WHERE table_schema = current_schema()"
                " ORDER BY table_name, ordinal_position"
            )
        found: dict[str, list[tuple[str, bool]]] = {}
        for table, column, is_text in await self.query(sql):
            found.setdefault(table, []).append((column, bool(is_text)))
        return found

    async def read_all(self) -> Rows:
        return {
            table: sorted(await self.query(f"SELECT * FROM {table}"), key=repr)
            for table in await self.list_columns()
        }

    async def insert(self, table: str, text: str, **given: Any) -> None:
        """Insert a row whose other columns have a text, or 1."""
        columns = (await self.list_columns())[table]
        values = {name: text if is_text else 1 for name, is_text in columns} | given
        shown = ", ".join("NULL" if value is None else repr(value) for value in values.values())
        await self.query(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({shown})")


def find_tables(rows: Rows, text: str) -> set[str]:
    """Return the tables in which any column of any row has a text.

    The text must not be one of hexadecimal digits, which are part of ids by chance.
    """
    return {table for table, found in rows.items() if any(text in repr(row) for row in found)}


async def fill(service: Service, raw: Raw, user_id: str, text: str) -> None:
    """Write a text of a user into every table, through operations where possible."""
    operations = service.operations_for(local_principal("boss"))
    session_id = f"session-of-{user_id}"
    await operations.sessions.create(
        NewSession(
            session_id=session_id,
            session_name=text,
            session_state={"at": text},
            metadata={"of": text},
            user_id=user_id,
            component_id="echo",
        )
    )
    request = RunRequest(
        text, session_id, user_id, metadata={"of": text}, idempotency_key=f"key-{text}"
    )
    run = (await operations.runs.create("agent", "echo", request)).value
    await operations.memories.create(NewMemory(f"Likes {text}", (text,), user_id))
    item = ItemPut(("notes", text), text, {"of": text}, words=text, ttl=60)
    work = store_items.put(Space(user_id), [item], Quotas(), now())
    await service.hosting.databases.system.write(work)
    own = service.operations_for(local_principal("boss", acting_for=user_id))
    with contextlib.suppress(errors.Forbidden):
        await own.users.list_rows(PersonalRowsFilter(user_id, "usage"))  # denied
    run_id = run["run_id"]
    of_run = {"run_id": run_id}
    await raw.insert("run_events", text, **of_run, first_seq=98, last_seq=99, events=text)
    await raw.insert("run_checkpoints", text, **of_run, body=text, kind=text)
    await raw.insert("run_steps", text, **of_run, body=text, kind=text, name=text)
    await raw.insert("run_messages", text, **of_run, message_id=f"m-{user_id}", content=text)
    for number, of in enumerate((session_id, None)):
        await raw.insert(
            "files",
            text,
            file_id=f"f-{user_id}-{number}",
            user_id=user_id,
            session_id=of,
            blob=f"{number}",
        )
    await raw.insert("live_usage", text, **of_run, user_id=user_id, component_id=text)
    await raw.insert(
        "approvals",
        text,
        **of_run,
        approval_id=f"a-{user_id}",
        user_id=user_id,
        arguments=text,
        root_run_id=run_id,
        session_id=session_id,
        status="approved",
        decided_by="boss",
    )
    for number, of in enumerate((run_id, "gone")):
        body = json.dumps({"data": {"user_id": user_id, "content": text}})
        await raw.insert(
            "webhook_deliveries",
            text,
            delivery_id=f"d-{user_id}-{number}",
            run_id=of,
            body=body,
            state="delivered",
        )
    await raw.insert("idempotency", text, principal=user_id, key=f"own-{text}")
    of_echo = {"user_id": user_id, "component_type": "agent", "component_id": "echo"}
    sums = {"failures": "{}", "first_token": "{}", "duration": "{}", "model": "fast"}
    for start in (0, 86_400_000_000):
        for table in ("usage_hourly", "usage_daily"):
            await raw.insert(table, text, everyone=0, start=start, **of_echo, **sums)
