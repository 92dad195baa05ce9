"""`sessions list --search`, `db index` and the check of `doctor`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Agentctl
from tests.kit.command import run_command
from tests.kit.process import base_environment

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


MESSAGES = ("please refund order 17", "the weather in Paris")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a project without search that has a session for each message. Copy it."""
    folder = tmp_path_factory.mktemp("filled")
    config = folder / "agentctl.toml"
    config.write_text(CONFIG)
    environment = base_environment() | {"HOME": str(folder)}
    for message in MESSAGES:
        start = ("runs", "start", "--agent", "echo", "--message", message)
        words = (*start, "--config", str(config))
        started = run_command(*words, environment=environment, folder=folder)
        assert started.code == 0, started.stderr
    return folder


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory, filled: Path) -> Path:
    """A folder with the project with search, whose texts are indexed. Read it."""
    folder = tmp_path_factory.mktemp("indexed")
    shutil.copytree(filled, folder, dirs_exist_ok=True)
    config = folder / "agentctl.toml"
    config.write_text(CONFIG + SEARCH)
    words = ("db", "index", "--config", str(config))
    environment = base_environment() | {"HOME": str(folder)}
    ended = run_command(*words, environment=environment, folder=folder)
    assert ended.code == 0, ended.stderr
    return folder


@pytest.fixture
def place(filled: Path, home: Path) -> tuple[str, ...]:
    """The options of a copy of the project without search, in the home folder."""
    shutil.copytree(filled, home, dirs_exist_ok=True)
    return ("--config", str(home / "agentctl.toml"))


@pytest.fixture
def searched(indexed: Path) -> tuple[str, ...]:
    """The options of the project with search, which tests read only."""
    return ("--config", str(indexed / "agentctl.toml"))


def test_earlier_texts_are_found_once_they_are_indexed(
    agentctl: Agentctl, home: Path, place: tuple[str, ...]
) -> None:
    search = ("sessions", "list", "--search", "refund", *place)
    off = agentctl(*search)
    assert (off.code, "[search]" in off.stderr) == (1, True)

    (home / "agentctl.toml").write_text(CONFIG + SEARCH)
    early = agentctl(*search)
    assert "are found after `agentctl db index`\n" in early.stderr
    assert "agentctl db index" in agentctl("doctor", *place).stdout

    # A repeat finds nothing more to add.
    for added in (4, 0):
        indexed = agentctl("db", "index", "-o", "json", *place)
        assert json.loads(indexed.stdout)[0]["added"] == added

    assert "agentctl db index" not in agentctl("doctor", *place).stdout
    shown = agentctl(*search)
    assert "please refund" in shown.stdout
    assert "db index" not in shown.stderr


def test_search_shows_where_its_words_are(agentctl: Agentctl, searched: tuple[str, ...]) -> None:
    found = agentctl("sessions", "list", "--search", "REFU* 17", "-o", "json", *searched)
    (session,) = json.loads(found.stdout)["data"]
    assert session["match"]["snippet"].startswith("please refund order 17")

    runs = agentctl("runs", "list", "--search", "order refu*", *searched)
    header, row = (line.split("\t") for line in runs.lines)
    assert dict(zip(header, row, strict=True))["match_snippet"].startswith("please refund order 17")


def test_search_without_matches_names_what_is_not_indexed(
    agentctl: Agentctl, searched: tuple[str, ...]
) -> None:
    sessions = agentctl("sessions", "list", "--search", "nothing", "-o", "name", *searched)
    assert sessions.stdout == ""

    runs = agentctl("runs", "list", "--search", "nothing", *searched)
    assert "no run matches; runs that ended before" in runs.stderr


def test_imported_texts_are_found_at_once(
    agentctl: Agentctl, home: Path, place: tuple[str, ...]
) -> None:
    exported = agentctl("sessions", "export", "--all", "--format", "jsonl", *place).raw
    sessions = [json.loads(line) for line in exported.splitlines()]

    other = home / "other" / "agentctl.toml"
    other.parent.mkdir()
    other.write_text(CONFIG + SEARCH)

    imported = agentctl("sessions", "import", "-", "--config", str(other), input=exported)
    assert imported.code == 0, imported.stderr

    found = agentctl("sessions", "list", "--search", "refund", "-o", "name", "--config", str(other))
    (session,) = [row["session"] for row in sessions if "refund" in json.dumps(row)]
    assert found.lines == [session["session_id"]]


def test_searches_that_cannot_be_made_are_refused(
    agentctl: Agentctl, searched: tuple[str, ...]
) -> None:
    many = agentctl("sessions", "list", "--search", "word " * 17, *searched)
    assert (many.code, many.stderr.splitlines()[0]) == (2, "error: search must be at most 16 words")

    sorted_by_use = ("--search", "refund", "--sort-by", "updated_at")
    refused = agentctl("sessions", "list", *sorted_by_use, *searched)
    assert refused.code == 2
    assert "--search and --sort-by updated_at cannot be used together" in refused.stderr
