"""Common mistakes: one clear error, the right exit code, and no changed data.

The commands of the tables work on a database: what a server says is the same, which the rows of
`tests/contract/table` show.
"""

from __future__ import annotations

import io
import os
import shlex
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest
from typer.testing import CliRunner

from agentctl.cli.io import IO
from agentctl.cli.root import app
from tests.cli.conftest import Agentctl, Result
from tests.cli.demo import Demo
from tests.kit.command import run_main
from tests.kit.conditions import PATIENCE
from tests.kit.process import AGENTCTL, start_agentctl
from tests.kit.tables import every_row


def check(finished: Result, code: int, *parts: str, hint: str | None = None) -> list[str]:
    """One error of the one shape: what failed, perhaps why and what to do, nothing on stdout."""
    lines = finished.stderr.splitlines()
    assert finished.code == code, finished.stderr
    assert finished.stdout == ""
    assert [line for line in lines if line.startswith("error: ")] != []
    for part in parts:
        assert part in finished.stderr
    hints = [line for line in lines if line.startswith("hint: ")]
    if hint is not None:
        assert hints, finished.stderr
        assert hint in hints[0]
    # An error with the allowed values, or with the options to choose from, needs no hint.
    texts = (" must be ", " cannot be used together")
    return hints or [line for line in lines if any(text in line for text in texts)]


LOOKUPS: dict[str, tuple[tuple[str, ...], int, str]] = {
    "session": (("sessions", "get", "missing"), 5, "session not found"),
    "run": (("runs", "get", "missing"), 5, "run not found"),
    "run to cancel": (("runs", "cancel", "missing"), 5, "run not found"),
    "agent": (("agents", "get", "missing"), 5, "agent not found"),
    "agent to run": (
        ("runs", "start", "--agent", "missing", "--message", "x"), 5, "agent not found",
    ),
    "team": (("teams", "get", "missing"), 5, "team not found"),
    "workflow": (("workflows", "get", "missing"), 5, "workflow not found"),
    "database": (("sessions", "get", "s1", "--db", "missing"), 5, "database not found"),
    "table": (("sessions", "get", "s1", "--table", "missing"), 5, "table not found"),
    "type": (("sessions", "get", "s1", "--type", "crowd"), 2, "--type must be agent, team or "),
    "page": (("sessions", "list", "--page", "0"), 2, "page"),
    "deep page": (("sessions", "list", "--page", "600"), 2, "cursor"),
    "cursor": (("sessions", "list", "--cursor", "x"), 2, "cursor"),
    "output": (("sessions", "list", "-o", "xml"), 2, "xml"),
    "session id": (
        ("runs", "start", "--agent", "echo", "--message", "x", "--session", "a b"), 2, "session_id",
    ),
    "no message": (("runs", "start", "--agent", "echo", "--message", ""), 2, "message"),
}  # fmt: skip


@every_row("name", LOOKUPS)
def test_missing_things_and_wrong_values(on_demo: Agentctl, name: str) -> None:
    arguments, code, part = LOOKUPS[name]
    assert check(on_demo(*arguments), code, part)


FILTERS = {
    "sessions list --status lost": "--status must be PENDING, RUNNING, PAUSED, COMPLETED, ",
    "sessions list --idle -5m": "--idle: '-5m' is not a time span",
    "sessions list --used-within 2026-11-23": "--used-within: '2026-11-23' is not a time span",
    "sessions list --metadata vip": "metadata must be KEY=VALUE",
    "runs list --newer-than 10": "--newer-than: '10' is not a time span",
    "runs list --older-than 2999-01-01T00:00:00Z": "is not within the last hundred years",
    "runs list --tag=": "tag must be 1 to 256 characters",
    "runs list --error=": "error must be 1 to 200 characters",
    "runs cancel --all --yes --older-than -1d": "--older-than: '-1d' is not a time span",
    "runs cancel --all --yes --metadata vip": "metadata must be KEY=VALUE",
    "approvals list --status lost": "--status must be pending, approved, rejected, answered, ",
    "audit list --since -1h": "--since: '-1h' is not a time span",
    "audit list --outcome lost": "--outcome must be allowed, denied or failed, not 'lost'",
    "webhooks deliveries --state lost": "--state must be waiting, delivered or dead, not 'lost'",
}


