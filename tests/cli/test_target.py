"""The target of a command, and the token that it sends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Agentctl
from tests.cli.demo import Demo
from tests.kit.tables import every_row

LIST = ("teams", "list", "-o", "name")


@pytest.fixture
def token_file(demo: Demo, tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"  {demo.token}\n")
    path.chmod(0o600)
    return path


def test_the_token_comes_from_a_file_stdin_or_the_environment(
    agentctl: Agentctl, demo: Demo, token_file: Path
) -> None:
    url = ("--url", demo.url)
    assert agentctl(*LIST, *url, "--token-file", str(token_file)).lines == ["duo"]
    assert agentctl(*LIST, *url, "--token-file", "-", input=demo.token).lines == ["duo"]
    assert agentctl(*LIST, *url, env={"AGENTCTL_TOKEN": demo.token}).lines == ["duo"]
    wins = agentctl(*LIST, *url, "--token-file", str(token_file), env={"AGENTCTL_TOKEN": "bad"})
    assert wins.lines == ["duo"]


def test_a_context_selects_server_and_token(
    agentctl: Agentctl, demo: Demo, token_file: Path
) -> None:
    added = agentctl("context", "add", "demo", "--url", demo.url, "--token-file", str(token_file))
    assert added.code == 0
    assert agentctl(*LIST, "--context", "demo").lines == ["duo"]
    assert agentctl(*LIST, env={"AGENTCTL_CONTEXT": "demo"}).lines == ["duo"]
    assert agentctl(*LIST).code == 2
    assert agentctl("context", "use", "demo").code == 0
    assert agentctl(*LIST).lines == ["duo"]
    elsewhere = agentctl(*LIST, "--url", demo.url.replace("127.0.0.1", "localhost"))
    assert elsewhere.code == 4


def test_config_selects_local_mode_despite_a_context(agentctl: Agentctl, demo: Demo) -> None:
    assert agentctl("context", "add", "far", "--url", "http://127.0.0.1:9", "--use").code == 0
    assert agentctl(*LIST).code == 7
    assert agentctl(*LIST, "--config", str(demo.config)).lines == ["duo"]


def test_an_unused_token_is_noted_once_in_local_mode(agentctl: Agentctl, demo: Demo) -> None:
    ended = agentctl(*LIST, "--config", str(demo.config), env={"AGENTCTL_TOKEN": "whatever"})
    assert ended.lines == ["duo"]
    assert ended.stderr == (
        "note: reading the database as its administrator, without AGENTCTL_TOKEN; add --url to use"
        " the server\n"
    )


def test_a_missing_or_bad_token_is_not_authenticated(agentctl: Agentctl, demo: Demo) -> None:
    for variables in ({}, {"AGENTCTL_TOKEN": "bad"}):
        ended = agentctl(*LIST, "--url", demo.url, env=variables)
        assert (ended.code, ended.stdout) == (4, "")
        assert "hint: " in ended.stderr


def test_as_user_acts_as_that_user(agentctl: Agentctl, demo: Demo) -> None:
    here = ("--config", str(demo.config), "--as-user", "bob")
    demo.run("adas", "hello")
    assert agentctl("sessions", "get", "adas", *here).code == 5
    assert (
        agentctl("runs", "start", "--agent", "echo", "-m", "x", "--session", "bobs", *here).code
        == 0
    )
    assert agentctl("sessions", "list", "-o", "name", *here).lines == ["bobs"]


@every_row(
    "args, named",
    [
        (["--url", "http://127.0.0.1:9", "--config", "x"], "--url"),
        (["--context", "demo", "--config", "x"], "--context"),
        (["--url", "http://127.0.0.1:9", "--as-user", "bob"], "--as-user"),
        (["--config", "x", "--token-file", "y"], "--token-file"),
        (["--context", "nowhere"], "nowhere"),
        (["--url", "http://127.0.0.1:9", "--token-file", "missing"], "missing"),
        (["--url", "ftp://example.com"], "http://"),
    ],
)
def test_options_without_effect_are_rejected(
    agentctl: Agentctl, args: list[str], named: str
) -> None:
    ended = agentctl(*LIST, *args)
    assert (ended.code, ended.stdout) == (2, "")
    assert named in ended.stderr


def test_an_unreachable_server_is_unavailable(agentctl: Agentctl) -> None:
    ended = agentctl(*LIST, "--url", "http://127.0.0.1:9")
    assert (ended.code, ended.stdout) == (7, "")
    assert ended.stderr.startswith("error: cannot reach the server\n  cause: ")


def test_a_missing_database_is_named_and_not_created(agentctl: Agentctl, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert agentctl("init", str(folder)).code == 0
    ended = agentctl("sessions", "list", "--config", str(folder / "agentctl.toml"))
    assert (ended.code, ended.stdout) == (7, "")
    assert ended.stderr == (
        f"error: there is no database yet\n  cause: {folder}/agentctl.db does not exist\n\n"
        "hint: `agentctl serve` creates it\n"
    )
    assert not (folder / "agentctl.db").exists()
