"""`agentctl accounts`, locally and on a server, and `token` with the token of an account."""

from __future__ import annotations

import itertools
import json
import re
from functools import partial
from pathlib import Path

import pytest

from agentctl.auth.tokens.account_tokens import generate_account_token
from tests.cli.conftest import Agentctl, Terminal
from tests.cli.demo import Demo
from tests.kit.conditions import wait_for

_numbers = itertools.count()

TOKEN = re.compile(r"agentctl_pat_[0-9A-Za-z]{49}")


@pytest.fixture
def name() -> str:
    return f"n-{next(_numbers)}"


def id_of(agentctl: Agentctl, name: str) -> str:
    (row,) = agentctl("accounts", "list", "--name", name, "-o", "name").lines
    return row


def test_create_prints_the_token_and_nothing_else(through: Agentctl, name: str, demo: Demo) -> None:
    ended = through("accounts", "create", name, "--scope", "agents:read", "--scope", "teams:read")
    assert ended.code == 0
    assert TOKEN.fullmatch(ended.stdout.removesuffix("\n"))
    assert not TOKEN.search(ended.stderr)
    assert "  grants:  agents:read, teams:read\n" in ended.stderr
    assert re.search(r"  expires: in 90 d \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ\)\n", ended.stderr)
    where = (f"on {demo.url}", f"locally ({demo.config})")
    assert ended.stderr.splitlines()[-1] in [f"created service account {name} {at}" for at in where]


def test_a_new_token_works(agentctl: Agentctl, through: Agentctl, name: str, demo: Demo) -> None:
    token = through("accounts", "create", name, "--scope", "agents:echo:read").stdout.strip()
    there = ("--url", demo.url)
    as_account = {"AGENTCTL_TOKEN": token}
    listed = agentctl("agents", "list", "-o", "name", *there, env=as_account)
    assert (listed.code, listed.lines) == (0, ["echo"])
    assert agentctl("teams", "list", *there, env=as_account).code == 4
    assert through("accounts", "revoke", name, "--yes").code == 0
    ask = partial(agentctl, "agents", "list", *there, env=as_account)
    asked = wait_for(lambda: (done := ask()).code != 0 and done)
    assert asked.code == 4
    assert not TOKEN.search(asked.stderr + asked.stdout)


@pytest.mark.parametrize("form", ["json", "jsonl", "tsv", "table", "name"])
def test_create_prints_the_record_with_output(through: Agentctl, name: str, form: str) -> None:
    ended = through("accounts", "create", name, "--scope", "agents:read", "-o", form)
    assert ended.code == 0
    assert bool(TOKEN.search(ended.stdout)) == (form != "name")
    if form == "json":
        record = json.loads(ended.raw)
        assert record["token"].endswith(record["token_hint"])
    if form == "name":
        assert ended.lines == [id_of(through, name)]


def test_create_ignores_agentctl_output(agentctl: Agentctl, demo: Demo) -> None:
    here = ("--config", str(demo.config))
    made = ("accounts", "create", f"n-{next(_numbers)}", "--scope", "agents:read", *here)
    assert TOKEN.fullmatch(agentctl(*made, env={"AGENTCTL_OUTPUT": "json"}).stdout.strip())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--expires-in", "30d"], "expires: in 30 d ("),
        (["--expires-in", "52w"], "expires: in 364 d ("),
        (["--expires-in", "24h"], "expires: in 1 d ("),
        (["--never-expires"], "expires: never"),
    ],
)
def test_create_sets_the_expiry(
    through: Agentctl, name: str, options: list[str], told: str
) -> None:
    ended = through("accounts", "create", name, "--scope", "agents:read", *options)
    assert ended.code == 0
    assert told in ended.stderr


@pytest.mark.parametrize(
    ("options", "told"),
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
    through: Agentctl, name: str, options: list[str], told: str
) -> None:
    ended = through("accounts", "create", name, "--scope", "agents:read", *options)
    assert (ended.code, ended.stdout) == (2, "")
    assert told in ended.stderr
    assert through("accounts", "list", "--name", name, "-o", "name").lines == []