def test_wrong_filters_are_named_with_their_option(on_demo: Agentctl) -> None:
    for words, part in FILTERS.items():
        assert check(on_demo(*words.split()), 2, part), words


WRONG_WORDS: dict[str, tuple[int, str, str | None]] = {
    "runs get 01a2": (5, "run not found: 01a2", "give at least 8 characters of an id; list "),
    "runs list --token abc": (2, "no such option: --token", "use --token-file FILE"),
    "runs list --all --limit 5": (2, "--all and --limit cannot be used together", None),
    "runs list --watch --all": (2, "--all and --watch cannot be used together", None),
    "runs list --live --status RUNNING": (2, "cannot be used together", None),
    "runs list --agent a --team b": (2, "cannot be used together", None),
    "runs lst": (2, "no such command 'lst'", "did you mean 'list'"),
    "runs list extra": (2, "unexpected extra argument", "runs list --help"),
    "runs failures --cursor x": (2, "cursor must be the next_cursor", None),
    "runs failures --newer-than yesterday": (2, "is not a time span", "write 15m, 2h, 7d"),
    "runs cancel": (2, "give a RUN_ID, or --all", ""),
    "runs cancel x --all": (2, "--all and RUN_ID cannot be used together", None),
    "runs fork x --at many": (2, "--at must be a whole number", None),
    "runs start -m x": (2, "--agent", ""),
    "runs start --agent echo hello there": (2, "extra argument", "--message 'hello there'"),
    "run echo hello": (2, "no such command 'run'", "agentctl runs start --agent AGENT_ID"),
    "sessions export -o out.jsonl": (2, "no such option: -o", "is written to stdout: "),
    "sessions prune": (2, "missing option '--idle'", "for example: agentctl sessions prune --"),
    "usage --by month": (2, "--by must be day, user, component, model, version or session", None),
    "agents get ekco": (5, "agent not found: ekco", "did you mean echo? list them with: "),
    "agents diff echo 1 2": (5, "version not found", "agents diff --help"),
    "teams get du": (5, "team not found: du", "did you mean duo?"),
    "workflows get rely": (5, "workflow not found: rely", "did you mean relay?"),
    "approvals get missing": (5, "approval not found: missing", "approvals list"),
    "memories get missing": (5, "memory not found", "memories list"),
    "webhooks test missing": (5, "webhook not found: missing", "webhooks list"),
    "webhooks redeliver missing": (5, "delivery not found", "webhooks deliveries"),
    "sessions delete missing": (2, "confirmation required", "--yes"),
    "usage --step year": (2, "--step must be hour or day", None),
    "accounts create --scope nope x": (2, "resource:action", "accounts create --help"),
    "runs start --agent ekco -m x": (5, "agent not found: ekco", "did you mean echo? "),
    "runs start --agent echo -m x --metadata foo": (2, "KEY=VALUE", "--metadata team=cakes"),
}


def test_wrong_words_have_an_error_and_a_remedy(on_demo: Agentctl) -> None:
    for words, (code, part, hint) in WRONG_WORDS.items():
        assert check(on_demo(*words.split()), code, part, hint=hint), words


@every_row(
    "command, part, hint",
    [
        ("token mint --sub me --expires-in never", "--expires-in: 'never' is not", "15m"),
        (
            "token mint --sub me --expires-in 20000d",
            "from 1 second to 3650 days",
            "accounts create",
        ),
        (
            "token verify --token-file nowhere",
            "no token can be read from nowhere",
            "check the path",
        ),
        ("context use missing", "missing", "context list"),
        (
            "context add x --url ftp://host",
            "the URL of the server is not valid",
            "write it like http://",
        ),
        ("db copy", "give the target with --to", "db copy --help"),
        ("db restore", "FILE", "for example: agentctl db restore "),
        ("sessions import nowhere.jsonl", "nowhere.jsonl cannot be read", "check the path"),
        ("serve my/agentctl.toml", "extra argument", "serve --config my/agentctl.toml"),
        ("agents list http://host", "extra argument", "agents list --url http://host"),
        ("login --url nonsense", "the URL of the server is not valid", "write http://nonsense"),
        ("sessions list --url ftp://x", "does not start with http:// or https://", "write it like"),
        ("sessions list --context nowhere", "nowhere", "context list"),
        ("help nothing", "nothing", ""),
    ],
)
def test_wrong_words_of_local_commands_have_a_remedy(
    agentctl: Agentctl, demo: Demo, command: str, part: str, hint: str
) -> None:
    env = {"AGENTCTL_CONFIG": str(demo.config)}
    assert check(agentctl(*command.split(), env=env), 2, part, hint=hint)


