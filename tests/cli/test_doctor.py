"""`agentctl doctor`: everything at once, one line each, and an exit code that scripts can use."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import apsw
import pytest

from tests.cli.conftest import Agentctl, Result, Terminal
from tests.cli.local_project import in_database
from tests.cli.projects import make_project
from tests.kit.tables import every_row

VERDICTS = {"ok", "note", "wrong"}


@pytest.fixture
def project(agentctl: Agentctl, home: Path) -> Path:
    """A project of `agentctl init` in the current directory."""
    assert agentctl("init", ".").code == 0
    return home / "agentctl.toml"


def report(ended: Result) -> list[dict[str, str]]:
    assert ended.code in (0, 1), ended.stderr
    findings: list[dict[str, str]] = json.loads(ended.raw)
    assert {finding["verdict"] for finding in findings} <= VERDICTS
    assert (ended.code == 1) == any(finding["verdict"] == "wrong" for finding in findings)
    return findings


def wrong(ended: Result) -> list[tuple[str, str]]:
    return [
        (finding["check"], finding["remedy"])
        for finding in report(ended)
        if finding["verdict"] == "wrong"
    ]


def test_a_project_of_init_has_no_problems(agentctl: Agentctl, project: Path) -> None:
    before = sorted(project.parent.rglob("*"))
    ended = agentctl("doctor", "-o", "json")
    assert ended.code == 0
    checks = {finding["check"] for finding in report(ended)}
    assert checks == {
        "configuration", "keys", "exposure", "settings", "clock", "database main",
    }  # fmt: skip
    assert ended.stderr == "no problems, 4 notes\n"
    assert sorted(project.parent.rglob("*")) == before


def test_the_report_in_every_output_format(agentctl: Agentctl, project: Path) -> None:
    tsv = agentctl("doctor")
    assert tsv.lines[0] == "verdict\tcheck\twhat\tremedy"
    lines = agentctl("doctor", "-o", "jsonl").lines
    assert len(lines) == len(tsv.lines) - 1
    table = agentctl("doctor", "-o", "table").lines
    assert table[0] == f"ok     configuration  {project} is valid: 1 agent, 0 teams, 0 workflows"
    assert f"{' ' * 22}-> require_exp = true in [authorization]" in table


def test_a_database_with_runs(agentctl: Agentctl, project: Path) -> None:
    agentctl("runs", "start", "--agent", "writer", "-m", "hi", "--session", "s")
    findings = report(agentctl("doctor", "-o", "json"))
    whats = [finding["what"] for finding in findings]
    assert "1 run is consistent" in whats
    assert "it is writable" in whats
    in_database(project, "UPDATE runs SET status = 'RUNNING', owner = NULL, finished_at = NULL")
    contradicting = report(agentctl("doctor", "-o", "json"))
    assert "1 have rows that contradict each other" in [each["what"] for each in contradicting]
    in_database(project, "UPDATE runs SET owner = 'nobody'")
    row = ("w", socket.gethostname(), "", 1, 1, 1, 1)
    in_database(project, "INSERT INTO workers VALUES (?, ?, ?, ?, ?, ?, ?, NULL, NULL, 0)", row)
    assert wrong(agentctl("doctor", "-o", "json")) == [
        ("runs", f"agentctl doctor --runs --config {project}")
    ]
    in_database(project, "DROP TABLE runs")
    assert {check for check, _ in wrong(agentctl("doctor", "-o", "json"))} == {
        "database main", "files", "runs", "search in main",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["[server]\nport =", "[server]\nprot = 1\n", "[authorization]\n"])
def test_an_invalid_configuration_is_a_problem(agentctl: Agentctl, home: Path, text: str) -> None:
    (home / "agentctl.toml").write_text(text)
    ended = agentctl("doctor", "-o", "json")
    assert ("configuration" in dict(wrong(ended))) == (ended.code == 1)
    checks = {finding["check"] for finding in report(ended)}
    assert {"configuration", "clock"} <= checks
    assert ended.stderr.startswith("error: ")


def test_a_missing_configuration_is_a_problem(agentctl: Agentctl) -> None:
    ended = agentctl("doctor", "-o", "json")
    ((check, remedy),) = wrong(ended)
    assert (check, "agentctl init" in remedy) == ("configuration", True)
    assert ended.stderr == "error: 1 problem\n"


def test_equal_problems_are_shown_once(agentctl: Agentctl, project: Path) -> None:
    model = """
[[models]]
id = "{0}"
provider = "openai"
model = "m"
api_key_env = "NO_KEY"

