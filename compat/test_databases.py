"""Databases of AgentOS, read while it uses them and after it has crashed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import httpx2
import pytest

from compat.fixtures import Agentctl
from compat.servers import Peer

SIDES = ("", "-wal", "-shm", "-journal")


@pytest.fixture
def reader(tmp_path: Path) -> Agentctl:
    """Commands without a server."""
    home = tmp_path / "home"
    home.mkdir()
    return Agentctl("", "", home)


def read(reader: Agentctl, file: Path | str, *words: str) -> Any:
    """Return the document of a command on a database."""
    ended = reader(*words, "--database", str(file), "-o", "json", remote=False)
    assert ended.code == 0, ended.stderr
    return json.loads(ended.stdout)


def fingerprint(file: Path) -> dict[str, str]:
    """Return the hashes of a file and its side files, and of the names in its folder."""
    names = sorted(path.name for path in file.parent.iterdir())
    found = {"folder": " ".join(names)}
    for ending in SIDES:
        path = file.with_name(file.name + ending)
        if path.exists():
            found[ending] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def list_ids(reader: Agentctl, file: Path) -> list[str]:
    """Return the ids of all sessions, page by page."""
    ids: list[str] = []
    cursor: tuple[str, ...] = ()
    while True:
        page = read(reader, file, "sessions", "list", "--limit", "7", *cursor)
        ids += [session["session_id"] for session in page["data"]]
        following = page["meta"]["next_cursor"]
        if following is None:
            return ids
        cursor = ("--cursor", following)


def test_file_of_a_working_server_is_read_completely(
    served: Peer, agentctl: Agentctl, reader: Agentctl
) -> None:
    file = Path(served.database.removeprefix("sqlite:///"))
    headers = {"Authorization": f"Bearer {agentctl.token}"}

    def start(number: int) -> None:
        kind, component = (("agents", "echo"), ("teams", "crew"), ("workflows", "line"))[number % 3]
        form = {"message": "echo it", "stream": "false", "session_id": f"live-{number % 11}"}
        url = f"{served.url}/{kind}/{component}/runs"
        form["session_id"] += kind
        assert httpx2.post(url, data=form, headers=headers, timeout=60).status_code == 200

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(start, range(18)))
    page = httpx2.get(f"{served.url}/sessions?limit=1000", headers=headers).json()["data"]
    theirs = {
        name: httpx2.get(f"{served.url}/sessions/{name}/runs", headers=headers).json()
        for name in (session["session_id"] for session in page)
    }
    before = fingerprint(file)
    found = list_ids(reader, file)
    assert (len(found), set(found)) == (len(theirs), theirs.keys())
    for session_id in [name for name in found if name.startswith("live-")][:4]:
        runs = theirs[session_id]
        ours = read(reader, file, "sessions", "runs", session_id)
        assert {run["run_id"] for run in ours} >= {run["run_id"] for run in runs}
        assert all(run["status"] == "COMPLETED" and run["content"] for run in ours)
        detail = read(reader, file, "sessions", "get", session_id)
        tokens = sum(run["metrics"]["total_tokens"] for run in ours)
        assert detail.get("total_tokens", tokens) == tokens
    assert fingerprint(file) == before
    if "-wal" not in before:
        return  # release 2 has a rollback journal
    crashed = file.parent.parent / "crashed"
    crashed.mkdir()
    for ending in ("", "-wal"):
        shutil.copyfile(f"{file}{ending}", crashed / f"agentos.db{ending}")
    before = fingerprint(crashed / "agentos.db")
    assert set(list_ids(reader, crashed / "agentos.db")) == theirs.keys()
    assert fingerprint(crashed / "agentos.db") == before


SESSIONS = """
    CREATE TABLE agno_sessions (
        session_id VARCHAR NOT NULL PRIMARY KEY, session_type VARCHAR NOT NULL, agent_id VARCHAR,
        team_id VARCHAR, workflow_id VARCHAR, user_id VARCHAR, session_data JSON, agent_data JSON,
        team_data JSON, workflow_data JSON, metadata JSON, {runs} summary JSON,
        created_at BIGINT NOT NULL, updated_at BIGINT
    )
