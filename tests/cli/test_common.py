"""The options of every command, `api`, `runs wait`, `version`, and the help topics."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from agentctl import __version__
from agentctl.cli.commands.help import TOPICS
from tests.cli.conftest import Agentctl, Terminal
from tests.cli.demo import Demo
from tests.kit.tables import every_row

ROOT = Path(__file__).parents[2]


@pytest.fixture
def at_demo(agentctl: Agentctl, demo: Demo) -> dict[str, str]:
    """The environment of a command for the demo server."""
    agentctl("context", "add", "here", "--url", demo.url)
    return {"AGENTCTL_CONTEXT": "here", "AGENTCTL_TOKEN": demo.token}


def test_verbose_reports_each_request_without_the_token(
    agentctl: Agentctl, at_demo: dict[str, str], demo: Demo
) -> None:
    ended = agentctl("sessions", "list", "--limit", "3", "-v", env=at_demo)
    assert ended.code == 0
    assert f"server: {demo.url}, with a token" in ended.stderr
    assert "GET /sessions?" in ended.stderr
    assert ": 200 after " in ended.stderr
    assert demo.token not in ended.stderr


def test_verbose_reports_the_files_of_local_work(agentctl: Agentctl, demo: Demo) -> None:
    ended = agentctl("sessions", "list", "-v", "--config", str(demo.config))
    assert f"configuration: {demo.config}" in ended.stderr
    assert "database " in ended.stderr


def test_quiet_writes_errors_only(agentctl: Agentctl, at_demo: dict[str, str]) -> None:
    ended = agentctl("runs", "start", "--agent", "echo", "-m", "hi", "-q", env=at_demo)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "hi\n", "")
    failed = agentctl("runs", "get", "nothing", "-q", env=at_demo)
    assert (failed.code, failed.stdout) == (5, "")
    assert failed.stderr.lower().startswith("error: run not found")


def test_verbose_and_quiet_exclude_each_other(agentctl: Agentctl) -> None:
    ended = agentctl("config", "path", "-v", "-q")
    assert ended.code == 2
    assert "--verbose and --quiet cannot be used together" in ended.stderr


def test_no_input_fails_where_a_confirmation_is_required(
    terminal: Terminal, at_demo: dict[str, str]
) -> None:
    seen = terminal("context", "remove", "here", "--no-input")
    assert seen.code == 2
    assert "--no-input is given" in seen.screen
    assert "[y/N]" not in seen.screen


def test_timeout_ends_the_wait_for_a_silent_server(agentctl: Agentctl) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        ended = agentctl("sessions", "list", "--url", url, "--timeout", "0.2")
    assert (ended.code, ended.stdout) == (7, "")
    local = agentctl("sessions", "list", "--timeout", "1")
    assert local.code == 2
    assert "--timeout has no effect here" in local.stderr


def test_api_prints_the_body_of_the_response(
    agentctl: Agentctl, at_demo: dict[str, str], demo: Demo
) -> None:
    demo.run("api-1", "hello")
    ended = agentctl(
        "api", "get", "/sessions?limit=1", "--query", "session_name=hello", env=at_demo
    )
    assert ended.code == 0
    assert [row["session_id"] for row in json.loads(ended.stdout)["data"]] == ["api-1"]
    body = '{"message": "from api", "session_id": "api-2", "stream": false}'
    made = agentctl("api", "POST", "/agents/echo/runs", "--body", "-", env=at_demo, input=body)
    assert json.loads(made.stdout)["content"] == "from api"


def test_api_prints_a_stream(agentctl: Agentctl, at_demo: dict[str, str]) -> None:
    body = '{"message": "streamed", "stream": true}'
    ended = agentctl("api", "POST", "/agents/echo/runs", "--body", body, env=at_demo)
    assert ended.code == 0
    assert "event: RunStarted" in ended.stdout
    assert "event: RunCompleted" in ended.stdout


def test_api_prints_an_error_and_has_its_exit_code(
    agentctl: Agentctl, at_demo: dict[str, str]
) -> None:
    ended = agentctl("api", "GET", "/runs/nothing", env=at_demo)
    assert ended.code == 5
    assert json.loads(ended.stdout)["error_code"] == "NOT_FOUND"
    assert "error: run not found" in ended.stderr.lower()


@every_row(
    "arguments",
    [
        ("FETCH", "/runs"),
        ("GET", "runs"),
        ("GET", "//elsewhere/runs"),
        ("GET", "http://127.0.0.1:1/runs"),
        ("GET", "/runs", "--query", "limit"),
        ("POST", "/sessions", "--body", "[]"),
    ],
)
def test_api_rejects_what_is_no_request(
    agentctl: Agentctl, at_demo: dict[str, str], arguments: tuple[str, ...]
) -> None:
    ended = agentctl("api", *arguments, env=at_demo)
    assert (ended.code, ended.stdout) == (2, "")


def test_wait_ends_with_the_runs(agentctl: Agentctl, at_demo: dict[str, str], demo: Demo) -> None:
    first = demo.run("wait-1", "one")
    second = demo.run("wait-2", "two", leave=True)
    ended = agentctl("runs", "wait", first, second, "-o", "jsonl", env=at_demo)
    assert ended.code == 0
    assert [json.loads(line)["status"] for line in ended.lines] == ["COMPLETED", "COMPLETED"]


def test_wait_reports_live_and_cancelled_runs(
    agentctl: Agentctl, at_demo: dict[str, str], demo: Demo
) -> None:
    run = demo.run("wait-3", "word " * 500, agent="slow", leave=True)
    waiting = agentctl("runs", "wait", run, "--wait", "0", env=at_demo)
    assert waiting.code == 8
    assert "1 of 1 run not ended within 0 s" in waiting.stderr
    assert agentctl("runs", "cancel", run, env=at_demo).code == 0
    assert agentctl("runs", "wait", run, env=at_demo).code == 1
    assert agentctl("runs", "wait", "nothing", env=at_demo).code == 5


def test_version_names_the_server(agentctl: Agentctl, at_demo: dict[str, str], demo: Demo) -> None:
    both = json.loads(agentctl("version", "-o", "json", env=at_demo).stdout)
    assert (both["version"], both["server_version"]) == (__version__, __version__)
    assert both["server_url"] == demo.url


def test_version_needs_no_server(agentctl: Agentctl) -> None:
    alone = json.loads(agentctl("version", "-o", "json").stdout)
    assert (alone["version"], alone["server_version"]) == (__version__, None)


@every_row("topic", TOPICS)
def test_help_shows_each_topic(agentctl: Agentctl, topic: str) -> None:
    assert f"  {topic} " in agentctl("help").stdout
    shown = agentctl("help", topic)
    assert shown.code == 0
    assert max(map(len, shown.lines)) <= 100


def test_help_of_a_command_is_that_of_its_option(agentctl: Agentctl) -> None:
    assert agentctl("help", "runs", "list").stdout == agentctl("runs", "list", "-h").stdout
    wrong = agentctl("help", "runs", "nothing")
    assert wrong.code == 2
    assert "no help for" in wrong.stderr


def test_manual_page_has_every_command() -> None:
    page = (ROOT / "docs" / "reference" / "agentctl.1").read_text()
    for title in ("agentctl runs wait", "agentctl api", "agentctl serve"):
        assert f'.SS "{title}"' in page
    macros = (".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".I", ".nf", ".fi", '.\\"')
    control = [line for line in page.splitlines() if line.startswith((".", "'"))]
    assert [line for line in control if line.split()[0] not in macros] == []
