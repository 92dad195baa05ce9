"""`agentctl sessions export`."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

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
    ended = agentctl(
        "sessions", "export", "kept-1", "kept-2", "--to-file", str(file), *at_demo, env=env
    )
    assert (ended.code, ended.stdout) == (0, "")
    exported = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["session"]["session_id"] for each in exported] == ["kept-1", "kept-2"]
    runs = agentctl("sessions", "runs", "kept-1", *at_demo, "-o", "jsonl", env=env)
    assert exported[0]["runs"] == [json.loads(line) for line in runs.lines]
    again = agentctl("sessions", "export", "kept-1", "--to-file", str(file), *at_demo, env=env)
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
    words = ("sessions", "export", "kept-1", "--model-calls", *at_demo)
    (whole,) = json.loads(agentctl(*words, "--format", "json", env=env).stdout)
    read = agentctl(*words, "--format", "markdown", env=env)
    for run in whole["runs"]:
        words = ("runs", "get", run["run_id"], "--model-calls", *at_demo)
        calls = agentctl(*words, "-o", "jsonl", env=env)
        assert whole["model_calls"][run["run_id"]] == [json.loads(each) for each in calls.lines]
        assert f"Model calls of `{run['run_id']}`:\n\n- model-1: " in read.stdout
    last = whole["model_calls"][whole["runs"][-1]["run_id"]][0]
    sources = [each["source"] for each in last["references"]]
    assert sources[-2:] == ["history", "run"]
    assert last["message_count"] == sum(each["end"] - each["first"] for each in last["references"])


@pytest.mark.parametrize("arguments", [(), ("s1", "--all")])
def test_an_export_needs_ids_or_all(
    agentctl: Agentctl, demo: Demo, arguments: tuple[str, ...]
) -> None:
    ended = agentctl("sessions", "export", *arguments, "--config", str(demo.config))
    assert ended.code == 2
    assert "give a SESSION_ID, or --all" in ended.stderr


def test_archive_has_the_files_and_names_missing_bytes(
    on_demo: Agentctl, demo: Demo, tmp_path: Path
) -> None:
    note = tmp_path / "a [note](x).txt"
    session = f"filed-{tmp_path.name}"
    note.write_text(f"the text of {session}")

    start = ("runs", "start", "--agent", "echo", "-m", "hello", "--session", session)
    ran = on_demo(*start, "--file", str(note), "-o", "json")
    assert ran.code == 0, ran.stderr
    file_id = json.loads(ran.raw)["files"][0]["file_id"]

    words = ("sessions", "export", session, "--with-files", "--to-file")
    plain = on_demo("sessions", "export", session)

    archives = {}
    for form in ("jsonl", "json", "markdown"):
        path = tmp_path / f"{form}.zip"
        ended = on_demo(*words, str(path), "--format", form)
        assert ended.code == 0, ended.stderr

        with zipfile.ZipFile(path) as archive:
            assert archive.read(f"files/{file_id}.txt") == note.read_bytes()
            content = {name: archive.read(name) for name in archive.namelist()}

        manifest = json.loads(content.pop("manifest.json"))
        assert {each["name"] for each in manifest["files"]} == content.keys()
        for each in manifest["files"]:
            assert hashlib.sha256(content[each["name"]]).hexdigest() == each["sha256"]

        archives[form] = content

    assert archives["jsonl"]["sessions.jsonl"] == plain.raw
    assert json.loads(archives["json"]["sessions.json"]) == [json.loads(plain.raw)]
    assert json.loads(archives["jsonl"]["files.jsonl"])["file_id"] == file_id

    link = f"\n## Files\n\n- [a \\[note\\](x).txt](files/{file_id}.txt)\n"
    assert link in archives["markdown"]["sessions.md"].decode()

    (stored,) = demo.config.parent.glob(f"files/*/{hashlib.sha256(note.read_bytes()).hexdigest()}")
    stored.unlink()
    path = tmp_path / "rest.zip"
    ended = on_demo(*words, str(path))
    assert (ended.code, file_id in ended.stderr) == (1, True), ended.stderr
    with zipfile.ZipFile(path) as archive:
        (missing,) = json.loads(archive.read("manifest.json"))["missing"]
        assert archive.read("sessions.jsonl") == plain.raw
    assert (missing["file_id"], missing["name"]) == (file_id, note.name)


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