@every_row(
    "arguments, said",
    [
        (("sessions", "list", "--limit", "0"), "--limit must be a whole number from 1 to 100, not"),
        (("sessions", "list", "--limit", "x"), "--limit must be a whole number from 1 to 100, not"),
        (("sessions", "list", "--page", "0"), "--page must be a whole number from 1, not '0'"),
        (("sessions", "runs", "s", "--limit", "101"), "--limit must be a whole number from 1 to "),
        (("sessions", "list", "--sort-by", "x"), "--sort-by must be created_at or updated_at, not"),
        (("sessions", "list", "-o", "x"), "--output must be table, wide, json, jsonl, tsv or name"),
        (
            ("runs", "list", "--status", "x"),
            "--status must be PENDING, RUNNING, PAUSED, COMPLETED, ERROR ",
        ),
        (("runs", "cancel", "x", "--wait", "-1"), "--wait must be a number from 0 to 86400, not "),
        (
            ("serve", "--port", "65536"),
            "--port must be a whole number from 0 to 65535, not '65536'",
        ),
        (("keys", "generate", "--algorithm", "none"), "--algorithm must be RS256, RS384, "),
    ],
)
def test_errors_describe_the_allowed_values(arguments: tuple[str, ...], said: str) -> None:
    ended = CliRunner().invoke(app, arguments, prog_name="agentctl")
    assert (ended.exit_code, ended.stdout) == (2, "")
    (error,) = ended.stderr.splitlines()
    assert error.startswith(f"error: {said}")


@every_row("command", ["db status", "keys list", "mcp check"])
def test_a_local_command_has_no_server_url(agentctl: Agentctl, command: str) -> None:
    ended = agentctl(*command.split(), "--url", "http://127.0.0.1:7777")
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: no such option: --url\n\nhint: this works only locally")


def test_an_unparsable_configuration_is_reported(agentctl: Agentctl, tmp_path: Path) -> None:
    config = tmp_path / "agentctl.toml"
    config.write_text("[server]\nport = \n")
    check(agentctl("sessions", "list", "--config", str(config)), 2, str(config), "line 2")
    check(agentctl("serve", "--config", str(config)), 2, str(config), "line 2")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".db"] == []


def test_a_missing_configuration_is_reported(agentctl: Agentctl, home: Path) -> None:
    check(agentctl("sessions", "list"), 2, hint="agentctl init")
    check(agentctl("serve", "--config", "nowhere.toml"), 2, "nowhere.toml")


@pytest.fixture
def project(agentctl: Agentctl, tmp_path: Path) -> Path:
    """A project of `agentctl init`."""
    folder = tmp_path / "project"
    folder.mkdir()
    assert agentctl("init", str(folder)).code == 0
    return folder


def _garbage(path: Path) -> None:
    path.write_bytes(b"this is no database at all" * 200)


def _foreign(path: Path) -> None:
    import apsw

    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE theirs (x)").fetchall()
    connection.close()


@pytest.mark.parametrize("spoil", [_garbage, _foreign, Path.mkdir])
def test_an_unreadable_database_is_not_changed(
    agentctl: Agentctl, project: Path, spoil: Callable[[Path], None]
) -> None:
    database = project / "agentctl.db"
    spoil(database)
    before = database.read_bytes() if database.is_file() else None
    for command in (("sessions", "list"), ("serve", "--port", "0")):
        check(agentctl(*command, "--config", str(project / "agentctl.toml")), 7, str(database))
    assert (database.read_bytes() if database.is_file() else None) == before


