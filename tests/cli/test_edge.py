"""What every command has in common: help, versions, usage errors."""

from __future__ import annotations

from agentctl import __version__
from tests.cli.conftest import Agentctl


def test_version_is_one_line(agentctl: Agentctl) -> None:
    ended = agentctl("--version")
    assert (ended.code, ended.stdout, ended.stderr) == (0, f"agentctl {__version__}\n", "")


def test_help_is_on_stdout(agentctl: Agentctl) -> None:
    for flag in ("--help", "-h"):
        ended = agentctl(flag)
        assert ended.code == 0
        assert ended.stdout.startswith("Usage: agentctl ")
        assert ended.stderr == ""


def test_no_command_is_a_usage_error_that_shows_the_help(agentctl: Agentctl) -> None:
    ended = agentctl()
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("Usage: agentctl ")


def test_unknown_option_names_the_near_one(agentctl: Agentctl) -> None:
    ended = agentctl("--versio")
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr == "error: no such option: --versio\n\nhint: did you mean --version?\n"
