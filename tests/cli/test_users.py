"""`agentctl users export` and `users erase`, locally and on a server."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agentctl.cli.archives import Archive
from agentctl.interface.requests import lists
from tests.cli.conftest import Agentctl
from tests.cli.local_project import in_database, write_config
from tests.kit.process import serve_config

MARKER = "sapphire7731"

BOTH_WAYS = pytest.mark.parametrize("place", ["locally", "remotely"], indirect=True)

PARTS = ("sessions", "approvals", "decisions", "deliveries", "usage", "files")


@pytest.fixture
def place(
    request: pytest.FixtureRequest, tmp_path: Path, agentctl: Agentctl
) -> Iterator[tuple[str, ...]]:
    """A project with data of ada and bob; the options that select it, or a server of it.

    A test has it locally, unless it is parametrised with `BOTH_WAYS`.
    """
    config = write_config(tmp_path)
    config.write_text(f"[authorization]\nenabled = false\n{config.read_text()}")
    local = ("--config", str(config))
    for user, text in (("ada", MARKER), ("bob", "granite")):
        for words in (
            ("runs", "start", "--agent", "echo", "--no-stream", "-m", text, "--as-user", user),
            ("memories", "add", text, "--user", user),
        ):
            ended = agentctl(*words, *local)
            assert ended.code == 0, ended.stderr
        file = tmp_path / f"{user}.txt"
        file.write_bytes(text.encode() * (600_000 // len(text)))
        listed = agentctl("sessions", "list", "--user", user, "-o", "name", *local)
        for words in (("--user", user), ("--session", listed.lines[0])):
            ended = agentctl("files", "upload", str(file), *words, *local)
            assert ended.code == 0, ended.stderr
    with ExitStack() as stack:
        if getattr(request, "param", "locally") == "locally":
            yield local
        else:
            yield ("--url", stack.enter_context(serve_config(config)).url)


@BOTH_WAYS
def test_export_verifies_its_manifest(
    agentctl: Agentctl, place: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "ada.zip"
    ended = agentctl("users", "export", "ada", "--out", str(file), *place, "-o", "json")
    assert ended.code == 0, ended.stderr
    with zipfile.ZipFile(file) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(content.pop("manifest.json"))
    assert (manifest["user_id"], manifest["format"]) == ("ada", "agentctl-personal-data/1")
    rows = [json.loads(row) for row in content["databases/main/files.jsonl"].splitlines()]
    files = {f"files/{row['file_id']}": row for row in rows}
    for name, row in files.items():
        assert content[name] == (tmp_path / "ada.txt").read_bytes()
        assert (row["name"], row["sha256"]) == (
            "ada.txt",
            hashlib.sha256(content[name]).hexdigest(),
        )
    assert [entry["name"] for entry in manifest["files"]] == [
        "README.txt",
        "memories.jsonl",
        "store.jsonl",
        "audit.jsonl",
        *(f"databases/main/{part}.jsonl" for part in PARTS),
        *files,
    ]
    assert len(files) == 2
    assert content.keys() == {entry["name"] for entry in manifest["files"]}
    for entry in manifest["files"]:
        data = content[entry["name"]]
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()
        assert entry["bytes"] == len(data)
        if entry["name"].endswith(".jsonl"):
            assert entry["rows"] == len([json.loads(line) for line in data.splitlines()])
    assert json.loads(ended.stdout)["rows"] == sum(entry["rows"] for entry in manifest["files"])
    for name in ("memories.jsonl", "databases/main/sessions.jsonl"):
        assert MARKER.encode() in content[name]
    assert content["databases/main/usage.jsonl"]
    assert not any(b"granite" in data for data in content.values())
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.read_bytes()
    again = agentctl("users", "export", "ada", "--out", str(file), *place)
    assert again.code == 6
    assert "already exists" in again.stderr
    assert file.read_bytes() == before
    assert not list(tmp_path.glob("*.part"))


@BOTH_WAYS
def test_erasure_reports_what_stays(
    agentctl: Agentctl, place: tuple[str, ...], tmp_path: Path
) -> None:
    def read(user: str) -> bytes:
        sessions = agentctl("sessions", "export", "--all", "--user", user, *place).raw
        return sessions + agentctl("memories", "export", "--user", user, *place).raw

    of_bob = read("bob")
    planned = agentctl("users", "erase", "ada", "--dry-run", *place, "-o", "json")
    assert planned.code == 0, planned.stderr
    assert MARKER.encode() in read("ada")
    assert agentctl("users", "erase", "ada", *place).code == 2  # no confirmation
    ended = agentctl("users", "erase", "ada", "--yes", *place, "-o", "json")
    assert ended.code == 0, ended.stderr
    report = json.loads(ended.stdout)
    rows = {row["table"]: row["rows"] for row in report["erased"]}
    assert rows == {row["table"]: row["rows"] for row in json.loads(planned.stdout)["erased"]}
    assert {"sessions", "runs", "memories"} <= rows.keys()
    reasons = {kept["what"]: kept for kept in report["kept"]}
    assert reasons["audit_log"]["until"] > "2026"
    assert {"copies", "bytes of files"} <= reasons.keys()
    assert rows["files"] == 2
    assert report["files"][0]["vacuumed"] is True
    assert MARKER.encode() not in read("ada")
    assert read("bob") == of_bob
    for file in tmp_path.glob("agentctl.db*"):
        assert not file.is_file() or MARKER.encode() not in file.read_bytes(), file
    entries = agentctl("audit", "list", "--operation", "erase_user_data", *place, "-o", "json")
    assert {row["resource"] for row in json.loads(entries.stdout)["data"]} == {"user:ada"}


def test_held_session_is_left_with_its_exit_code(agentctl: Agentctl, tmp_path: Path) -> None:
    config = write_config(tmp_path)
    local = ("--config", str(config))
    agentctl(
        "runs",
        "start",
        "--agent",
        "echo",
        "--no-stream",
        "-m",
        "x",
        "--session",
        "s1",
        "--as-user",
        "ada",
        *local,
    )
    upload = ("files", "upload", str(config), "--name", "a.txt", "--session", "s1", "-o", "name")
    (file_id,) = agentctl(*upload, *local).lines
    assert agentctl("sessions", "hold", "s1", "--reason", "claim", *local).code == 0
    unknown = agentctl("users", "erase", "adda", "--yes", *local)
    assert "nothing is stored about user adda" in unknown.stderr
    ended = agentctl("users", "erase", "ada", "--yes", *local, "-o", "json")
    assert ended.code == 6
    report = json.loads(ended.stdout)
    assert report["held"] == ["s1"]
    assert "bytes of files" not in {kept["what"] for kept in report["kept"]}
    download = agentctl("files", "download", file_id, "--to-file", "-", *local)
    assert download.raw == config.read_bytes()
    assert "1 held session stays" in ended.stderr
    assert "agentctl sessions release s1" in ended.stderr
    assert agentctl("sessions", "get", "s1", *local).code == 0


def test_paused_run_is_a_conflict(
    agentctl: Agentctl, place: tuple[str, ...], tmp_path: Path
) -> None:
    in_database(
        tmp_path / "agentctl.toml",
        "UPDATE runs SET status = 'PAUSED', finished_at = NULL, stopped_at = NULL",
    )
    ended = agentctl("users", "erase", "ada", "--yes", *place)
    assert ended.code == 6
    assert "live or paused runs" in ended.stderr
    assert "hint: erase again when they have ended, or with --cancel" in ended.stderr
    kept = agentctl("sessions", "list", "--user", "ada", "-o", "name", *place)
    assert len(kept.lines) == 1


def test_export_leaves_out_a_session_that_is_deleted_meanwhile(
    agentctl: Agentctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path)
    file = tmp_path / "ada.zip"
    local = ("--config", str(config))
    agentctl(
        "runs", "start", "--agent", "echo", "--no-stream", "-m", "x", "--as-user", "ada", *local
    )
    read_pages = lists.read_pages

    async def read_and_delete(read: Any, filter: Any) -> AsyncIterator[list[Any]]:
        async for rows in read_pages(read, filter):
            if rows and "session_name" in rows[0]:
                in_database(config, "DELETE FROM sessions")
            yield rows

    monkeypatch.setattr(lists, "read_pages", read_and_delete)
    ended = agentctl("users", "export", "ada", "--out", str(file), *local)
    assert ended.code == 0, ended.stderr
    with zipfile.ZipFile(file) as archive:
        assert archive.read("databases/main/sessions.jsonl") == b""


def test_export_needs_the_right_bytes_of_each_file(
    agentctl: Agentctl, place: tuple[str, ...], tmp_path: Path
) -> None:
    data = (tmp_path / "ada.txt").read_bytes()
    (bytes_of_ada,) = tmp_path.glob(f"files/*/{hashlib.sha256(data).hexdigest()}")
    bytes_of_ada.write_bytes(data[:-1] + b"!")
    words = ("users", "export", "ada", "--out", str(tmp_path / "ada.zip"), *place)
    damaged = agentctl(*words)
    assert damaged.code != 0
    assert "the content does not match file" in damaged.stderr
    bytes_of_ada.unlink()
    assert not list(tmp_path.glob("ada.zip*"))
    missing = agentctl(*words)
    assert missing.code == 1
    assert "the bytes of 2 files are missing" in missing.stderr.lower()
    with zipfile.ZipFile(tmp_path / "ada.zip") as archive:
        named = json.loads(archive.read("manifest.json"))["missing"]
        assert archive.read("databases/main/sessions.jsonl")
    (tmp_path / "ada.zip").unlink()
    listed = agentctl("files", "list", "--user", "ada", "-o", "name", *place)
    assert {each["file_id"] for each in named} == set(listed.lines)
    assert agentctl("files", "delete", *listed.lines, "--yes", *place).code == 0
    assert agentctl(*words).code == 0


def test_export_leaves_out_the_bytes_of_a_file_that_is_deleted_meanwhile(
    agentctl: Agentctl, place: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_pages = lists.read_pages
    lists_of_files = list[object]()

    async def read_and_delete(read: Any, filter: Any) -> AsyncIterator[list[Any]]:
        async for rows in read_pages(read, filter):
            if rows and "sha256" in rows[0]:
                lists_of_files.append(rows)
                if len(lists_of_files) == 2:  # the one whose bytes are read next
                    in_database(tmp_path / "agentctl.toml", "DELETE FROM files")
            yield rows

    monkeypatch.setattr(lists, "read_pages", read_and_delete)
    file = tmp_path / "ada.zip"
    ended = agentctl("users", "export", "ada", "--out", str(file), *place)
    assert ended.code == 0, ended.stderr
    with zipfile.ZipFile(file) as archive:
        assert archive.read("databases/main/files.jsonl").count(b"\n") == 2
        assert not [name for name in archive.namelist() if name.startswith("files/")]


def test_damaged_export_gets_no_name(
    agentctl: Agentctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path)
    file = tmp_path / "ada.zip"
    local = ("--config", str(config))
    words = ("runs", "start", "--agent", "echo", "--no-stream", "-m", "x", "--as-user", "ada")
    assert agentctl(*words, *local).code == 0
    add = Archive._add

    async def lie(*arguments: object) -> dict[str, object]:
        return {**await add(*arguments), "sha256": "0"}  # type: ignore[arg-type]

    monkeypatch.setattr(Archive, "_add", lie)
    ended = agentctl("users", "export", "ada", "--out", str(file), *local)
    assert ended.code == 2
    assert "differs from the written data" in ended.stderr
    assert not list(tmp_path.glob("ada.zip*"))
