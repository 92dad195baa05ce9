"""`agentctl accounts`, and `token` with the token of an account."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from agentctl.auth.tokens.account_tokens import generate_account_token
from tests.cli.conftest import Agentctl, Terminal
from tests.cli.demo import Demo
from tests.kit.tables import every_row

_numbers = itertools.count()

TOKEN = re.compile(r"agentctl_pat_[0-9A-Za-z]{49}")


@pytest.fixture
def name() -> str:
    return f"n-{next(_numbers)}"


def id_of(agentctl: Agentctl, name: str) -> str:
    (row,) = agentctl("accounts", "list", "--name", name, "-o", "name").lines
    return row


def test_create_prints_the_token_and_nothing_else(on_demo: Agentctl, name: str, demo: Demo) -> None:
    ended = on_demo("accounts", "create", name, "--scope", "agents:read", "--scope", "teams:read")
    assert ended.code == 0
    assert TOKEN.fullmatch(ended.stdout.removesuffix("\n"))
    assert not TOKEN.search(ended.stderr)
    assert "  grants:  agents:read, teams:read\n" in ended.stderr
    assert re.search(r"  expires: in 90 d \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ\)\n", ended.stderr)
    last = ended.stderr.splitlines()[-1]
    assert last == f"created service account {name} locally ({demo.config})"


@every_row("form", ["json", "jsonl", "tsv", "table", "name"])
def test_create_prints_the_record_with_output(on_demo: Agentctl, form: str) -> None:
    name = f"n-{next(_numbers)}"
    ended = on_demo("accounts", "create", name, "--scope", "agents:read", "-o", form)
    assert ended.code == 0
    assert bool(TOKEN.search(ended.stdout)) == (form != "name")
    if form == "json":
        record = json.loads(ended.raw)
        assert record["token"].endswith(record["token_hint"])
    if form == "name":
        assert ended.lines == [id_of(on_demo, name)]


def test_create_ignores_agentctl_output(agentctl: Agentctl, demo: Demo) -> None:
    here = ("--config", str(demo.config))
    made = ("accounts", "create", f"n-{next(_numbers)}", "--scope", "agents:read", *here)
    assert TOKEN.fullmatch(agentctl(*made, env={"AGENTCTL_OUTPUT": "json"}).stdout.strip())


@every_row(
    "options, told",
    [
        (["--expires-in", "30d"], "expires: in 30 d ("),
        (["--expires-in", "52w"], "expires: in 364 d ("),
        (["--expires-in", "24h"], "expires: in 1 d ("),
        (["--never-expires"], "expires: never"),
    ],
)
def test_create_sets_the_expiry(on_demo: Agentctl, options: list[str], told: str) -> None:
    name = f"n-{next(_numbers)}"
    ended = on_demo("accounts", "create", name, "--scope", "agents:read", *options)
    assert ended.code == 0
    assert told in ended.stderr


@every_row(
    "options, told",
    [
        (["--expires-in", "12h"], "'12h' is not a whole number of days"),
        (["--expires-in", "90"], "a bare number has no unit"),
        (["--expires-in", "4000d"], "expires_in_days must be a number from 1 to 3650"),
        (["--expires-in", "1d", "--never-expires"], "cannot be used together"),
        (["--scope", "agents:reed"], "did you mean 'agents:read'?"),
        (["--scope", "agents:write"], "the scopes of agents: agents:read, agents:run"),
        (["--scope", "agents reed"], "must have the form"),
    ],
)
def test_create_rejects_invalid_options(
    on_demo: Agentctl, name: str, options: list[str], told: str
) -> None:
    ended = on_demo("accounts", "create", name, "--scope", "agents:read", *options)
    assert (ended.code, ended.stdout) == (2, "")
    assert told in ended.stderr


def test_privileged_scopes_need_a_flag(on_demo: Agentctl, name: str) -> None:
    create = ("accounts", "create", name, "--scope", "sessions:write")
    refused = on_demo(*create)
    assert (refused.code, refused.stdout) == (1, "")
    assert "sessions:write" in refused.stderr
    assert "hint: to grant them, pass --allow-privileged-scopes" in refused.stderr
    assert on_demo(*create, "--allow-privileged-scopes").code == 0


def test_create_needs_a_scope(agentctl: Agentctl, demo: Demo) -> None:
    ended = agentctl("accounts", "create", "x", "--config", str(demo.config))
    assert ended.code == 2
    assert "--scope" in ended.stderr


def test_create_makes_the_database(agentctl: Agentctl, home: Path) -> None:
    assert agentctl("init").code == 0
    assert agentctl("accounts", "list").code == 7
    assert agentctl("accounts", "create", "ci", "--scope", "agents:read").code == 0
    assert agentctl("accounts", "list", "-o", "name").lines == [id_of(agentctl, "ci")]


def test_list_shows_no_token(on_demo: Agentctl, name: str) -> None:
    token = on_demo("accounts", "create", name, "--scope", "agents:read").stdout.strip()
    heading, row = (line.split("\t") for line in on_demo("accounts", "list", "--name", name).lines)
    record = dict(zip(heading, row, strict=True))
    assert (record["name"], record["state"], record["scopes"]) == (name, "active", "agents:read")
    assert record["token_hint"] == token[-4:]
    assert token[:-4] not in on_demo("accounts", "list", "--limit", "100", "-o", "json").stdout
    table = on_demo("accounts", "list", "--name", name, "-o", "table").lines
    assert table[0].split()[:3] == ["NAME", "STATE", "ID"]


def test_list_has_pages(on_demo: Agentctl) -> None:
    for _ in range(3):
        on_demo("accounts", "create", f"n-{next(_numbers)}", "--scope", "agents:read")
    whole = on_demo("accounts", "list", "--limit", "3", "-o", "name").lines
    first = on_demo("accounts", "list", "--limit", "2", "-o", "name")
    cursor = first.stderr.splitlines()[-1].rpartition("--cursor ")[2]
    rest = on_demo("accounts", "list", "--limit", "1", "--cursor", cursor, "-o", "name").lines
    assert [*first.lines, *rest] == whole
    assert on_demo("accounts", "list", "--limit", "1", "--page", "2", "-o", "name").lines == [
        whole[1]
    ]


def test_revoke_takes_an_id_or_a_name(on_demo: Agentctl, name: str) -> None:
    for given in ("id", "short id", "name"):
        on_demo("accounts", "create", name, "--scope", "agents:read")
        newest = on_demo("accounts", "list", "--name", name, "-o", "name").lines[0]
        named = {"id": newest, "short id": newest[:30], "name": name}[given]
        ended = on_demo("accounts", "revoke", named, "--yes")
        assert (ended.code, ended.stdout) == (0, "")
        assert f"revoked service account {named}" in ended.stderr
        assert newest in ended.stderr
    again = on_demo("accounts", "revoke", name, "--yes")
    assert again.code == 5
    assert "accounts list" in again.stderr
    assert on_demo("accounts", "revoke", newest, "--yes").code == 5
    assert on_demo("accounts", "revoke", "no-such-account", "--yes").code == 5


def test_revoke_needs_yes_off_a_terminal(on_demo: Agentctl, name: str) -> None:
    on_demo("accounts", "create", name, "--scope", "agents:read")
    refused = on_demo("accounts", "revoke", name)
    assert refused.code == 2
    assert "--yes" in refused.stderr
    assert '"active"' in on_demo("accounts", "list", "--name", name, "-o", "json").stdout


def test_revoke_asks_at_a_terminal(
    terminal: Terminal, agentctl: Agentctl, demo: Demo, name: str
) -> None:
    here = ("--config", str(demo.config))
    agentctl("accounts", "create", name, "--scope", "agents:read", *here)
    seen = terminal("accounts", "revoke", name, *here, types="n\n")
    assert seen.code == 2
    assert f"Revoke service account {name} (" in seen.screen
    assert terminal("accounts", "revoke", name, *here, types="y\n").code == 0
    assert agentctl("accounts", "revoke", name, "--yes", *here).code == 5


def test_inspect_shows_kind_and_checksum(agentctl: Agentctl) -> None:
    token = generate_account_token("acme_pat_")
    for text, checksum in ((token, "right"), (f"{token[:-1]}-", "wrong"), (token[:-1], "wrong")):
        ended = agentctl("token", "inspect", "-", "-o", "json", input=f"{text}\n")
        assert (ended.code, json.loads(ended.raw)) == (
            0,
            {"credential": "service account token", "checksum": checksum},
        )
    shown = agentctl("token", "inspect", "-", input=token)
    assert shown.lines == ["credential\tchecksum", "service account token\tright"]
    assert token[9:] not in shown.stdout + shown.stderr


def test_verify_names_the_command_for_account_tokens(agentctl: Agentctl) -> None:
    token = generate_account_token()
    ended = agentctl("token", "verify", "-", input=token)
    assert (ended.code, ended.stdout) == (2, "")
    assert "only its server can verify it" in ended.stderr
    assert token[13:] not in ended.stderr


@every_row("command", ["inspect", "verify"])
def test_a_token_as_an_argument_is_rejected(agentctl: Agentctl, command: str) -> None:
    token = generate_account_token()
    for arguments in ([token], ["--token-file", token]):
        ended = agentctl("token", command, *arguments)
        assert ended.code == 2
        assert "do not pass a token on the command line" in ended.stderr
        assert token[13:] not in ended.stderr