def test_privileged_scopes_need_a_flag(through: Agentctl, name: str) -> None:
    create = ("accounts", "create", name, "--scope", "sessions:write")
    refused = through(*create)
    assert (refused.code, refused.stdout) == (1, "")
    assert "sessions:write" in refused.stderr
    assert "hint: to grant them, pass --allow-privileged-scopes" in refused.stderr
    assert through(*create, "--allow-privileged-scopes").code == 0


def test_a_name_is_unique(through: Agentctl, name: str) -> None:
    create = ("accounts", "create", name, "--scope", "agents:read")
    assert through(*create).code == 0
    assert through(*create).code == 6
    assert through("accounts", "revoke", name, "--yes").code == 0
    assert through(*create).code == 0
    rows = through("accounts", "list", "--name", name, "-o", "jsonl").lines
    assert [json.loads(row)["state"] for row in rows] == ["active", "revoked"]


def test_create_needs_a_scope(agentctl: Agentctl, demo: Demo) -> None:
    ended = agentctl("accounts", "create", "x", "--config", str(demo.config))
    assert ended.code == 2
    assert "--scope" in ended.stderr


def test_create_makes_the_database(agentctl: Agentctl, home: Path) -> None:
    assert agentctl("init").code == 0
    assert agentctl("accounts", "list").code == 7
    assert agentctl("accounts", "create", "ci", "--scope", "agents:read").code == 0
    assert agentctl("accounts", "list", "-o", "name").lines == [id_of(agentctl, "ci")]


def test_list_shows_no_token(through: Agentctl, name: str) -> None:
    token = through("accounts", "create", name, "--scope", "agents:read").stdout.strip()
    heading, row = (line.split("\t") for line in through("accounts", "list", "--name", name).lines)
    record = dict(zip(heading, row, strict=True))
    assert (record["name"], record["state"], record["scopes"]) == (name, "active", "agents:read")
    assert record["token_hint"] == token[-4:]
    assert token[:-4] not in through("accounts", "list", "--limit", "100", "-o", "json").stdout
    table = through("accounts", "list", "--name", name, "-o", "table").lines
    assert table[0].split()[:3] == ["NAME", "STATE", "ID"]


def test_list_has_pages(through: Agentctl) -> None:
    for _ in range(3):
        through("accounts", "create", f"n-{next(_numbers)}", "--scope", "agents:read")
    whole = through("accounts", "list", "--limit", "3", "-o", "name").lines
    first = through("accounts", "list", "--limit", "2", "-o", "name")
    cursor = first.stderr.splitlines()[-1].rpartition("--cursor ")[2]
    rest = through("accounts", "list", "--limit", "1", "--cursor", cursor, "-o", "name").lines
    assert [*first.lines, *rest] == whole
    assert through("accounts", "list", "--limit", "1", "--page", "2", "-o", "name").lines == [
        whole[1]
    ]


def test_revoke_takes_an_id_or_a_name(through: Agentctl, name: str, demo: Demo) -> None:
    for given in ("id", "short id", "name"):
        through("accounts", "create", name, "--scope", "agents:read")
        newest = through("accounts", "list", "--name", name, "-o", "name").lines[0]
        named = {"id": newest, "short id": newest[:30], "name": name}[given]
        ended = through("accounts", "revoke", named, "--yes")
        assert (ended.code, ended.stdout) == (0, "")
        assert f"revoked service account {named}" in ended.stderr
        assert newest in ended.stderr
    again = through("accounts", "revoke", name, "--yes")
    assert again.code == 5
    assert "accounts list" in again.stderr
    assert through("accounts", "revoke", newest, "--yes").code == 5
    assert through("accounts", "revoke", "no-such-account", "--yes").code == 5


def test_revoke_needs_yes_off_a_terminal(through: Agentctl, name: str) -> None:
    through("accounts", "create", name, "--scope", "agents:read")
    refused = through("accounts", "revoke", name)
    assert refused.code == 2
    assert "--yes" in refused.stderr
    assert '"active"' in through("accounts", "list", "--name", name, "-o", "json").stdout


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


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_token_as_an_argument_is_rejected(agentctl: Agentctl, command: str) -> None:
    token = generate_account_token()
    for arguments in ([token], ["--token-file", token]):
        ended = agentctl("token", command, *arguments)
        assert ended.code == 2
        assert "do not pass a token on the command line" in ended.stderr
        assert token[13:] not in ended.stderr