[[agents]]
id = "{0}"
name = "{0}"
model = "{0}"
"""
    with project.open("a") as file:
        file.write("".join(model.format(name) for name in ("one", "two", "three")))
    table = agentctl("doctor", "-o", "table")
    (line,) = [line for line in table.lines if "NO_KEY with its API key" in line]
    assert line.startswith("wrong  model one")
    assert line.endswith("is not set here (also: model two, model three)")
    assert "error: 1 problem" in table.stderr
    assert len(wrong(agentctl("doctor", "-o", "json"))) == 3


def test_no_secret_is_shown(agentctl: Agentctl, home: Path, tmp_path: Path) -> None:
    make_project(home, "HS256")
    secret = (home / "keys/signing.pem").read_text().strip()
    config = home / "agentctl.toml"
    config.write_text(
        f'[authorization]\nalgorithm = "HS256"\nverification_keys = ["{secret}"]\n'
        '[[models]]\nid = "m"\nprovider = "openai"\nmodel = "x"\napi_key_env = "KEY"\n'
        '[[agents]]\nid = "a"\nmodel = "m"\n'
    )
    config.chmod(0o644)
    ended = agentctl("doctor", "-o", "json", env={"KEY": "sk-precious"})
    assert wrong(ended) == [("configuration", f"chmod 600 {config}")]
    config.chmod(0o600)
    assert wrong(agentctl("doctor", "-o", "json", env={"KEY": "sk-precious"})) == []
    for form in ("json", "table"):
        short = agentctl("doctor", "-o", form, env={"JWT_VERIFICATION_KEY": "short-and-weak"})
        assert short.code == 1
        for text in (secret, "sk-precious", "short-and-weak"):
            assert text not in ended.stdout + ended.stderr + short.stdout + short.stderr


def test_progress_is_shown_at_a_terminal_and_can_be_interrupted(
    agentctl: Agentctl, terminal: Terminal, project: Path
) -> None:
    agentctl("runs", "start", "--agent", "writer", "-m", "hi")
    database = project.parent / "agentctl.db"
    holder = apsw.Connection(str(database))
    holder.set_busy_timeout(5_000)
    holder.execute("BEGIN IMMEDIATE")
    try:
        seen = terminal(
            "doctor", when="checking database main, ", types="\x03", env={"TERM": "xterm"}
        )
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    assert (seen.code, "Traceback" in seen.screen) == (130, False)


@every_row(
    "words, said",
    [
        ("--db --runs", "--db and --runs cannot be used together"),
        ("main", "DB_ID needs --db or --runs"),
        ("--db --fix", "--fix needs --runs"),
        ("--runs --deep", "--deep needs --db"),
        ("--production --cursor x", "--cursor needs --db or --runs"),
        ("--runs --backups copies", "--backups needs --production"),
        ("--db --url http://127.0.0.1:9", "--url has no effect here: --db reads the database"),
        ("--timeout 1", "--token-file, --insecure-http and --timeout need --url"),
        ("--url http://127.0.0.1:9 --production", "--url and --production cannot be used together"),
        ("--backups copies", "--backups needs --production"),
    ],
)
def test_options_without_effect_are_refused(
    agentctl: Agentctl, project: Path, words: str, said: str
) -> None:
    ended = agentctl("doctor", *words.split())
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: {said}")


def test_production_needs_more(agentctl: Agentctl, project: Path) -> None:
    findings = report(agentctl("doctor", "--production", "--backups", "copies", "-o", "json"))
    texts = [finding["what"] for finding in findings if finding["check"] == "production"]
    for expected in (
        "models without a provider",
        "lines for people",
        "no metrics are published",
        "no quota",
        "no backup of the database main in copies",
    ):
        assert any(expected in text for text in texts), expected


def test_backup_of_today_is_found(agentctl: Agentctl, project: Path) -> None:
    (project.parent / "copies").mkdir()
    assert agentctl("db", "migrate").code == 0
    assert agentctl("db", "backup", "copies/main-1.db").code == 0
    command = ("doctor", "--production", "--backups", "copies", "-o", "json")
    found = [
        finding for finding in report(agentctl(*command)) if "newest backup" in finding["what"]
    ]
    assert [finding["verdict"] for finding in found] == ["ok"]
    two_days_ago = time.time() - 2 * 86_400
    os.utime(project.parent / "copies/main-1.db", (two_days_ago, two_days_ago))
    found = [
        finding for finding in report(agentctl(*command)) if "newest backup" in finding["what"]
    ]
    assert [(finding["verdict"], "2 d old" in finding["what"]) for finding in found] == [
        ("wrong", True)
    ]
