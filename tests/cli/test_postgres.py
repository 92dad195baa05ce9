"""Local commands on a PostgreSQL database: they work, and what keeps them from it is one line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import asyncpg
import pytest

from agentctl.config import load_settings
from agentctl.config.settings import Database
from tests.cli.conftest import Agentctl
from tests.cli.local_project import running_command, write_config
from tests.kit.deployment import SQLITE_DATABASES, create_deployment
from tests.kit.postgres import absent_schemas

NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture
def config(tmp_path: Path, postgres_url: str) -> Iterator[Path]:
    """A configuration whose databases have no tables yet."""
    folder = tmp_path / "world"
    folder.mkdir()
    with absent_schemas(postgres_url) as databases:
        yield create_deployment(folder, NOWHERE, databases=databases).path


def sql(config: Path, *statements: str) -> None:
    """Change the first database by hand."""
    entry = load_settings(config, {}).databases[0]

    async def run() -> None:
        connection = await connected(entry)
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    asyncio.run(run())


async def connected(entry: Database) -> asyncpg.Connection[Any]:
    return await asyncpg.connect(entry.url, server_settings={"search_path": entry.search_path})


READS = (
    ("sessions", "list"), ("runs", "list"), ("accounts", "list"), ("audit", "list"),
    ("doctor", "--runs"), ("sessions", "get", "s1"), ("runs", "cancel", "r1"),
)  # fmt: skip


def test_database_errors_are_reported(config: Path, agentctl: Agentctl) -> None:
    here = ("--config", str(config))
    for command in READS:
        ended = agentctl(*command, *here)
        assert (ended.code, "there is no database yet" in ended.stderr) == (7, True), command
        assert "agentctl db migrate" in ended.stderr
    assert agentctl("db", "migrate", *here).code == 0
    for command in READS:
        ended = agentctl(*command, *here)
        assert (ended.code, "Traceback" in ended.stderr) in ((0, False), (5, False)), command
    sql(config, "INSERT INTO schema_version VALUES (98, 1, 15)")
    assert agentctl("runs", "list", *here).code == 0
    ended = agentctl("db", "migrate", *here)
    assert (ended.code, "was not changed: schema 98 is newer" in ended.stderr) == (0, True)
    sql(config, "INSERT INTO schema_version VALUES (99, 1, 99)")
    newer = agentctl("runs", "list", *here)
    assert (newer.code, "newer than this agentctl" in newer.stderr) == (1, True)
    sql(config, "DELETE FROM schema_version WHERE version > 1")
    older = agentctl("runs", "list", *here)
    assert (older.code, "agentctl db migrate" in older.stderr) == (1, True)


def test_an_unreachable_database_is_reported(
    tmp_path: Path, postgres_url: str, agentctl: Agentctl
) -> None:
    there = postgres_url.partition("?")[2]
    faults = {
        'url = "postgresql://me@127.0.0.1:1/none"': (7, "does not answer"),
        'url = "postgresql:///none?host=/nowhere&user=me"': (7, "does not answer"),
        'url = "postgresql://me@127.0.0.1/none"\npassword_env = "NONE_OF_OURS"': (
            2, "NONE_OF_OURS is not set",
        ),
    }  # fmt: skip
    if there:
        faults |= {
            f'url = "postgresql://none_{uuid4().hex}@/postgres?{there}"': (7, "refuses the user"),
            f'url = "postgresql://postgres@/none_{uuid4().hex}?{there}"': (7, "does not exist"),
        }
    for number, (lines, (code, text)) in enumerate(faults.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        deployment = create_deployment(
            folder, NOWHERE, databases=SQLITE_DATABASES | {"main": lines}
        )
        for command in (("sessions", "list"), ("runs", "start", "--agent", "echo", "-m", "x")):
            ended = agentctl(*command, "--config", str(deployment.path))
            assert (ended.code, text in ended.stderr) == (code, True), ended.stderr
            assert "Traceback" not in ended.stderr
            assert "audit entries" not in ended.stderr
            if "127.0.0.1:1" in lines:
                place = "cause: database 'main': postgresql://me@127.0.0.1:1/none"
                assert place in ended.stderr


def test_tail_shows_an_entry_committed_after_a_higher_number(
    config: Path, agentctl: Agentctl, environment: dict[str, str], tmp_path: Path
) -> None:
    here = ("--config", str(config))
    assert agentctl("db", "migrate", *here).code == 0
    tail = ("audit", "tail", "-n", "0", "-o", "jsonl", *here)
    with running_command(*tail, environment=environment, log=tmp_path / "tail.log") as command:
        entry = load_settings(config, {}).databases[0]
        told = asyncio.run(_out_of_order(entry, command.stdout))
    assert told == ["sooner", "higher", "lower"]


async def _out_of_order(entry: Database, out: IO[bytes]) -> list[str]:
    """Commit the second of three rows last, and return the output of `tail` in order."""
    row = "INSERT INTO audit_log (at, via, operation, outcome) VALUES (1, 'http', $1, 'allowed')"
    one = await connected(entry)
    other = await connected(entry)

    async def heard() -> str:
        return str(json.loads(await asyncio.to_thread(out.readline))["operation"])

    try:
        # Until it shows something, it may not have begun.
        first = asyncio.ensure_future(heard())
        while not first.done():
            await one.execute(row, "sooner")
            await asyncio.wait([first], timeout=1.5)
        transaction = one.transaction()
        await transaction.start()
        await one.execute(row, "lower")
        await other.execute(row, "higher")
        told = [await first]
        while told[-1] == "sooner":
            told.append(await heard())
        await transaction.commit()
        return [*dict.fromkeys([*told, await heard()])]
    finally:
        await one.close()
        await other.close()


def test_exported_sessions_are_imported_exactly(
    agentctl: Agentctl, config: Path, tmp_path: Path
) -> None:
    there = write_config(tmp_path)
    for text in ("one", "two"):
        start = ("runs", "start", "--agent", "echo", "-m", text, "--session", "s1")
        agentctl(*start, "--config", str(there))
    export = ("sessions", "export", "--all", "--config")
    exported = agentctl(*export, str(there)).raw
    assert len(json.loads(exported)["runs"]) == 2
    for _ in range(2):
        ended = agentctl("sessions", "import", "-", "--config", str(config), input=exported)
        assert ended.code == 0, ended.stderr
        assert agentctl(*export, str(config)).raw == exported
    assert agentctl("doctor", "--db", "main", "--config", str(config)).code == 0
