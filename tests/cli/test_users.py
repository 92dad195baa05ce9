"""`agentctl users export` and `users erase`, locally and on a server."""

from __future__ import annotations

import hashlib
import json
import shutil
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
from tests.kit.command import Result, run_command
from tests.kit.deployment import Deployment
from tests.kit.process import base_environment
from tests.kit.threaded_server import serve_in_thread

MARKER = "sapphire7731"
"""A word that is stored for ada alone."""

BOTH_WAYS = pytest.mark.parametrize("place", ["locally", "remotely"], indirect=True)

PARTS = ("sessions", "approvals", "decisions", "deliveries", "usage", "files")
"""The lists of a database in an export."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a project that has data of ada and bob. Copy it."""
    folder = tmp_path_factory.mktemp("filled")
    config = write_config(folder)
    config.write_text(f"[authorization]\nenabled = false\n{config.read_text()}")

    def agentctl(*words: str) -> Result:
        environment = base_environment() | {"HOME": str(folder), "USER": "tester"}
        local = ("--config", str(config))
        ended = run_command(*words, *local, environment=environment, folder=folder)
        assert ended.code == 0, ended.stderr
        return ended

    for user, text in (("ada", MARKER), ("bob", "granite")):
        start = ("runs", "start", "--agent", "echo", "--no-stream", "-m", text)
        agentctl(*start, "--as-user", user)
        agentctl("memories", "add", text, "--user", user)
        file = folder / f"{user}.txt"
        file.write_bytes(text.encode() * (600_000 // len(text)))
        (session_id,) = agentctl("sessions", "list", "--user", user, "-o", "name").lines
        for owner in (("--user", user), ("--session", session_id)):
            agentctl("files", "upload", str(file), *owner)
    return folder


@pytest.fixture
def place(
    request: pytest.FixtureRequest, tmp_path: Path, filled: Path
) -> Iterator[tuple[str, ...]]:
    """A copy of the project; the options that select it, or a server of it.

    A test has it locally, unless it is parametrised with `BOTH_WAYS`.
    """
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "agentctl.toml"
    with ExitStack() as stack:
        if getattr(request, "param", "locally") == "locally":
            yield ("--config", str(config))
        else:
            server = stack.enter_context(serve_in_thread(Deployment(tmp_path)))
            yield ("--url", server.url)


def start_run_of_ada(agentctl: Agentctl, *options: str) -> None:
    words = ("runs", "start", "--agent", "echo", "--no-stream", "-m", "x", "--as-user", "ada")
    ended = agentctl(*words, *options)
    assert ended.code == 0, ended.stderr


def export_user(agentctl: Agentctl, place: tuple[str, ...], file: Path) -> dict[str, Any]:
    """Export the data of ada into an archive, and return what the command prints."""
    ended = agentctl("users", "export", "ada", "--out", str(file), *place, "-o", "json")
    assert ended.code == 0, ended.stderr
    facts: dict[str, Any] = json.loads(ended.stdout)
    return facts


def read_archive(file: Path) -> dict[str, bytes]:
    """Return the files of an archive by name."""
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@BOTH_WAYS
def test_export_has_all_files_of_its_manifest(
    agentctl: Agentctl, place: tuple[str, ...], tmp_path: Path
) -> None:
    facts = export_user(agentctl, place, tmp_path / "ada.zip")

    content = read_archive(tmp_path / "ada.zip")
    manifest = json.loads(content.pop("manifest.json"))
    uploads = [json.loads(row) for row in content["databases/main/files.jsonl"].splitlines()]
    assert len(uploads) == 2
    assert (manifest["user_id"], manifest["format"]) == ("ada", "agentctl-personal-data/1")
    names = [entry["name"] for entry in manifest["files"]]
    assert names == [
        "README.txt",
        "memories.jsonl",
        "store.jsonl",
        "audit.jsonl",
        *(f"databases/main/{part}.jsonl" for part in PARTS),
        *(f"files/{row['file_id']}" for row in uploads),
    ]
    assert content.keys() == set(names)
    for entry in manifest["files"]:
        data = content[entry["name"]]
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()
        assert entry["bytes"] == len(data)
        if entry["name"].endswith(".jsonl"):
            assert entry["rows"] == len([json.loads(line) for line in data.splitlines()])
    assert facts["rows"] == sum(entry["rows"] for entry in manifest["files"])


def test_export_has_the_data_of_one_user(
    agentctl: Agentctl, place: tuple[str, ...], tmp_path: Path
) -> None:
    export_user(agentctl, place, tmp_path / "ada.zip")

    content = read_archive(tmp_path / "ada.zip")
    for name in ("memories.jsonl", "databases/main/sessions.jsonl"):
        assert MARKER.encode() in content[name]
    assert content["databases/main/usage.jsonl"]
    assert not any(b"granite" in data for data in content.values())

    uploaded = (tmp_path / "ada.txt").read_bytes()
    for line in content["databases/main/files.jsonl"].splitlines():
        row = json.loads(line)
        assert content[f"files/{row['file_id']}"] == uploaded
        assert row["name"] == "ada.txt"
        assert row["sha256"] == hashlib.sha256(uploaded).hexdigest()


def test_export_is_private_and_replaces_no_file(
    agentctl: Agentctl, place: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "ada.zip"
    export_user(agentctl, place, file)
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

    data_of_bob = read("bob")

    # Neither a plan nor a missing confirmation erases anything.
    planned = agentctl("users", "erase", "ada", "--dry-run", *place, "-o", "json")
    assert planned.code == 0, planned.stderr
    assert agentctl("users", "erase", "ada", *place).code == 2
    assert MARKER.encode() in read("ada")

    ended = agentctl("users", "erase", "ada", "--yes", *place, "-o", "json")
    assert ended.code == 0, ended.stderr
    report = json.loads(ended.stdout)
    erased = {row["table"]: row["rows"] for row in report["erased"]}
    assert erased == {row["table"]: row["rows"] for row in json.loads(planned.stdout)["erased"]}
    assert {"sessions", "runs", "memories"} <= erased.keys()
    assert erased["files"] == 2
    assert report["files"][0]["vacuumed"] is True

    kept = {row["what"]: row for row in report["kept"]}
    assert kept["audit_log"]["until"] > "2026"
    assert {"copies", "bytes of files"} <= kept.keys()

    assert MARKER.encode() not in read("ada")
    assert read("bob") == data_of_bob
    for file in tmp_path.glob("agentctl.db*"):
        assert not file.is_file() or MARKER.encode() not in file.read_bytes(), file
    entries = agentctl("audit", "list", "--operation", "erase_user_data", *place, "-o", "json")
    assert {row["resource"] for row in json.loads(entries.stdout)["data"]} == {"user:ada"}


def test_held_session_is_left_with_its_exit_code(agentctl: Agentctl, tmp_path: Path) -> None:
    config = write_config(tmp_path)
    local = ("--config", str(config))
    start_run_of_ada(agentctl, *local, "--session", "s1")
    upload = ("files", "upload", str(config), "--name", "a.txt", "--session", "s1", "-o", "name")
    (file_id,) = agentctl(*upload, *local).lines
    assert agentctl("sessions", "hold", "s1", "--reason", "claim", *local).code == 0

    ended = agentctl("users", "erase", "ada", "--yes", *local, "-o", "json")

    assert ended.code == 6
    assert "1 held session stays" in ended.stderr
    assert "agentctl sessions release s1" in ended.stderr
    report = json.loads(ended.stdout)
    assert report["held"] == ["s1"]
    assert agentctl("sessions", "get", "s1", *local).code == 0

    # The bytes of its files stay, too.
    assert "bytes of files" not in {row["what"] for row in report["kept"]}
    download = agentctl("files", "download", file_id, "--to-file", "-", *local)
    assert download.raw == config.read_bytes()


def test_erasure_says_that_a_user_is_unknown(agentctl: Agentctl, place: tuple[str, ...]) -> None:
    ended = agentctl("users", "erase", "adda", "--yes", *place)
    assert "nothing is stored about user adda" in ended.stderr


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
    sessions = agentctl("sessions", "list", "--user", "ada", "-o", "name", *place)
    assert len(sessions.lines) == 1


def test_export_leaves_out_a_session_that_is_deleted_meanwhile(
    agentctl: Agentctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path)
    local = ("--config", str(config))
    start_run_of_ada(agentctl, *local)
    read_pages = lists.read_pages

    async def read_and_delete(read: Any, filter: Any) -> AsyncIterator[list[Any]]:
        async for rows in read_pages(read, filter):
            if rows and "session_name" in rows[0]:
                in_database(config, "DELETE FROM sessions")
            yield rows

    monkeypatch.setattr(lists, "read_pages", read_and_delete)

    export_user(agentctl, local, tmp_path / "ada.zip")

    assert read_archive(tmp_path / "ada.zip")["databases/main/sessions.jsonl"] == b""


def find_bytes_of_ada(folder: Path) -> Path:
    """Return the place of the bytes that the two files of ada share."""
    digest = hashlib.sha256((folder / "ada.txt").read_bytes()).hexdigest()
    (path,) = folder.glob(f"files/*/{digest}")
    return path


def test_export_refuses_changed_bytes_of_a_file(
    agentctl: Agentctl, place: tuple[str, ...], tmp_path: Path
) -> None:
    stored = find_bytes_of_ada(tmp_path)
    stored.write_bytes(stored.read_bytes()[:-1] + b"!")

    damaged = agentctl("users", "export", "ada", "--out", str(tmp_path / "ada.zip"), *place)

    assert damaged.code != 0
    assert "the content does not match file" in damaged.stderr
    assert not list(tmp_path.glob("ada.zip*"))


def test_export_names_the_files_whose_bytes_are_missing(
    agentctl: Agentctl, place: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "ada.zip"
    find_bytes_of_ada(tmp_path).unlink()
    file_ids = agentctl("files", "list", "--user", "ada", "-o", "name", *place).lines

    ended = agentctl("users", "export", "ada", "--out", str(file), *place)

    assert ended.code == 1
    assert "the bytes of 2 files are missing" in ended.stderr.lower()
    content = read_archive(file)
    missing = json.loads(content["manifest.json"])["missing"]
    assert {row["file_id"] for row in missing} == set(file_ids)
    assert content["databases/main/sessions.jsonl"]

    # An export without the deleted files is complete.
    file.unlink()
    assert agentctl("files", "delete", *file_ids, "--yes", *place).code == 0
    export_user(agentctl, place, file)


def test_export_leaves_out_the_bytes_of_a_file_that_is_deleted_meanwhile(
    agentctl: Agentctl, place: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_pages = lists.read_pages
    lists_of_files = list[object]()

    async def read_and_delete(read: Any, filter: Any) -> AsyncIterator[list[Any]]:
        async for rows in read_pages(read, filter):
            if rows and "sha256" in rows[0]:
                lists_of_files.append(rows)
                # The rows are exported by then, and the bytes are read next.
                if len(lists_of_files) == 2:
                    in_database(tmp_path / "agentctl.toml", "DELETE FROM files")
            yield rows

    monkeypatch.setattr(lists, "read_pages", read_and_delete)

    export_user(agentctl, place, tmp_path / "ada.zip")

    content = read_archive(tmp_path / "ada.zip")
    assert content["databases/main/files.jsonl"].count(b"\n") == 2
    assert not [name for name in content if name.startswith("files/")]


def test_damaged_export_gets_no_name(
    agentctl: Agentctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path)
    local = ("--config", str(config))
    start_run_of_ada(agentctl, *local)
    add = Archive._add

    async def add_with_wrong_hash(*arguments: object) -> dict[str, object]:
        return {**await add(*arguments), "sha256": "0"}  # type: ignore[arg-type]

    monkeypatch.setattr(Archive, "_add", add_with_wrong_hash)

    ended = agentctl("users", "export", "ada", "--out", str(tmp_path / "ada.zip"), *local)

    assert ended.code == 2
    assert "differs from the written data" in ended.stderr
    assert not list(tmp_path.glob("ada.zip*"))
