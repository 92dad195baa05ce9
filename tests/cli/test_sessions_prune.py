"""`agentctl sessions prune`, `hold` and `release`: nothing is lost that was not exported."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import zipfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import apsw
import pytest

from agentctl.cli.commands.sessions import change
from agentctl.cli.commands.sessions.change import ExportFolder
from agentctl.interface.requests import SessionLocator
from agentctl.interface.requests.administration import IdleFilter
from agentctl.records.kinds import Record
from tests.cli.conftest import Agentctl, Terminal
from tests.cli.local_project import in_database, write_config
from tests.kit.command import run_command
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import Deployment
from tests.kit.process import base_environment, start_agentctl
from tests.kit.threaded_server import serve_in_thread

UNIT = 10
"""The sessions that a command in this process removes at a time, in place of 100."""

SESSIONS = 24
"""More than two units."""

KILLS = 60 if os.environ.get("AGENTCTL_TEST_LONG") == "1" else 2

DAY = 86_400_000_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("source"), SESSIONS)


def write_source(folder: Path, sessions: int) -> Path:
    """Create a project with sessions that were used 100 days ago, each with two runs.

    The last two sessions are of another agent.
    """
    config = write_config(folder)
    config.write_text(f"[authorization]\nenabled = false\n{config.read_text()}")
    environment = base_environment() | {"HOME": str(folder)}

    def run(*words: str, typed: bytes = b"") -> bytes:
        ended = run_command(
            *words, "--config", str(config), environment=environment, folder=folder, typed=typed
        )
        assert ended.code == 0, ended.stderr
        return ended.raw

    for text in ("one", "two"):
        run("runs", "start", "--agent", "echo", "--session", "s-000", "--no-stream", "-m", text)
    first = run("sessions", "export", "s-000")
    ids = {each["run_id"] for each in json.loads(first)["runs"]}
    lines = list[bytes]()
    for number in range(1, sessions):
        line = first.replace(b"s-000", b"s-%03d" % number)
        for run_id in ids:
            line = line.replace(run_id.encode(), f"{run_id}.{number:03}".encode())
        lines.append(line)
    run("sessions", "import", "-", typed=b"".join(lines))
    in_database(
        config,
        f"UPDATE sessions SET created_at = created_at - {100 * DAY},"
        f" updated_at = updated_at - {100 * DAY}",
    )
    last_two = f"session_id >= 's-{sessions - 2:03}'"
    in_database(config, f"UPDATE sessions SET component_id = 'other' WHERE {last_two}")
    return config


@pytest.fixture
def config(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small_units = partial(IdleFilter, limit=UNIT)
    monkeypatch.setattr(change, "IdleFilter", small_units)
    shutil.copytree(source.parent, tmp_path / "project")
    return tmp_path / "project" / source.name


def list_ids(config: Path) -> set[str]:
    return {row[0] for row in query(config, "SELECT session_id FROM sessions")}


def query(config: Path, sql: str) -> list[Any]:
    with closing(apsw.Connection(str(config.with_name("agentctl.db")))) as connection:
        return list(connection.execute(sql))


def read_archive(folder: Path) -> dict[str, set[str]]:
    """Return the runs of each session in the files that have their name."""
    found = dict[str, set[str]]()
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            runs = {run["run_id"] for run in record["runs"]}
            found.setdefault(record["session"]["session_id"], set()).update(runs)
    return found


def prune(agentctl: Agentctl, config: Path, *words: str, code: int = 0) -> dict[str, Any]:
    place = () if "--url" in words else ("--config", str(config))
    ended = agentctl("sessions", "prune", *words, *place, "-o", "json")
    assert ended.code == code, ended.stderr
    return json.loads(ended.stdout) if ended.stdout else {}


def test_dry_run_shows_numbers_and_changes_nothing(agentctl: Agentctl, config: Path) -> None:
    held = agentctl("sessions", "hold", "s-001", "--reason", "claim", "--config", str(config))
    assert held.code == 0, held.stderr
    in_database(config, "UPDATE runs SET status = 'PAUSED' WHERE session_id = 's-002'")
    tables = [row[0] for row in query(config, "SELECT name FROM sqlite_schema WHERE type='table'")]
    before = {name: query(config, f"SELECT * FROM {name}") for name in tables}
    found = prune(agentctl, config, "--idle", "90d", "--dry-run")
    assert found.pop("bytes") > SESSIONS * 1_000
    assert found.pop("oldest") <= found.pop("newest")
    assert found == {
        "sessions": SESSIONS - 2, "runs": 2 * (SESSIONS - 2), "held": 1, "busy": 1, "used": 0,
        "files": [],
    }  # fmt: skip
    assert prune(agentctl, config, "--idle", "101d", "--dry-run")["sessions"] == 0
    of_other = prune(agentctl, config, "--idle", "12w", "--dry-run", "--agent", "other")
    assert of_other["sessions"] == 2
    assert {name: query(config, f"SELECT * FROM {name}") for name in tables} == before


@pytest.mark.parametrize("remote", [False, True], ids=["locally", "remotely"])
def test_pruned_sessions_come_back_by_an_import(
    agentctl: Agentctl, config: Path, remote: bool
) -> None:
    def export() -> list[bytes]:
        ended = agentctl("sessions", "export", "--all", "--config", str(config))
        return sorted(ended.raw.splitlines())

    before = export()
    folder = config.with_name("archive")
    agentctl("sessions", "hold", "s-001", "--reason", "claim", "--config", str(config))
    words = ("--idle", "90d", "--export", str(folder), "--yes")
    if remote:
        with serve_in_thread(Deployment(config.parent)) as server:
            done = prune(agentctl, config, *words, "--url", server.url)
    else:
        done = prune(agentctl, config, *words)
    assert (done["sessions"], done["held"], len(done["files"])) == (SESSIONS - 1, 1, 3)
    assert list_ids(config) == {"s-001"}
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    for file in sorted(folder.iterdir()):
        ended = agentctl("sessions", "import", str(file), "--config", str(config))
        assert ended.code == 0, ended.stderr
    agentctl("sessions", "release", "s-001", "--config", str(config))
    assert export() == before
    entries = agentctl(
        "audit", "list", "--operation", "prune_sessions", "-o", "json", "--config", str(config)
    )
    rows = json.loads(entries.stdout)["data"]
    assert sorted(row["count"] for row in rows) == [4, 9, 10]
    assert all(row["resource"].startswith("sessions:sha256:") for row in rows)


def test_files_of_pruned_sessions_are_in_an_archive(
    agentctl: Agentctl, config: Path, tmp_path: Path
) -> None:
    note = tmp_path / "note.txt"
    folder = config.with_name("archive")
    note.write_text("the text of a file")
    words = ("files", "upload", str(note), "--session", "s-003", "-o", "json")
    ended = agentctl(*words, "--config", str(config))
    assert ended.code == 0, ended.stderr
    file_id = json.loads(ended.stdout)["file_id"]
    in_database(config, "UPDATE sessions SET updated_at = (SELECT min(updated_at) FROM sessions)")
    done = prune(agentctl, config, "--idle", "90d", "--export", str(folder), "--yes")
    (archive,) = (file for file in done["files"] if file.endswith(".zip"))
    assert Path(archive).with_suffix(".jsonl").exists()
    with zipfile.ZipFile(archive) as exported:
        assert exported.read(f"files/{file_id}.txt") == note.read_bytes()
        assert json.loads(exported.read("files.jsonl"))["session_id"] == "s-003"
    assert agentctl("files", "get", file_id, "--config", str(config)).code == 5


def test_killed_prune_has_exported_what_it_has_removed(
    agentctl: Agentctl, tmp_path: Path, environment: dict[str, str]
) -> None:
    # Three units of a process.
    config = write_source(tmp_path, 240)
    folder = config.with_name("archive")
    runs = dict[str, set[str]]()
    for session_id, run_id in query(config, "SELECT session_id, run_id FROM runs"):
        runs.setdefault(session_id, set()).add(run_id)
    words = ("sessions", "prune", "--idle", "90d", "--yes", "--export", str(folder))
    for number in range(KILLS):
        given = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with start_agentctl(*words, "--config", str(config), **given) as process:
            # At the write of a file, before and after its name, and during a removal.
            wanted = "*.jsonl.part" if number % 3 == 0 else "*.jsonl"
            seen = set(folder.glob(wanted)) if folder.exists() else set()
            deadline = time.monotonic() + PATIENCE
            while process.poll() is None and not set(folder.glob(wanted)) - seen:
                assert time.monotonic() < deadline
            time.sleep(0.004 * (number // 3 % 20))
            process.kill()
            process.wait(PATIENCE)
        left = list_ids(config)
        archive = read_archive(folder)
        for session_id in runs.keys() - left:
            assert archive[session_id] == runs[session_id]
        counts = query(config, "SELECT count(*) FROM runs GROUP BY session_id")
        assert {count for (count,) in counts} <= {2}
        if not left:
            for file in folder.glob("*.jsonl"):
                agentctl("sessions", "import", str(file), "--config", str(config))
            assert list_ids(config) == runs.keys()
    prune(agentctl, config, *words[2:])
    assert list_ids(config) == set()
    assert read_archive(folder) == runs


def test_session_that_is_used_after_its_export_stays(agentctl: Agentctl, config: Path) -> None:
    write = ExportFolder.write

    async def use_after(
        self: ExportFolder, sessions: list[Record], where: SessionLocator
    ) -> list[str]:
        ids = await write(self, sessions, where)
        if "s-007" in ids:
            now = time.time_ns() // 1_000
            in_database(
                config, f"UPDATE sessions SET updated_at = {now} WHERE session_id = 's-007'"
            )
            in_database(config, "UPDATE sessions SET hold = '{}' WHERE session_id = 's-008'")
            in_database(config, "DELETE FROM sessions WHERE session_id = 's-009'")
        return ids

    folder = config.with_name("archive")
    with patch.object(ExportFolder, "write", use_after):
        done = prune(agentctl, config, "--idle", "90d", "--yes", "--export", str(folder))
    assert (done["sessions"], done["used"], done["held"]) == (SESSIONS - 3, 1, 1)
    assert list_ids(config) == {"s-007", "s-008"}


def test_damaged_export_removes_nothing(agentctl: Agentctl, config: Path) -> None:
    hash_file = change._hash_file
    folder = config.with_name("archive")

    def damage(path: Path) -> bytes:
        path.write_bytes(path.read_bytes().replace(b"s-003", b"s-004"))
        return hash_file(path)

    words = ("--idle", "90d", "--yes", "--export", str(folder))
    with patch.object(change, "_hash_file", damage):
        prune(agentctl, config, *words, code=7)
    shortened = patch.object(change, "_read_sizes", lambda file: iter([("s-000", 1)]))
    with shortened:
        prune(agentctl, config, *words, code=7)
    assert len(list_ids(config)) == SESSIONS
    assert list(folder.iterdir()) == []


def test_prune_asks_and_rejects_wrong_options(
    agentctl: Agentctl, terminal: Terminal, config: Path
) -> None:
    for days in ("12h", "36h", "0d", "90", "-1d", "200000d"):
        prune(agentctl, config, "--idle", days, "--yes", code=2)
    prune(agentctl, config, "--idle", "90d", code=2)
    prune(agentctl, config, "--idle", "90d", "--dry-run", "--export", "x", code=2)
    prune(agentctl, config, "--idle", "90d", "--yes", "--export", str(config), code=2)
    words = ("sessions", "prune", "--idle", "90d", "--config", str(config))
    asked = terminal(*words, types="n\n")
    assert f"Remove {SESSIONS} sessions with {2 * SESSIONS} runs" in asked.screen
    assert "without an export" in asked.screen
    assert asked.code == 2
    assert len(list_ids(config)) == SESSIONS


def test_hold_is_shown_and_stops_every_deletion(agentctl: Agentctl, config: Path) -> None:
    def run(*words: str) -> tuple[int, str]:
        ended = agentctl("sessions", *words, "--config", str(config))
        return ended.code, ended.stdout + ended.stderr

    assert run("hold", "s-001", "s-002", "--reason", "claim 17")[0] == 0
    shown = run("get", "s-001")[1]
    assert re.search(r"since \S+ by local:\w+: claim 17", shown)
    assert re.search(r"held since \S+ by local:\w+: claim 17", run("get", "s-001", "-o", "text")[1])
    assert json.loads(run("get", "s-001", "-o", "json")[1])["hold"]["reason"] == "claim 17"
    for words in (("s-001",), ("s-001", "--cancel"), ("s-003", "s-001")):
        code, said = run("delete", *words, "--yes")
        assert code == 6
        assert "session s-001 is held" in said
        assert f"agentctl sessions release s-001 --config {config}" in said
    with serve_in_thread(Deployment(config.parent)) as server:
        for words in (("s-001",), ("s-003", "s-001")):
            ended = agentctl("sessions", "delete", *words, "--yes", "--url", server.url)
            assert ended.code == 6
            assert f"agentctl sessions release s-001 --url {server.url}" in ended.stderr
    assert run("hold", "s-001", "--reason", "again")[0] == 6
    assert run("release", "s-001")[0] == 0
    assert run("release", "s-001")[0] == 6
    assert "held" not in run("get", "s-001", "-o", "text")[1]
    assert run("delete", "s-001", "--yes")[0] == 0
    assert run("delete", "s-002", "--yes")[0] == 6


def test_user_of_as_user_removes_its_own_sessions_only(agentctl: Agentctl, config: Path) -> None:
    in_database(config, "UPDATE sessions SET user_id = 'ada' WHERE session_id < 's-003'")
    words = ("--idle", "90d", "--as-user", "ada")
    assert prune(agentctl, config, *words, "--dry-run")["sessions"] == 3
    done = prune(agentctl, config, *words, "--yes")
    assert (done["sessions"], done["held"]) == (3, 0)
    assert len(list_ids(config)) == SESSIONS - 3
