"""An empty value is refused: it is a variable of a shell that is not set, and never a choice.

`--url "$URL"` without URL must not work on the local database, where the user may do everything.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Agentctl, Result
from tests.cli.local_project import write_config
from tests.kit.tables import every_row


def check_refusal(finished: Result, name: str) -> None:
    assert (finished.code, finished.stdout) == (2, ""), finished.stderr
    assert finished.stderr.startswith(f"error: {name} has an empty value\n")
    assert "\nhint: " in finished.stderr


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path)


@every_row(
    "option",
    ["--url", "--context", "--config", "--token-file", "--as-user", "--db", "--user", "--agent"],
)
def test_empty_option_is_refused(agentctl: Agentctl, config: Path, option: str) -> None:
    place = () if option == "--config" else ("--config", str(config))
    for value in ("", " "):
        check_refusal(agentctl("runs", "list", option, value, *place), option)


def test_deletion_with_an_empty_url_deletes_nothing(
    agentctl: Agentctl, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = ("--config", str(config))
    start = ("runs", "start", "--agent", "echo", "--message", "hello", "--session", "kept")
    assert agentctl(*start, *local).code == 0
    monkeypatch.chdir(config.parent)
    check_refusal(agentctl("sessions", "delete", "kept", "--yes", "--url", ""), "--url")
    assert agentctl("sessions", "get", "kept", *local).code == 0


@every_row(
    "words, name",
    [
        (("runs", "start", "--agent", "echo", "-m", "x", "--session", ""), "--session"),
        (
            ("runs", "start", "--agent", "echo", "-m", "x", "--idempotency-key", ""),
            "--idempotency-key",
        ),
        (("sessions", "delete", "", "--yes"), "SESSION_ID"),
        (("users", "erase", "", "--yes"), "USER"),
        (("sessions", "export", "s", "--to-file", ""), "--to-file"),
        (("login", "--url", ""), "--url"),
        (("version", "--url", ""), "--url"),
        (("doctor", "--db", "--config", ""), "--config"),
        (("token", "mint", "--sub", ""), "--sub"),
    ],
)
def test_every_kind_of_selection_is_refused(
    agentctl: Agentctl, words: tuple[str, ...], name: str
) -> None:
    check_refusal(agentctl(*words), name)


@every_row("name", ["AGENTCTL_CONTEXT", "AGENTCTL_CONFIG"])
def test_empty_variable_is_refused(agentctl: Agentctl, name: str) -> None:
    check_refusal(agentctl("runs", "list", env={name: ""}), name)


def test_empty_token_does_not_select_another_identity(agentctl: Agentctl) -> None:
    finished = agentctl("runs", "list", "--url", "http://127.0.0.1:1", env={"AGENTCTL_TOKEN": " "})
    check_refusal(finished, "AGENTCTL_TOKEN")


def test_empty_text_is_a_text(agentctl: Agentctl, config: Path) -> None:
    listed = agentctl("sessions", "list", "--config", str(config), "--cursor", "")
    assert "empty value" not in listed.stderr
