"""`agentctl db copy`: wrong input, the stages of a copy, and the databases after it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Agentctl
from tests.cli.test_db import CONFIG, change, config, file

__all__ = ["config", "file"]


def test_copy_moves_a_database_and_names_the_new_place(
    agentctl: Agentctl, config: Path, file: Path
) -> None:
    where = ("--config", str(config))
    assert agentctl("db", "migrate", *where).code == 0
    change(
        file,
        "INSERT INTO sessions (session_id, session_type, session_name, total_tokens, run_count,"
        " history_bytes, created_at, updated_at, metrics) VALUES ('s1', 'agent', '', 0, 0, 0, 1,"
        " 1, '{}')",
    )
    new = config.with_name("new.db")
    to = ("--to", f"sqlite:///{new}")
    for wrong, told in (
        ((), "give the target with --to"),
        (("--to", "nowhere"), "database 'nowhere' not found"),
        (("--to", "postgresql://me:secret@db/x"), "must not contain a password"),
        (("--to", "mysql://db/x"), "must be "),
        (("--to", "main"), "cannot be copied to itself"),
        ((*to, "--finish", "--abandon"), "give one of"),
        ((*to, "--interrupt"), "need --finish"),
        (("--abandon",), "no copy of the database is under way"),
    ):
        ended = agentctl("db", "copy", *wrong, *where)
        assert ended.code != 0, wrong
        assert told in ended.stderr
        assert "secret" not in ended.stderr
    ended = agentctl("db", "copy", *to, "--status", "-o", "json", *where)
    assert json.loads(ended.stdout)["stage"] == "none", ended.stderr
    assert not new.exists()
    ended = agentctl("db", "copy", *to, "-o", "json", *where)
    status = json.loads(ended.stdout)
    assert [status[name] for name in ("stage", "copied", "rows")] == ["copied", 2, 2]
    checked = agentctl("db", "check", *where)
    assert (checked.code, checked.stdout.count("trigger")) == (0, 1), checked.stdout
    early, closed = config.with_name("early.db"), config.with_name("closed.db")
    assert agentctl("db", "backup", str(early), *where).code == 0
    ended = agentctl("db", "copy", *to, "--finish", "-o", "json", *where)
    assert json.loads(ended.stdout)["rows"] == 2
    assert f"moved to sqlite:///{new}" in ended.stderr
    ended = agentctl("db", "copy", *to, "--status", "-o", "json", *where)
    finished = json.loads(ended.stdout)
    assert [finished[name] for name in ("stage", "copied", "rows")] == ["finished", 2, 2]
    assert status["started_at"] == finished["started_at"] < finished["finished_at"]
    assert status["finished_at"] is None
    for command in (["sessions", "list"], ["serve", "--port", "0"]):
        ended = agentctl(*command, *where)
        assert ended.code == 7
        assert "the database has moved" in ended.stderr
        assert f"cause: {file} was copied to {new}" in ended.stderr
        assert f"url: sqlite:///{new}\n" in ended.stderr
    ended = agentctl("db", "status", "-o", "json", *where)
    assert json.loads(ended.stdout)[0]["state"] == "moved"
    config.write_text(CONFIG.replace("agentctl.db", "new.db"))
    assert agentctl("sessions", "list", "-o", "name", *where).lines == ["s1"]
    config.write_text(CONFIG)
    assert agentctl("db", "backup", str(closed), *where).code == 0
    # A copy of the file has a copy under way; a restored backup has none.
    ended = agentctl("db", "restore", str(closed), "--replace", *where)
    assert (ended.code, f"cause: {closed} was copied" in ended.stderr) == (7, True)
    file.write_bytes(early.read_bytes())
    ended = agentctl("db", "copy", *to, "--finish", *where)
    assert (ended.code, "was finished already" in ended.stderr) == (6, True), ended.stderr
    assert agentctl("db", "restore", str(early), "--replace", *where).code == 0
    ended = agentctl("db", "copy", "--abandon", *where)
    assert (ended.code, "no copy of the database" in ended.stderr) == (6, True)
