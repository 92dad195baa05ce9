"""`agentctl sessions export`."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Agentctl
from tests.cli.demo import Demo
from tests.remote.conftest import Serve, answer, serve

__all__ = ["serve"]


@pytest.fixture
def at_demo(demo: Demo) -> tuple[str, ...]:
    for _ in range(2):
        demo.run("kept-1", "one two three")
    demo.run("kept-2", "four")
    return ("--url", demo.url)


def test_an_export_has_whole_sessions(
    agentctl: Agentctl, demo: Demo, at_demo: tuple[str, ...], tmp_path: Path
) -> None:
    env = {"AGENTCTL_TOKEN": demo.token}
    file = tmp_path / "sessions.jsonl"
    to_file = ("--to-file", str(file), *at_demo)

    ended = agentctl("sessions", "export", "kept-1", "kept-2", *to_file, env=env)
    assert (ended.code, ended.stdout) == (0, "")
    exported = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["session"]["session_id"] for row in exported] == ["kept-1", "kept-2"]
    runs = agentctl("sessions", "runs", "kept-1", *at_demo, "-o", "jsonl", env=env)
    assert exported[0]["runs"] == [json.loads(line) for line in runs.lines]

    # A file that exists is not replaced.
    again = agentctl("sessions", "export", "kept-1", *to_file, env=env)
    assert again.code == 6
    assert [json.loads(line) for line in file.read_text().splitlines()] == exported


def test_an_export_of_all_is_an_array_or_transcripts(
    agentctl: Agentctl, demo: Demo, at_demo: tuple[str, ...]
) -> None:
    local = ("--config", str(demo.config))
    whole = agentctl("sessions", "export", "--all", "--format", "json", *local)
    ids = {each["session"]["session_id"] for each in json.loads(whole.stdout)}
    assert {"kept-1", "kept-2"} <= ids
    none = agentctl("sessions", "export", "--all", "--user", "nobody", "--format", "json", *local)
    assert json.loads(none.stdout) == []
    read = agentctl("sessions", "export", "kept-2", "--format", "markdown", *local)
    assert "> four" in read.lines
    assert "\nfour\n" in read.stdout


def test_an_export_has_the_model_calls_of_each_run(
    agentctl: Agentctl, demo: Demo, at_demo: tuple[str, ...]
) -> None:
    env = {"AGENTCTL_TOKEN": demo.token}
    export = ("sessions", "export", "kept-1", "--model-calls", *at_demo)

    (whole,) = json.loads(agentctl(*export, "--format", "json", env=env).stdout)
    transcript = agentctl(*export, "--format", "markdown", env=env).stdout

    for run in whole["runs"]:
        show = ("runs", "get", run["run_id"], "--model-calls", *at_demo)
        calls = agentctl(*show, "-o", "jsonl", env=env)
        assert whole["model_calls"][run["run_id"]] == [json.loads(line) for line in calls.lines]
        assert f"Model calls of `{run['run_id']}`:\n\n- model-1: " in transcript
    last = whole["model_calls"][whole["runs"][-1]["run_id"]][0]
    references = last["references"]
    assert [row["source"] for row in references][-2:] == ["history", "run"]
    assert last["message_count"] == sum(row["end"] - row["first"] for row in references)


@pytest.mark.parametrize("arguments", [(), ("s1", "--all")])
def test_an_export_needs_ids_or_all(
    agentctl: Agentctl, demo: Demo, arguments: tuple[str, ...]
) -> None:
    ended = agentctl("sessions", "export", *arguments, "--config", str(demo.config))
    assert ended.code == 2
    assert "give a SESSION_ID, or --all" in ended.stderr


@dataclass(frozen=True)
class FiledSession:
    """A session of the demo with a file, whose name has characters of Markdown."""

    session_id: str
    file_id: str
    note: Path
    """The file that was uploaded."""


@pytest.fixture
def filed(on_demo: Agentctl, tmp_path: Path) -> FiledSession:
    note = tmp_path / "a [note](x).txt"
    session_id = f"filed-{tmp_path.name}"
    note.write_text(f"the text of {session_id}")
    start = ("runs", "start", "--agent", "echo", "-m", "hello", "--session", session_id)
    ran = on_demo(*start, "--file", str(note), "-o", "json")
    assert ran.code == 0, ran.stderr
    return FiledSession(session_id, json.loads(ran.raw)["files"][0]["file_id"], note)


def read_archive(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the manifest of an archive, and its files by name."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    return json.loads(content.pop("manifest.json")), content


def test_archive_of_each_format_has_the_files(
    on_demo: Agentctl, filed: FiledSession, tmp_path: Path
) -> None:
    plain = on_demo("sessions", "export", filed.session_id)
    archives = {}
    for form in ("jsonl", "json", "markdown"):
        path = tmp_path / f"{form}.zip"
        words = ("--with-files", "--to-file", str(path), "--format", form)
        ended = on_demo("sessions", "export", filed.session_id, *words)
        assert ended.code == 0, ended.stderr

        manifest, content = read_archive(path)
        assert content[f"files/{filed.file_id}.txt"] == filed.note.read_bytes()
        assert {entry["name"] for entry in manifest["files"]} == content.keys()
        for entry in manifest["files"]:
            assert hashlib.sha256(content[entry["name"]]).hexdigest() == entry["sha256"]
        archives[form] = content

    assert archives["jsonl"]["sessions.jsonl"] == plain.raw
    assert json.loads(archives["json"]["sessions.json"]) == [json.loads(plain.raw)]
    assert json.loads(archives["jsonl"]["files.jsonl"])["file_id"] == filed.file_id
    link = f"\n## Files\n\n- [a \\[note\\](x).txt](files/{filed.file_id}.txt)\n"
    assert link in archives["markdown"]["sessions.md"].decode()


def test_archive_names_the_files_whose_bytes_are_missing(
    on_demo: Agentctl, demo: Demo, filed: FiledSession, tmp_path: Path
) -> None:
    plain = on_demo("sessions", "export", filed.session_id)
    digest = hashlib.sha256(filed.note.read_bytes()).hexdigest()
    (stored,) = demo.config.parent.glob(f"files/*/{digest}")
    stored.unlink()

    path = tmp_path / "rest.zip"
    ended = on_demo("sessions", "export", filed.session_id, "--with-files", "--to-file", str(path))

    assert (ended.code, filed.file_id in ended.stderr) == (1, True), ended.stderr
    manifest, content = read_archive(path)
    (missing,) = manifest["missing"]
    assert (missing["file_id"], missing["name"]) == (filed.file_id, filed.note.name)
    assert content["sessions.jsonl"] == plain.raw


def test_archive_needs_a_file(agentctl: Agentctl, demo: Demo) -> None:
    ended = agentctl("sessions", "export", "s", "--with-files", "--config", str(demo.config))
    assert (ended.code, "--with-files needs --to-file" in ended.stderr) == (2, True)


def _build_page(file_id: str, name: str) -> bytes:
    row = {
        "file_id": file_id,
        "name": name,
        "media_type": "text/plain",
        "size": 100,
        "sha256": "0",
        "user_id": None,
        "session_id": "s",
        "run_id": None,
        "origin": "upload",
        "version": 1,
        "created_at": "2026-11-23T09:30:00.000000Z",
    }
    meta = {"page": 1, "limit": 100, "total_pages": 1, "total_count": 1, "next_cursor": None}
    return json.dumps({"data": [row], "meta": meta}).encode()


@pytest.mark.parametrize("file_id", ["../../x", "a/b", "", "C:\\x"])
def test_archive_has_no_paths_of_a_server(
    agentctl: Agentctl, serve: Serve, tmp_path: Path, file_id: str
) -> None:
    page = _build_page(file_id, "../../../n.txt")
    exported = answer(body=b'{"session":{},"runs":[]}\n')
    listed = answer(body=page)
    url = serve(exported, then=[[listed]]).url
    path = tmp_path / "a.zip"
    ended = agentctl(
        "sessions", "export", "s", "--with-files", "--to-file", str(path), "--url", url
    )
    assert ended.code == 7, ended.stderr
    assert "the id of a file has characters that no id has" in ended.stderr.lower()
    assert not list(tmp_path.glob("a.zip*"))


def test_cut_download_leaves_no_archive(agentctl: Agentctl, serve: Serve, tmp_path: Path) -> None:
    page = _build_page("f1", "n.txt")
    exported = answer(body=b'{"session":{},"runs":[]}\n')
    listed = answer(body=page)
    content = answer(body=b"x" * 100, content_type="text/plain")[:-40]
    url = serve(exported, then=[[listed], [listed], [content]]).url
    path = tmp_path / "a.zip"
    ended = agentctl(
        "sessions", "export", "s", "--with-files", "--to-file", str(path), "--url", url
    )
    assert ended.code == 7, ended.stderr
    assert "is not what agentctl expects" not in ended.stderr
    assert not list(tmp_path.glob("a.zip*"))
