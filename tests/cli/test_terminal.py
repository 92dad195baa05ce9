"""Questions, tables and control characters at a real terminal."""

from __future__ import annotations

import pytest

from agentctl.cli.show.terminal import display_width
from agentctl.records.text import escape_controls
from tests.cli.conftest import Agentctl, Terminal
from tests.kit.tables import every_row


@pytest.fixture
def context(agentctl: Agentctl) -> str:
    added = agentctl("context", "add", "one", "--url", "http://127.0.0.1:1", "--use")
    assert added.code == 0
    return "one"


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_yes_confirms(terminal: Terminal, context: str, answer: str) -> None:
    seen = terminal("context", "remove", context, types=answer)
    assert seen.code == 0
    assert "[y/N] " in seen.screen


@pytest.mark.parametrize("answer", ["n\n", "\n", "maybe\n", "\x04"])
def test_any_other_answer_changes_nothing(
    terminal: Terminal, agentctl: Agentctl, context: str, answer: str
) -> None:
    seen = terminal("context", "remove", context, types=answer)
    assert seen.code == 2
    assert "error: not confirmed" in seen.screen
    assert agentctl("context", "current").stdout == f"{context}\n"


def test_an_interrupt_at_a_question_is_exit_code_130(terminal: Terminal, context: str) -> None:
    seen = terminal("context", "remove", context, types="\x03")
    assert seen.code == 130
    assert "Traceback" not in seen.screen


def test_no_input_never_asks(terminal: Terminal, context: str) -> None:
    seen = terminal("context", "remove", context, env={"AGENTCTL_NO_INPUT": "1"})
    assert seen.code == 2
    assert "[y/N]" not in seen.screen
    assert "--yes" in seen.screen


def test_off_a_terminal_yes_is_required(agentctl: Agentctl, context: str) -> None:
    ended = agentctl("context", "remove", context, input="y\n")
    assert (ended.code, ended.stdout) == (2, "")
    assert "--yes" in ended.stderr
    assert agentctl("context", "remove", context, "--yes").code == 0


def test_a_terminal_gets_a_table_and_a_pipe_gets_tsv(
    terminal: Terminal, agentctl: Agentctl, context: str
) -> None:
    table = terminal("context", "list").screen.splitlines()
    assert table[0].split() == ["NAME", "CURRENT", "URL"]
    assert table[0].index("URL") == table[1].index("http://")
    lines = agentctl("context", "list").lines
    assert lines[0] == "name\tcurrent\turl\ttoken_file\tsign_in"
    assert lines[1] == f"{context}\ttrue\thttp://127.0.0.1:1\t\t"


def test_agentctl_output_selects_the_format(agentctl: Agentctl, context: str) -> None:
    assert agentctl("context", "list", env={"AGENTCTL_OUTPUT": "name"}).stdout == f"{context}\n"
    asked = agentctl("context", "list", "-o", "jsonl", env={"AGENTCTL_OUTPUT": "name"})
    assert asked.stdout.startswith('{"name":')
    wrong = agentctl("context", "list", env={"AGENTCTL_OUTPUT": "yaml"})
    assert (wrong.code, wrong.stdout) == (2, "")
    assert "table, wide, json, jsonl, tsv, name" in wrong.stderr


@every_row(
    "text, shown",
    [
        ("plain äöü 漢字 👍", "plain äöü 漢字 👍"),
        ("a\tb\nc\rd", r"a\tb\nc\rd"),
        ("\x1b[31mred\x07\x9b1m", r"\x1b[31mred\x07\x9b1m"),
        ("gpj.\u202eexe", r"gpj.\u202eexe"),
        ("half \ud83d", r"half \ud83d"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert escape_controls(text) == shown


def test_text_of_several_lines_keeps_line_feeds() -> None:
    assert escape_controls("one\n\ttwo\x1b[2J\r", lines=True) == "one\n\ttwo\\x1b[2J\\r"


@every_row("text, columns", [("abc", 3), ("漢字", 4), ("e\u0301", 1), ("👍", 2)])
def test_display_width_counts_columns(text: str, columns: int) -> None:
    assert display_width(text) == columns
