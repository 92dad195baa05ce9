"""`agentctl halt`, `halts` and `resume`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Agentctl
from tests.cli.demo import Demo
from tests.kit.tables import every_row


@pytest.fixture
def halt(on_demo: Agentctl) -> Iterator[str]:
    """A halt of a user that no other test has."""
    ended = on_demo("halt", "--user", "halted-one", "--reason", "too many mails", "-o", "name")
    assert ended.code == 0, ended.stderr
    (halt_id,) = ended.lines
    yield halt_id
    on_demo("resume", halt_id)


def test_halt_is_listed_until_it_is_resumed(on_demo: Agentctl, halt: str) -> None:
    record = json.loads(on_demo("halts", "get", halt, "-o", "json").stdout)
    assert (record["scope"], record["scope_id"], record["state"]) == (
        "user",
        "halted-one",
        "active",
    )
    assert record["reason"] == "too many mails"

    filters = ("--scope", "user", "--id", "halted-one", "-o", "name")
    assert halt in on_demo("halts", "list", "--state", "active", *filters).lines
    ended = on_demo("resume", halt)
    assert (ended.code, ended.stdout) == (0, "")
    assert ended.stderr.startswith(f"ended halt {halt} ")
    assert halt not in on_demo("halts", "list", "--state", "active", *filters).lines
    assert halt in on_demo("halts", "list", "--state", "ended", *filters).lines

    again = on_demo("resume", halt)
    assert again.code == 6
    assert f"the halt {halt} has ended already" in again.stderr


def test_command_names_its_end(on_demo: Agentctl, demo: Demo) -> None:
    ended = on_demo("halt", "--user", "halted-two", "--reason", "look", "--until", "2h")
    first, last = ended.stderr.splitlines()
    assert first == f"halted user halted-two locally ({demo.config})"
    command = re.fullmatch(r"  end it with: agentctl (resume .*)", last)
    assert command is not None
    assert on_demo(*command[1].split()[:2]).code == 0


@every_row(
    "arguments, code, error",
    [
        ((), 2, "nothing to halt is given"),
        (
            ("--agent", "echo", "--all", "--reason", "x"),
            2,
            "--agent and --all cannot be used together",
        ),
        (("--agent", "echo"), 2, "a halt needs a reason"),
        (("--agent", "echo", "--reason", " "), 2, "a halt needs a reason"),
        (("--agent", "eco", "--reason", "x"), 5, "agent not found: eco"),
        (("--model", "gpt", "--reason", "x"), 5, "model not found: gpt"),
        (("--agent", "echo", "--reason", "x", "--until", "5"), 2, "'5' is not a time span"),
        (("--tool", "add", "--reason", "x", "--stop-running"), 2, "stop_running cannot be used"),
    ],
)
def test_wrong_halts_are_refused(
    on_demo: Agentctl, arguments: tuple[str, ...], code: int, error: str
) -> None:
    ended = on_demo("halt", *arguments)
    assert ended.code == code, ended.stderr
    assert error in ended.stderr
    assert ended.stdout == ""


@every_row("command", [("halts", "get"), ("resume",)])
def test_unknown_halts_are_not_found(on_demo: Agentctl, command: tuple[str, ...]) -> None:
    ended = on_demo(*command, "01997a3c-8d12-7d6b-b0a4-6f8d2c9b7e10")
    assert ended.code == 5
    assert "halt not found" in ended.stderr
    assert "halts list" in ended.stderr
