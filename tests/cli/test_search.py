"""`sessions list --search`, `db index` and the check of `doctor`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Agentctl

CONFIG = """
[authorization]
enabled = false

[[models]]
id = "echo"
provider = "demo"
model = "echo"

[[agents]]
id = "echo"
name = "Echo"
model = "echo"
"""
SEARCH = "\n[search]\nenabled = true\n"


def test_earlier_texts_are_found_once_they_are_indexed(agentctl: Agentctl, home: Path) -> None:
    config = home / "agentctl.toml"
    config.write_text(CONFIG)
    place = ("--config", str(config))
    for message in ("please refund order 17", "the weather in Paris"):
        started = agentctl("runs", "start", "--agent", "echo", "--message", message, *place)
        assert started.code == 0, started.stderr
    off = agentctl("sessions", "list", "--search", "refund", *place)
    assert (off.code, "[search]" in off.stderr) == (1, True)

    config.write_text(CONFIG + SEARCH)
    assert "agentctl db index" in agentctl("doctor", *place).stdout
    early = agentctl("sessions", "list", "--search", "refund", *place)
    assert "are found after `agentctl db index`\n" in early.stderr
    for added in (4, 0):
        indexed = agentctl("db", "index", "-o", "json", *place)
        assert json.loads(indexed.stdout)[0]["added"] == added
    assert "agentctl db index" not in agentctl("doctor", *place).stdout

    found = agentctl("sessions", "list", "--search", "REFU* 17", "-o", "json", *place)
    (session,) = json.loads(found.stdout)["data"]
    assert session["match"]["snippet"].startswith("please refund order 17")
    shown = agentctl("sessions", "list", "--search", "refund", *place)
    assert ("please refund" in shown.stdout, "db index" in shown.stderr) == (True, False)
    runs = agentctl("runs", "list", "--search", "order refu*", *place)
    header, row = (line.split("\t") for line in runs.lines)
    assert dict(zip(header, row, strict=True))["match_snippet"].startswith("please refund order 17")
    missing = agentctl("runs", "list", "--search", "nothing", *place)
    assert "no run matches; runs that ended before" in missing.stderr
    assert agentctl("sessions", "list", "--search", "nothing", "-o", "name", *place).stdout == ""
    exported = agentctl("sessions", "export", "--all", "--format", "jsonl", *place).raw
    other = home / "other" / "agentctl.toml"
    other.parent.mkdir()
    other.write_text(CONFIG + SEARCH)
    imported = agentctl("sessions", "import", "-", "--config", str(other), input=exported)
    assert imported.code == 0, imported.stderr
    found = agentctl("sessions", "list", "--search", "refund", "-o", "name", "--config", str(other))
    assert found.lines == [session["session_id"]]

    many = agentctl("sessions", "list", "--search", "word " * 17, *place)
    assert (many.code, many.stderr.splitlines()[0]) == (2, "error: search must be at most 16 words")
    by_use = agentctl("sessions", "list", "--search", "refund", "--sort-by", "updated_at", *place)
    assert by_use.code == 2
    assert "--search and --sort-by updated_at cannot be used together" in by_use.stderr