def test_a_readable_signing_key_is_rejected(agentctl: Agentctl, project: Path) -> None:
    key = project / "keys" / "signing.pem"
    os.chmod(key, 0o640)  # noqa: PTH101
    config = str(project / "agentctl.toml")
    finished = agentctl("token", "mint", "--sub", "me", "--config", config)
    check(finished, 2, str(key), hint="chmod 600")


def test_a_missing_verification_key_is_reported(agentctl: Agentctl, project: Path) -> None:
    key = project / "keys" / "signing.pub.pem"
    key.unlink()
    config = str(project / "agentctl.toml")
    check(agentctl("serve", "--port", "0", "--config", config), 2, str(key))


def test_an_unknown_scope_is_rejected(agentctl: Agentctl, project: Path) -> None:
    config = str(project / "agentctl.toml")
    finished = agentctl(
        "token", "mint", "--sub", "me", "--scope", "session:read", "--config", config
    )
    check(finished, 2, "session:read", hint="sessions:read")


def test_a_port_in_use_is_reported(agentctl: Agentctl, project: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        config = str(project / "agentctl.toml")
        check(agentctl("serve", "--port", port, "--config", config), 1, port, hint="--port")


def test_a_server_without_a_response_is_reported(agentctl: Agentctl) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        check(agentctl("teams", "list", "--url", url), 7, url)


@every_row("url", ["nonsense", "ftp://host", "http://", "http://host:port"])
def test_an_invalid_url_is_rejected(agentctl: Agentctl, url: str) -> None:
    check(agentctl("teams", "list", "--url", url), 2)


def test_missing_broken_and_expired_tokens_are_rejected(agentctl: Agentctl, demo: Demo) -> None:
    expired = agentctl(
        "token", "mint", "--sub", "me", "--expires-in", "1s", "--config", str(demo.config)
    ).stdout.strip()
    command = ("teams", "list", "--url", demo.url)
    check(agentctl(*command), 4, hint="agentctl token mint")
    head, _, signature = demo.token.rpartition(".")
    broken = {"AGENTCTL_TOKEN": f"{head}.{'A' if signature[0] != 'A' else 'B'}{signature[1:]}"}
    check(agentctl(*command, env=broken), 4, hint="agentctl token")
    while agentctl("token", "verify", "-", "--config", str(demo.config), input=expired).code == 0:
        pass
    check(
        agentctl(*command, env={"AGENTCTL_TOKEN": expired}),
        4,
        "the token expired ",
        hint="agentctl token",
    )
    assert expired not in agentctl(*command, env={"AGENTCTL_TOKEN": expired}).stderr


def test_rejected_token_names_what_it_shows_itself(agentctl: Agentctl, demo: Demo) -> None:
    command = ("teams", "list", "--url", demo.url)
    agentctl("init", "other")
    mint = ("token", "mint", "--sub", "me", "--config", "other/agentctl.toml")
    causes = {
        "hunter2": "the token does not have three segments",
        agentctl(*mint).stdout.strip(): "the server does not know its key, or expects another",
        "agentctl_pat_cut": "the service account token is cut off or mistyped",
    }
    for token, cause in causes.items():
        check(agentctl(*command, env={"AGENTCTL_TOKEN": token}), 4, f"cause: {cause}")
    bearer = {"AGENTCTL_TOKEN": f"Bearer {demo.token}"}
    check(agentctl(*command, env=bearer), 2, hint="leave out the word Bearer")
    inspected = agentctl("token", "inspect", "-", input="hunter2")
    check(inspected, 4, "three segments", hint="copy the whole token")


def test_empty_token_file_has_a_remedy(agentctl: Agentctl, demo: Demo, tmp_path: Path) -> None:
    file = tmp_path / "empty.token"
    file.touch()
    ended = agentctl("agents", "list", "--url", demo.url, "--token-file", str(file))
    check(ended, 2, "cause: it is empty", hint="write a token there: agentctl token mint")


def test_denial_of_an_explanation_does_not_name_it_again(agentctl: Agentctl, demo: Demo) -> None:
    mint = ("token", "mint", "--sub", "me", "--scope", "user", "--config", str(demo.config))
    token = {"AGENTCTL_TOKEN": agentctl(*mint).stdout.strip()}
    explain = ("auth", "explain", "GET", "/agents", "--url", demo.url)
    check(agentctl(*explain, env=token), 4, hint="on the machine of the server, without --url")


def test_a_missing_scope_is_named(agentctl: Agentctl, demo: Demo) -> None:
    token = agentctl("token", "mint", "--sub", "me", "--config", str(demo.config)).stdout.strip()
    finished = agentctl("teams", "list", "--url", demo.url, env={"AGENTCTL_TOKEN": token})
    check(finished, 4, hint="teams:read")


def test_output_without_space_is_reported(environment: dict[str, str]) -> None:
    with open_full_disk() as full:
        code, _, said = run_with_streams("--version", environment, stdout=full)
    assert code == 1
    assert said.startswith("error: reading or writing failed\n")
    assert "no space left" in said
    assert len(said.splitlines()) == 2


@every_row("command", ["version", "--help", "context list"])
def test_every_command_reports_output_without_space(
    environment: dict[str, str], home: Path, command: str
) -> None:
    with (
        Path("/dev/full").open("w") as full,
        io.TextIOWrapper(io.BytesIO()) as err,
        io.StringIO() as stdin,
    ):
        streams = IO(stdin, full, err)
        code = run_main(command.split(), streams, environment=environment, folder=home)
        said = err.buffer.getvalue().decode()
    assert code == 1
    assert said.startswith("error: reading or writing failed\n  cause: no space left")


def test_closed_output_is_reported(environment: dict[str, str]) -> None:
    ended = run_in_shell("--version >&-", environment)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: reading or writing failed\n")
    assert "bad file descriptor" in ended.stderr
    assert len(ended.stderr.splitlines()) == 2


def test_error_that_cannot_be_written_keeps_the_exit_code(environment: dict[str, str]) -> None:
    with open_full_disk() as full:
        code, text, _ = run_with_streams("context use missing", environment, stderr=full)
    assert (code, text) == (2, "")


def test_notes_that_nobody_reads_do_not_end_a_command(
    environment: dict[str, str], project: Path
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    start = f"runs start --agent writer --message hello --config {project / 'agentctl.toml'}"
    code, text, _ = run_with_streams(start, environment, stderr=writing)
    os.close(writing)
    assert (code, text) == (0, "hello\n")


def open_full_disk() -> BinaryIO:
    """Open a file that takes no byte."""
    return Path("/dev/full").open("wb")


def run_with_streams(
    words: str,
    environment: dict[str, str],
    *,
    stdout: BinaryIO | int = subprocess.PIPE,
    stderr: BinaryIO | int = subprocess.PIPE,
) -> tuple[int, str, str]:
    """Run `agentctl WORDS` as a process; return its exit code, and the output that it could write.

    The streams are pipes, or files of the test.
    """
    with start_agentctl(*words.split(), env=environment, stdout=stdout, stderr=stderr) as process:
        text, said = process.communicate(timeout=PATIENCE)
    return process.returncode, (text or b"").decode(), (said or b"").decode()


def test_closed_stderr_and_stdin_do_not_stop_a_command(environment: dict[str, str]) -> None:
    ended = run_in_shell("context list 2>&- <&-", environment)
    assert (ended.returncode, ended.stdout) == (0, "name\tcurrent\turl\ttoken_file\tsign_in\n")


def test_words_outside_the_locale_are_explained(environment: dict[str, str], project: Path) -> None:
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0"}
    start = "runs start --agent writer --message grüße --config agentctl.toml"
    ended = run_in_shell(start, environment | ascii_locale, project)
    assert ended.returncode == 2
    assert "hint: a word of the command is not ASCII text: use a UTF-8 locale" in ended.stderr


def test_file_that_cannot_be_written_is_named(environment: dict[str, str], home: Path) -> None:
    (home / ".bash_completions").write_text("a file in the place of the folder")
    ended = run_in_shell("--install-completion", environment)
    assert ended.returncode == 1
    assert f"cause: {home / '.bash_completions'}: file exists" in ended.stderr


def run_in_shell(
    command: str, environment: dict[str, str], folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `agentctl COMMAND` in a shell, which redirects the streams of the process."""
    # Without a second command, the shell would become the program: it would have no parent shell,
    # whose completion it installs.
    shell = ["/bin/bash", "-c", f"{shlex.join(AGENTCTL)} {command}; exit $?"]
    return subprocess.run(
        shell, env=environment, cwd=folder, capture_output=True, check=False, encoding="utf-8"
    )


def test_unknown_command_without_a_near_name_is_explained(agentctl: Agentctl) -> None:
    hint = "`agentctl keys --help` lists its commands"
    check(agentctl("keys", "publish"), 2, "no such command 'publish'", hint=hint)


@every_row("option", ["--url", "--context", "--config", "-o", "-v"])
def test_option_before_its_command_is_explained(agentctl: Agentctl, option: str) -> None:
    finished = agentctl(option, "x", "sessions", "list")
    check(finished, 2, "no such option", hint="give the options of a command after it")


def test_denial_of_an_operation_for_operators_is_explained(agentctl: Agentctl, demo: Demo) -> None:
    mint = ("token", "mint", "--sub", "me", "--scope", "user", "--config", str(demo.config))
    token = {"AGENTCTL_TOKEN": agentctl(*mint).stdout.strip()}
    finished = agentctl("auth", "explain", "GET", "/sessions", "--url", demo.url, env=token)
    check(finished, 4, "insufficient scopes", hint="use a token with the admin scope")


def test_hint_of_a_wrong_id_adds_no_denial(agentctl: Agentctl, demo: Demo) -> None:
    def mint(scope: str) -> dict[str, str]:
        mint = ("token", "mint", "--sub", "near", "--scope", scope, "--config", str(demo.config))
        return {"AGENTCTL_TOKEN": agentctl(*mint, "--yes").stdout.strip()}

    def count_denials() -> int:
        options = ("--principal", "near", "--outcome", "denied", "-o", "name")
        env = {"AGENTCTL_TOKEN": demo.token}
        return len(agentctl("audit", "list", *options, "--url", demo.url, env=env).lines)

    start = ("runs", "start", "--agent", "ekco", "-m", "x", "--url", demo.url)
    finished = agentctl(*start, env=mint("agents:run"))
    check(finished, 5, "agent not found: ekco", hint="list them with: agentctl agents list")
    assert "did you mean" not in finished.stderr
    assert count_denials() == 0
    check(agentctl(*start, env=mint("user")), 5, "agent not found: ekco", hint="did you mean echo?")
    # An agent that the caller may not read is as unknown as one that does not exist.
    hidden = agentctl(*start, env=mint("agents:slow:read"))
    check(hidden, 4, "insufficient scopes")
    assert "echo" not in hidden.stderr


def test_session_id_of_another_user_is_taken(agentctl: Agentctl, demo: Demo) -> None:
    demo.run("taken", "x")
    mint = ("token", "mint", "--sub", "you", "--scope", "user", "--config", str(demo.config))
    token = {"AGENTCTL_TOKEN": agentctl(*mint).stdout.strip()}
    start = ("runs", "start", "--agent", "echo", "-m", "x", "--session", "taken")
    finished = agentctl(*start, "--url", demo.url, env=token)
    check(finished, 5, "session not found", hint="the id is taken: choose another one with --ses")


def test_start_in_the_background_prints_one_line_of_ids(agentctl: Agentctl, demo: Demo) -> None:
    start = ("runs", "start", "--agent", "echo", "-m", "x", "--background", "--session", "line")
    token = {"AGENTCTL_TOKEN": demo.token}
    started = agentctl(*start, "-o", "tsv", "--url", demo.url, env=token)
    names, values = (line.split("\t") for line in started.lines)
    assert (names, values[1]) == (["run_id", "session_id", "status"], "line")