"""
RUNS = """
    CREATE TABLE agno_runs (
        run_id VARCHAR NOT NULL PRIMARY KEY, session_id VARCHAR NOT NULL, run_type VARCHAR,
        agent_id VARCHAR, user_id VARCHAR, status VARCHAR, run_index BIGINT, run_data JSON NOT NULL,
        created_at BIGINT NOT NULL, updated_at BIGINT
    )
"""


def twice(value: object) -> str:
    """Encode a value as AgentOS 2 does."""
    return json.dumps(json.dumps(value))


def build_run(run_id: str, message: str, **more: Any) -> dict[str, Any]:
    """Build a run as AgentOS stores it."""
    run = {
        "run_id": run_id,
        "agent_id": "a",
        "session_id": "s1",
        "status": "COMPLETED",
        "created_at": 1_795_000_000,
        "input": {"input_content": message},
        "content": "fine",
        "metrics": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7},
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": message},
            {"role": "assistant", "content": "fine"},
        ],
    }
    return run | more


@pytest.fixture
def legacy(tmp_path: Path) -> Iterator[Path]:
    """A file in the layout of release 2: runs in the rows, encoded twice, two rows unreadable."""
    file = tmp_path / "legacy" / "agentos.db"
    file.parent.mkdir()
    connection = sqlite3.connect(file)
    connection.execute(SESSIONS.format(runs="runs JSON,"))
    runs = [build_run("r1", "hello"), None, build_run("r2", "again", status="ERROR", content="No")]
    rows = [
        ("s1", "agent", "a", twice({"session_state": {"k": 1}}), twice(runs), 10),
        ("s2", "agent", "a", "not json", "null", 20),
        ("s3", "agent", "a", twice({"session_name": "Named"}), "[5]", 30),
        ("s4", "agent", "a", b"\xff\xfe", twice("text"), 40),
    ]
    connection.executemany(
        "INSERT INTO agno_sessions (session_id, session_type, agent_id, session_data, runs,"
        " created_at) VALUES (?, ?, ?, ?, ?, ?)",
        rows,
    )
    connection.commit()
    connection.close()
    yield file
    file.parent.chmod(stat.S_IRWXU)


def test_sessions_of_release_2_with_unreadable_rows(reader: Agentctl, legacy: Path) -> None:
    before = fingerprint(legacy)
    rows = read(reader, legacy, "sessions", "list")["data"]
    assert [row["session_id"] for row in rows] == ["s4", "s3", "s2", "s1"]
    by_id = {row["session_id"]: row for row in rows}
    assert by_id["s1"]["session_name"] == "hello"
    assert (by_id["s1"]["total_tokens"], by_id["s1"]["run_count"]) == (14, 2)
    assert by_id["s1"]["last_status"] == "ERROR"
    assert "problem" not in by_id["s1"]
    assert (by_id["s3"]["session_name"], by_id["s3"]["last_status"]) == ("Named", "UNREADABLE")
    assert by_id["s2"]["problem"] == "session_data is not JSON"
    assert by_id["s4"]["problem"] == "session_data is not JSON; runs is not an array"
    named = read(reader, legacy, "sessions", "list", "--name", "name")["data"]
    assert [row["session_id"] for row in named] == ["s3"]
    session = read(reader, legacy, "sessions", "get", "s1")
    assert [line["content"] for line in session["chat_history"]] == [
        "hello", "fine", "again", "fine",
    ]  # fmt: skip
    runs = read(reader, legacy, "sessions", "runs", "s1")
    assert runs[1]["error"] == {"code": "RUN_FAILED", "detail": "No"}
    assert read(reader, legacy, "sessions", "runs", "s1", "--after", "r1") == runs[1:]
    table = reader("sessions", "list", "--database", str(legacy), remote=False)
    assert "session s2 cannot be read: session_data is not JSON\n" in table.stderr
    assert fingerprint(legacy) == before


def test_sessions_of_a_file_are_filtered(reader: Agentctl, legacy: Path) -> None:
    connection = sqlite3.connect(legacy)
    for name, metadata in (("s1", {"tags": ["vip"], "n": 3}), ("s3", {"tags": "vip", "n": "3"})):
        values = (twice(metadata), name)
        connection.execute("UPDATE agno_sessions SET metadata = ? WHERE session_id = ?", values)
    connection.commit()
    connection.close()
    for options, expected in {
        "--tag vip": ["s3", "s1"],
        "--tag vip --sort-order asc": ["s1", "s3"],
        "--tag vip --name hel": ["s1"],
        "--metadata n=3 --all": ["s3", "s1"],
        "--metadata n=4": [],
        "--status error": ["s1"],
        "--error run_failed": ["s1"],
        "--error other": [],
        "--older-than 1d --idle 1970-01-01T00:00:25Z": ["s2", "s1"],
        "--newer-than 1970-01-01T00:00:20Z --all": ["s4", "s3", "s2"],
    }.items():
        rows = read(reader, legacy, "sessions", "list", *options.split())["data"]
        assert [row["session_id"] for row in rows] == expected, options
    refused = reader("sessions", "list", "--tag", "", "--database", str(legacy), remote=False)
    assert "tag must be 1 to 256 characters" in refused.stderr


def test_exports_of_a_database(reader: Agentctl, legacy: Path) -> None:
    connection = sqlite3.connect(legacy)
    connection.execute(MEMORIES)
    row = ("m1", '"Likes tea"', "ada", '["drinks"]')
    connection.execute("INSERT INTO agno_memories VALUES (?, ?, 'a', NULL, ?, ?, 50, 60)", row)
    connection.commit()
    connection.close()
    before = fingerprint(legacy)
    (memory,) = read(reader, legacy, "memories", "list")["data"]
    assert (memory["memory"], memory["user_id"]) == ("Likes tea", "ada")
    exported = reader("sessions", "export", "s1", "--database", str(legacy), remote=False)
    (line,) = exported.lines
    assert [run["run_id"] for run in json.loads(line)["runs"]] == ["r1", "r2"]
    assert fingerprint(legacy) == before


def test_newer_runs_are_ordered_and_merged(reader: Agentctl, legacy: Path) -> None:
    connection = sqlite3.connect(legacy)
    connection.execute(RUNS)
    runs = [("r5", 1, 6), ("r4", 1, 5), ("r2", 0, 3), ("r3", None, 4), ("r6", 2, 1)]
    connection.executemany(
        "INSERT INTO agno_runs (run_id, session_id, run_index, run_data, created_at)"
        " VALUES (?, 's1', ?, ?, ?)",
        [(name, index, json.dumps(build_run(name, name)), at) for name, index, at in runs],
    )
    connection.execute("UPDATE agno_runs SET run_data = '{' WHERE run_id = 'r6'")
    connection.commit()
    connection.close()
    found = read(reader, legacy, "sessions", "runs", "s1")
    assert [run["run_id"] for run in found] == ["r1", "r2", "r3", "r4", "r5", "r6"]
    assert [run["status"] for run in found] == ["COMPLETED"] * 5 + ["UNREADABLE"]
    assert found[-1]["error"]["detail"] == "run_data is not JSON"


def test_closed_wal_file_is_read_without_side_files(reader: Agentctl, legacy: Path) -> None:
    connection = sqlite3.connect(legacy)
    connection.execute("PRAGMA journal_mode = wal")
    connection.close()
    before = fingerprint(legacy)
    assert list(before) == ["folder", ""]
    legacy.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert len(list_ids(reader, legacy)) == 4
    assert fingerprint(legacy) == before


def test_uncommitted_changes_of_a_crash_are_not_read(reader: Agentctl, legacy: Path) -> None:
    connection = sqlite3.connect(legacy, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("PRAGMA cache_spill = 1")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE agno_sessions SET user_id = hex(randomblob(20000))")
    crashed = legacy.parent / "crashed.db"
    shutil.copyfile(legacy, crashed)
    shutil.copyfile(f"{legacy}-journal", f"{crashed}-journal")
    connection.close()
    before = fingerprint(crashed)
    rows = read(reader, crashed, "sessions", "list")["data"]
    assert [row["user_id"] for row in rows] == [None] * 4
    assert fingerprint(crashed) == before


MEMORIES = """
    CREATE TABLE agno_memories (
        memory_id VARCHAR NOT NULL PRIMARY KEY, memory JSON NOT NULL, agent_id VARCHAR,
        team_id VARCHAR, user_id VARCHAR, topics JSON, created_at BIGINT, updated_at BIGINT
    )
