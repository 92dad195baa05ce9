"""`agentctl files`."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.cli.conftest import Agentctl
from tests.cli.demo import Demo

PNG = b"\x89PNG\r\n\x1a\n"


def test_file_is_uploaded_listed_downloaded_and_deleted(through: Agentctl, tmp_path: Path) -> None:
    source = tmp_path / "chart é.png"
    copy = tmp_path / "copy.png"
    source.write_bytes(PNG + os.urandom(600_000))
    added = through("files", "upload", str(source), "--user", "uploader", "-o", "json")
    assert added.code == 0, added.stderr
    record = json.loads(added.raw)
    file_id = record["file_id"]
    assert (record["name"], record["media_type"]) == ("chart é.png", "image/png")
    assert f"uploaded file {file_id}" in added.stderr
    assert through("files", "list", "--user", "uploader", "-o", "name").lines == [file_id]
    shown = json.loads(through("files", "get", file_id[:20], "-o", "json").raw)
    assert shown == record
    written = through("files", "download", file_id, "--to-file", str(copy))
    assert written.code == 0, written.stderr
    assert f"wrote 600008 bytes to {copy}" in written.stderr
    assert copy.read_bytes() == source.read_bytes()
    again = through("files", "download", file_id, "--to-file", str(copy))
    assert (again.code, "already exists" in again.stderr) == (6, True)
    assert through("files", "delete", file_id, "--yes").code == 0
    missing = through("files", "get", file_id)
    assert (missing.code, missing.stdout) == (5, "")
    assert "file not found" in missing.stderr


def test_refused_uploads_say_why(on_demo: Agentctl, tmp_path: Path) -> None:
    page = tmp_path / "page.png"
    page.write_text("<!doctype html><script>alert(1)</script>")
    refused = on_demo("files", "upload", str(page))
    assert (refused.code, refused.stdout) == (1, "")
    assert "HTML, SVG, XML and scripts are not accepted" in refused.stderr.replace("html", "HTML")
    absent = on_demo("files", "upload", str(tmp_path / "absent.png"))
    assert (absent.code, "cannot be read" in absent.stderr) == (2, True)
    folder = on_demo("files", "upload", str(tmp_path))
    assert (folder.code, "cannot be read" in folder.stderr) == (2, True)
    unknown = on_demo("files", "upload", str(page), "--session", "absent")
    assert (unknown.code, "session not found" in unknown.stderr) == (5, True)


def test_file_from_stdin_needs_a_name(agentctl: Agentctl, demo: Demo) -> None:
    place = ("--config", str(demo.config))
    nameless = agentctl("files", "upload", "-", *place, input=b"text")
    assert (nameless.code, "pass --name" in nameless.stderr) == (2, True)
    added = agentctl("files", "upload", "-", "--name", "a.csv", "-o", "json", *place, input=b"a,b")
    assert json.loads(added.raw)["media_type"] == "text/csv"
    file_id = json.loads(added.raw)["file_id"]
    sent = agentctl("files", "download", file_id, "--to-file", "-", *place)
    assert sent.raw == b"a,b"


def test_message_has_files(on_demo: Agentctl, tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    picture = tmp_path / "dot.png"
    note.write_text("from the file")
    picture.write_bytes(PNG + b"data")
    start = ("runs", "start", "--agent", "echo", "-m", "hello")
    ran = on_demo(*start, "--file", str(note), "-o", "json")
    assert ran.code == 0, ran.stderr
    record = json.loads(ran.raw)
    assert record["content"] == "hello\n\nFile note.txt:\n\nfrom the file"
    (file,) = record["files"]
    again = on_demo(*start, "--file-id", file["file_id"], "--session", record["session_id"])
    assert "from the file" in again.stdout, again.stderr
    shown = on_demo("runs", "get", record["run_id"], "--session", record["session_id"])
    assert "note.txt" in shown.stdout
    transcript = on_demo("sessions", "get", record["session_id"], "-o", "text")
    assert transcript.stdout.count("file: note.txt (text/plain)") == 2, transcript.stdout

    alone = on_demo("runs", "start", "--agent", "echo", "--file", str(note), "-o", "json")
    assert json.loads(alone.raw)["content"] == "File note.txt:\n\nfrom the file", alone.stderr
    assert json.loads(alone.raw)["input"] == ""
    nothing = on_demo("runs", "start", "--agent", "echo")
    assert (nothing.code, "no message given" in nothing.stderr) == (2, True)

    before = on_demo("files", "list", "-o", "name").lines
    refused = on_demo(*start, "--file", str(note), "--file", str(picture))
    assert on_demo("files", "list", "-o", "name").lines == before
    assert refused.code == 2
    assert refused.stderr.count('add "image" to takes of the model') == 1, refused.stderr
    assert "does not take dot.png, a file of the kind image" in refused.stderr
    keyed = on_demo(*start, "--file", str(note), "--idempotency-key", "k")
    assert (keyed.code, "--file-id" in keyed.stderr) == (2, True)
