"""`agentctl db copy`: wrong input, the files of a copy, and the databases after it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from agentctl.config.settings import Database
from tests.cli.conftest import Agentctl
from tests.cli.test_db import CONFIG, change, config, file
from tests.kit.postgres import drop_schema

__all__ = ["config", "file"]


@pytest.fixture
def target(postgres_url: str) -> Iterator[Database]:
    entry = Database("new", postgres_url, search_path=f"copy_{uuid4().hex}")
    yield entry
    asyncio.run(drop_schema(entry))


@pytest.fixture
def moving(agentctl: Agentctl, config: Path, file: Path, target: Database) -> Path:
    """A configuration with a database of one session, and the target `new`."""
    assert agentctl("db", "migrate", "--config", str(config)).code == 0
    change(
        file,
        "INSERT INTO sessions (session_id, session_type, session_name, total_tokens, run_count,"
        " history_bytes, created_at, updated_at, metrics) VALUES ('s1', 'agent', '', 0, 0, 0, 1,"
        " 1, '{}')",
    )
    entry = f'\n[[databases]]\nid = "new"\nurl = "{target.url}"\nsearch_path = "'
    path = config.with_name("moving.toml")
    path.write_text(f'{CONFIG}{entry}{target.search_path}"\n')
    return path


def test_wrong_places_of_a_copy_are_refused(agentctl: Agentctl, config: Path, moving: Path) -> None:
    where = ("--config", str(config))
    to = ("--to", "new", "--config", str(moving))
    for wrong, message in (
        (where, "give the target with --to"),
        (("--to", "nowhere", *where), "database 'nowhere' not found"),
        (("--to", "postgresql://me:secret@db/x", *where), "must not contain a password"),
        (("--to", "mysql://db/x", *where), "must be "),
        (("--to", "main", *where), "is a SQLite file"),
        (("--to", "sqlite:///other.db", *where), "use db backup FILE"),
        (("--from", "new", *to[2:], "--to", "main"), "there is no way back to SQLite"),
        (to, "confirmation required"),
    ):
        ended = agentctl("db", "copy", *wrong)
        assert ended.code != 0, wrong
        assert message in ended.stderr, wrong
        assert "secret" not in ended.stderr


def test_copy_moves_a_database_and_names_the_new_place(
    agentctl: Agentctl, config: Path, file: Path, moving: Path, target: Database
) -> None:
    where = ("--config", str(config))
    early = config.with_name("early.db")
    closed = config.with_name("closed.db")
    assert agentctl("db", "backup", str(early), *where).code == 0

    ended = agentctl("db", "copy", "--to", "new", "--config", str(moving), "--yes", "-o", "json")

    facts = json.loads(ended.stdout)
    assert (facts["from"], facts["rows"]) == (str(file), 2)
    assert {each["table"]: each["rows"] for each in facts["tables"]}["sessions"] == 1
    assert f"moved to {target.url} (schema {target.search_path})" in ended.stderr
    assert f"{file} is closed" in ended.stderr
    for command in (["sessions", "list"], ["serve", "--port", "0"]):
        ended = agentctl(*command, *where)
        assert ended.code == 7
        assert "the database has moved" in ended.stderr
        assert f"cause: {file} was copied to {target.url}" in ended.stderr
        assert f"url: {target.url}" in ended.stderr
    ended = agentctl("db", "status", "-o", "json", *where)
    assert json.loads(ended.stdout)[0]["state"] == "moved"

    served = moving.read_text().replace('id = "main"\nurl = "sqlite:///agentctl.db"\n\n', "")
    config.write_text(served.replace("[[databases]]\n[[models]]", "[[models]]"))
    assert agentctl("sessions", "list", "-o", "name", *where).lines == ["s1"]

    config.write_text(CONFIG)
    assert agentctl("db", "backup", str(closed), *where).code == 0
    ended = agentctl("db", "restore", str(closed), "--replace", *where)
    assert (ended.code, f"cause: {closed} was copied" in ended.stderr) == (7, True)
    assert agentctl("db", "restore", str(early), "--replace", *where).code == 0
    ended = agentctl("db", "copy", "--to", "new", "--config", str(moving), "--yes")
    assert (ended.code, "belongs to another copy" in ended.stderr) == (6, True)


@pytest.mark.parametrize("is_stored", [True, False])
def test_copy_names_files_without_bytes(
    agentctl: Agentctl, config: Path, file: Path, moving: Path, is_stored: bool
) -> None:
    digest = hashlib.sha256(b"123456789").hexdigest()
    change(
        file,
        "INSERT INTO files (file_id, name, media_type, size, sha256, blob, origin, version,"
        f" created_at) VALUES ('lost', 'a.txt', 'text/plain', 9, '{digest}', 'u/{digest}',"
        " 'upload', 1, 1)",
    )
    stored = config.with_name("files") / "u"
    if is_stored:
        stored.mkdir(parents=True)
        (stored / digest).write_bytes(b"123456789")

    ended = agentctl("db", "copy", "--to", "new", "--config", str(moving), "--yes")

    assert "moved to " in ended.stderr
    if is_stored:
        assert ended.code == 0
        assert f"bytes of 1 file are in the folder {stored.parent}: do not change" in ended.stderr
    else:
        assert (ended.code, "bytes of 1 file are missing" in ended.stderr) == (1, True), ended
        assert "such as those of file lost" in ended.stderr