"""


def test_import_can_be_repeated_and_continued(
    reader: Agentctl, legacy: Path, tmp_path: Path
) -> None:
    connection = sqlite3.connect(legacy)
    connection.execute(MEMORIES)
    connection.executemany(
        "INSERT INTO agno_memories VALUES (?, ?, 'a', NULL, ?, ?, 50, 60)",
        [
            ("m1", '"Likes tea"', "ada", '["drinks"]'),
            ("m2", '{"memory": "Old form"}', "ada", "null"),
            ("m3", '"Of nobody"', None, "null"),
        ],
    )
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    tool = {"role": "tool", "content": "1", "tool_call_id": "c1", "tool_name": "f"}
    calls = [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}, tool]
    runs = [
        build_run("p1", "member", parent_run_id="p2"),
        build_run("p2", "lead", messages=[*calls, {"role": "assistant", "content": "fine"}]),
        build_run("p3", "gone", status="CANCELLED", messages=calls[:2]),
        build_run("p4", "now", status="RUNNING"),
    ]
    connection.execute(
        "INSERT INTO agno_sessions (session_id, session_type, agent_id, runs, created_at)"
        " VALUES ('s5', 'agent', 'echo', ?, 50)",
        [twice(runs)],
    )
    connection.commit()
    connection.close()
    before = fingerprint(legacy)
    config = tmp_path / "agentctl.toml"
    config.write_text(
        '[[databases]]\nid = "main"\nurl = "sqlite:///main.db"\n[[models]]\nid = "echo"\n'
        'provider = "demo"\nmodel = "echo"\n[[agents]]\nid = "echo"\nmodel = "echo"\n'
        "[search]\nenabled = true\n"
    )
    here = ("--config", str(config))

    def count(*words: str) -> dict[str, int]:
        ended = reader("db", "import", str(legacy), *here, *words, "-o", "json", remote=False)
        assert ended.code == 1, ended.stderr
        for text in ("s2: unreadable: session_data", "p4: the run is RUNNING", "m3: the memory"):
            assert f"left out: {text}" in ended.stderr
        return {row["what"]: row["count"] for row in json.loads(ended.stdout)}

    assert count() == {"sessions": 3, "runs": 5, "memories": 2}
    assert count() == {
        "sessions that existed": 3, "runs that existed": 5, "memories that existed": 2,
    }  # fmt: skip
    assert fingerprint(legacy) == before
    quotas = tmp_path / "quotas.toml"
    bounds = "[quotas]\nsessions_per_user = 1\nmemories_per_user = 1\n"
    quotas.write_text(config.read_text().replace("main.db", "few.db") + bounds)
    few = reader("db", "import", str(legacy), "--config", str(quotas), "-o", "json", remote=False)
    rows = {row["what"]: row["count"] for row in json.loads(few.stdout)}
    assert (few.code, rows["memories"]) == (1, 1)
    assert "raise quotas.memories_per_user" in few.stderr
    assert "raise quotas.sessions_per_user" in few.stderr
    for session_id in ("s1", "s5"):
        words = ("sessions", "runs", session_id)
        ended = reader(*words, *here, "-o", "json", remote=False)
        ours = {run["run_id"]: run for run in json.loads(ended.stdout)}
        theirs = {run["run_id"]: run for run in read(reader, legacy, *words)}
        assert theirs.keys() - ours.keys() == ({"p4"} if session_id == "s5" else set())
        for run_id, run in ours.items():
            for name in ("status", "input", "content", "error", "metrics", "parent_run_id"):
                assert run[name] == theirs[run_id][name], (run_id, name)
    found = reader("sessions", "list", "--search", "lead", "-o", "name", *here, remote=False)
    assert found.stdout == "s5\n"
    again = ("runs", "start", "--agent", "echo", "-m", "more", "--session", "s5")
    assert reader(*again, *here, remote=False).stdout == "more\n"
    memories = reader("memories", "list", *here, "-o", "json", remote=False)
    assert [row["memory"] for row in json.loads(memories.stdout)["data"]] == [
        "Old form", "Likes tea",
    ]  # fmt: skip
    assert reader("db", "check", *here, remote=False).code == 0


def test_schema_of_postgresql_is_read(reader: Agentctl, postgres_url: str) -> None:
    name = f"agentos_{uuid4().hex[:12]}"

    async def fill() -> None:
        server = await asyncpg.connect(postgres_url)
        await server.execute(f"CREATE DATABASE {name}")
        await server.close()
        connection = await asyncpg.connect(postgres_url, database=name)
        await connection.execute("CREATE SCHEMA ai; SET search_path = ai")
        for table in (SESSIONS.format(runs=""), RUNS):
            await connection.execute(table.replace("JSON", "JSONB"))
        await connection.execute(
            "INSERT INTO agno_sessions (session_id, session_type, agent_id, session_data, metadata,"
            " created_at) VALUES ('s1', 'agent', 'a', '{}', 'null', 10), ('s2', 'team', NULL,"
            ' \'{"session_name": "Named"}\', \'{"k": 1}\', 20)'
        )
        for number in range(3):
            await connection.execute(
                "INSERT INTO agno_runs (run_id, session_id, run_index, run_data, created_at)"
                " VALUES ($1, 's1', 0, $2, $3)",
                f"r{number}",
                json.dumps(build_run(f"r{number}", "hello")),
                30 - number,
            )
        await connection.close()

    asyncio.run(fill())
    url = urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    rows = read(reader, url, "sessions", "list")["data"]
    assert [(row["session_name"], row["total_tokens"]) for row in rows] == [
        ("Named", 0), ("hello", 21),
    ]  # fmt: skip
    assert read(reader, url, "sessions", "get", "s2")["metadata"] == {"k": 1}
    runs = read(reader, url, "sessions", "runs", "s1")
    assert [run["run_id"] for run in runs] == ["r2", "r1", "r0"]


def test_other_files_are_refused(reader: Agentctl, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("This is not a database." * 9)
    sqlite3.connect(tmp_path / "empty.db").execute("CREATE TABLE t (a)").connection.close()
    for name, code, text in (
        ("text.db", 7, "is not a database"),
        ("empty.db", 2, "not a database of AgentOS"),
        ("missing.db", 7, "cannot be opened"),
    ):
        ended = reader("sessions", "list", "--database", str(tmp_path / name), remote=False)
        assert (ended.code, text in ended.stderr) == (code, True), ended.stderr
    assert not (tmp_path / "missing.db").exists()


def test_configuration_names_a_database_of_agentos(
    reader: Agentctl, legacy: Path, tmp_path: Path
) -> None:
    config = tmp_path / "agentctl.toml"
    config.write_text(
        '[[databases]]\nid = "main"\nurl = "sqlite:///main.db"\n'
        f'[[databases]]\nid = "old"\nurl = "sqlite:///{legacy}"\nlayout = "agentos"\n'
    )
    here = ("--db", "old", "--config", str(config), "-o", "name")
    listed = reader("sessions", "list", *here, remote=False)
    assert listed.lines == ["s4", "s3", "s2", "s1"], listed.stderr
    ended = reader("sessions", "rename", "s1", "New", *here[:-2], remote=False)
    assert ended.code != 0
