"""Properties of every command: help, version, errors."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from agentctl import __version__
from agentctl.cli.report import reporting_errors
from agentctl.cli.root import app
from agentctl.errors import AgentctlError, NeedsConfirmation, Unavailable, iter_error_classes
from tests.cli.conftest import Agentctl
from tests.kit.tables import every_row


def test_version_is_one_line(agentctl: Agentctl) -> None:
    ended = agentctl("--version")
    assert (ended.code, ended.stdout, ended.stderr) == (0, f"agentctl {__version__}\n", "")


def test_help_is_on_stdout(agentctl: Agentctl) -> None:
    for flag in ("--help", "-h"):
        ended = agentctl(flag)
        assert ended.code == 0
        assert ended.stdout.startswith("Usage: agentctl ")
        assert ended.stderr == ""


def test_a_group_without_a_command_shows_its_help(agentctl: Agentctl) -> None:
    ended = agentctl()
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("Usage: agentctl ")


def test_an_unknown_option_gets_a_suggestion(agentctl: Agentctl) -> None:
    ended = agentctl("--versio")
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr == "error: no such option: --versio\n\nhint: did you mean --version?\n"


@every_row(
    "args, said",
    [
        (["sesions"], "error: no such command 'sesions'\n\nhint: did you mean 'sessions'?\n"),
        (
            ["sessions", "stat", "--by", "day"],
            "error: no such command 'stat'\n\n"
            "hint: the sums of runs are in: agentctl usage --by component\n",
        ),
        (
            ["top", "--url", "http://127.0.0.1:7777"],
            "error: no such command 'top'\n\n"
            "hint: use the console of the server (agentctl console), "
            "agentctl runs list --live --watch, or agentctl runs watch RUN_ID\n",
        ),
        (
            ["db", "import", "agentos.db"],
            "error: no such command 'import'\n\n"
            "hint: docs/agentos.md has a program that writes the sessions of AgentOS for:"
            " agentctl sessions import\n",
        ),
        (
            ["sessions", "list", "--database", "agentos.db"],
            "error: no such option: --database\n\n"
            "hint: docs/agentos.md has a program that writes the sessions of AgentOS for:"
            " agentctl sessions import\n",
        ),
        (
            ["memories", "list", "--database", "agentos.db"],
            "error: no such option: --database\n\n"
            "hint: docs/agentos.md has a program that writes the memories of AgentOS for:"
            " agentctl memories import\n",
        ),
        (
            ["runs", "doctor", "--fix"],
            "error: `agentctl runs doctor` has moved: use `agentctl doctor --runs`\n",
        ),
        (
            ["budgets", "list", "--user", "ann"],
            "error: `agentctl budgets` has moved: use `agentctl usage --budgets`\n",
        ),
        (
            ["memories", "forget", "ada"],
            "error: `agentctl memories forget` has moved: use `agentctl memories delete --all"
            " --user USER`\n",
        ),
        (["doctor", "--db", "--runs"], "error: --db and --runs cannot be used together\n"),
        (
            ["sessions", "list", "--as-user", "ada", "--url", "http://127.0.0.1:9"],
            "error: --as-user has no effect here: a server takes the user from the token\n",
        ),
        (["sessions", "lst"], "error: no such command 'lst'\n\nhint: did you mean 'list'?\n"),
        (
            ["sessions", "list", "--version"],
            "error: no such option: --version\n"
            "\nhint: give it before the command, directly after agentctl\n",
        ),
        (
            ["runs", "list", "--clear"],
            "error: no such option: --clear\n"
            "\nhint: `agentctl runs list --help` lists its parameters\n",
        ),
        (
            ["sessions", "list", "--type", "robot"],
            "error: --type must be agent, team or workflow, not 'robot'\n",
        ),
        (
            ["runs", "start", "writer", "hi", "there"],
            "error: got unexpected extra argument(s) (writer hi there)\n"
            "\nhint: write: agentctl runs start --agent writer --message 'hi there'\n",
        ),
        (
            ["sessions", "get"],
            "error: missing argument 'SESSION_ID'\n"
            "\nhint: for example: agentctl sessions get s1 --last 3\n",
        ),
    ],
)
def test_usage_errors_have_the_common_format(
    agentctl: Agentctl, args: list[str], said: str
) -> None:
    ended = agentctl(*args)
    assert (ended.code, ended.stdout, ended.stderr) == (2, "", said)


def _exit_code(failure: Exception, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(typer.Exit) as ended, reporting_errors():
        raise failure
    return ended.value.exit_code, capsys.readouterr().err


@pytest.mark.parametrize("kind", [*iter_error_classes()], ids=lambda kind: kind.__name__)
def test_every_error_class_has_an_exit_code(
    kind: type[AgentctlError], capsys: pytest.CaptureFixture[str]
) -> None:
    failure = (
        NeedsConfirmation("What failed", plan={})
        if kind is NeedsConfirmation
        else kind("What failed")
    )
    code, said = _exit_code(failure, capsys)
    assert code == kind.exit_code
    assert code in {1, 2, 4, 5, 6, 7, 8, 9}
    assert said.startswith("error: ")
    assert said.count("\n") == len(said.splitlines())


def test_an_error_has_detail_cause_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    failure = Unavailable("Cannot do it", cause="no\x1b[31m power", hint="plug it in")
    assert _exit_code(failure, capsys) == (
        7,
        "error: cannot do it\n  cause: no\\x1b[31m power\n\nhint: plug it in\n",
    )


def test_an_internal_error_hides_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = _exit_code(KeyError("secret"), capsys)
    assert code == 1
    assert said.startswith("error: internal error (KeyError)\n\nhint: ")
    assert "secret" not in said


def test_the_end_of_input_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code(EOFError(), capsys)[0] == 2


def test_errors_are_reported_under_the_runner_of_typer() -> None:
    ended = CliRunner().invoke(app, ["teams", "list", "--config", "nowhere.toml"])
    assert ended.exit_code == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("error: ")
