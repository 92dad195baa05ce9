"""`agentctl token`: only the token on stdout, no token anywhere else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Agentctl, Terminal
from tests.cli.projects import make_project
from tests.kit.command import shift_clock
from tests.kit.tables import every_row


@pytest.fixture
def project(home: Path) -> Path:
    return make_project(home)


def _mint(agentctl: Agentctl, *options: str) -> str:
    ended = agentctl("token", "mint", *options)
    assert ended.code == 0, ended.stderr
    (token,) = ended.lines
    return token


def test_only_the_token_is_on_stdout(agentctl: Agentctl, project: Path) -> None:
    ended = agentctl("token", "mint", "--sub", "me", "--scope", "sessions:read")
    (token,) = ended.lines
    assert ended.code == 0
    assert token.count(".") == 2
    assert token not in ended.stderr
    assert token.split(".")[2] not in ended.stderr
    assert "minted for me" in ended.stderr
    assert "sessions:read" in ended.stderr
    assert re.search(r"expires in 1 h \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ\)\n", ended.stderr)


def test_mint_warns_of_a_useless_or_long_lived_token(agentctl: Agentctl, project: Path) -> None:
    empty = agentctl("token", "mint")
    assert empty.code == 0
    assert "warning: the token allows nothing: grant something with --scope" in empty.stderr
    assert "warning: the token is for no user: name one with --sub" in empty.stderr
    useful = ("token", "mint", "--sub", "me", "--scope", "agents:run")
    assert "warning" not in agentctl(*useful, "--expires-in", "30d").stderr
    assert "warning: the token is valid for 31 d" in agentctl(*useful, "--expires-in", "31d").stderr


def test_mint_sets_every_requested_claim(agentctl: Agentctl, project: Path) -> None:
    token = _mint(
        agentctl,
        "--sub",
        "me",
        "--scope",
        "agents:run",
        "--scope",
        "agents:w:read",
        "--expires-in",
        "15m",
        "--audience",
        "them",
        "--issuer",
        "us",
        "--session-id",
        "s1",
    )
    seen = json.loads(agentctl("token", "inspect", "-", "-o", "json", input=token).stdout)
    claims = seen["claims"]
    assert seen["verified"] is True
    assert claims["exp"] - claims["iat"] == 899 or claims["exp"] - claims["iat"] == 900
    assert {name: claims[name] for name in ("sub", "scopes", "aud", "iss", "session_id")} == {
        "sub": "me",
        "scopes": ["agents:run", "agents:w:read"],
        "aud": "them",
        "iss": "us",
        "session_id": "s1",
    }


@every_row(
    "options, told, hint",
    [
        (("--scope", "agent:rnu"), "'agent:rnu'", "did you mean 'agents:run'?"),
        (("--scope", "everything"), "'everything'", "use user for all that a user needs"),
        (("--expires-in", "60"), "'60'", "write 15m"),
        (("--expires-in", "0s"), "'0s'", "write 15m"),
        (("--sub", "__root"), "would reject", ""),
        (("--sub", " "), "--sub has an empty value", ""),
        (("--session-id", "a b"), "would reject", ""),
        (("--sub", "x" * 256), "would reject", ""),
    ],
)
def test_mint_rejects_wrong_options(
    agentctl: Agentctl, project: Path, options: tuple[str, ...], told: str, hint: str
) -> None:
    ended = agentctl("token", "mint", *options)
    assert (ended.code, ended.stdout) == (2, "")
    assert told in ended.stderr
    assert hint in ended.stderr


def test_mint_rejects_another_issuer(agentctl: Agentctl, home: Path) -> None:
    make_project(home, extra='issuer = "us"')
    ended = agentctl("token", "mint", "--issuer", "them")
    assert (ended.code, ended.stdout) == (2, "")
    assert "authorization.issuer is 'us'" in ended.stderr
    assert agentctl("token", "mint", "--issuer", "us").code == 0


ADMIN = ("--sub", "me", "--scope", "teams:read", "--scope", "agent_os:admin")
WARNING = "warning: agent_os:admin grants everything, on the data of every user\n"


def test_the_admin_scope_needs_yes_off_a_terminal(agentctl: Agentctl, project: Path) -> None:
    alone = agentctl("token", "mint", *ADMIN)
    assert (alone.code, alone.stdout) == (2, "")
    assert alone.stderr.startswith(WARNING)
    assert "hint: pass --yes" in alone.stderr
    sure = agentctl("token", "mint", *ADMIN, "--yes")
    assert (sure.code, len(sure.lines)) == (0, 1)
    assert sure.stderr.startswith(WARNING)
    assert agentctl("token", "verify", "-", input=sure.stdout).code == 0


def test_the_admin_scope_can_be_renamed(agentctl: Agentctl, home: Path) -> None:
    make_project(home, extra='admin_scope = "ops:root"')
    assert agentctl("token", "mint", "--scope", "ops:root").code == 2
    assert agentctl("token", "mint", "--scope", "ops:root", "--yes").code == 0
    assert agentctl("token", "mint", "--scope", "agent_os:admin", "--yes").code == 2


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2), ("\n", 2)])
def test_the_admin_scope_asks_at_a_terminal(
    terminal: Terminal, project: Path, answer: str, code: int
) -> None:
    seen = terminal("token", "mint", *ADMIN, types=answer)
    assert seen.code == code
    assert "Mint this token? [y/N]" in seen.screen
    assert ("minted for me" in seen.screen) == (code == 0)


def test_an_unknown_scope_is_reported_before_the_question(
    agentctl: Agentctl, project: Path
) -> None:
    ended = agentctl("token", "mint", *ADMIN, "--scope", "team:read")
    assert (ended.code, ended.stdout) == (2, "")
    assert "did you mean 'teams:read'?" in ended.stderr
    assert "warning" not in ended.stderr


def test_every_token_has_the_required_claims(agentctl: Agentctl, project: Path) -> None:
    first, second = (
        json.loads(agentctl("token", "inspect", "-", "-o", "json", input=token).stdout)
        for token in (_mint(agentctl), _mint(agentctl))
    )
    (key,) = json.loads(agentctl("keys", "jwks").stdout)["keys"]
    assert first["header"] == {"alg": "ES256", "kid": key["kid"], "typ": "JWT"}
    assert first["claims"].keys() == {"iat", "exp", "jti", "scopes"}
    assert first["claims"]["exp"] - first["claims"]["iat"] == 3_600
    assert re.fullmatch("[0-9a-f]{32}", first["claims"]["jti"])
    assert first["claims"]["jti"] != second["claims"]["jti"]


def test_a_readable_key_signs_nothing(agentctl: Agentctl, project: Path) -> None:
    key = project.parent / "keys" / "signing.pem"
    key.chmod(0o644)
    ended = agentctl("token", "mint", "--sub", "me")
    assert (ended.code, ended.stdout) == (2, "")
    assert f"chmod 600 {key}" in ended.stderr


def test_mint_without_a_configuration_fails(agentctl: Agentctl) -> None:
    ended = agentctl("token", "mint", "--sub", "me")
    assert (ended.code, ended.stdout) == (2, "")
    assert "agentctl init" in ended.stderr


def test_the_token_comes_from_stdin_a_file_or_the_environment(
    agentctl: Agentctl, project: Path
) -> None:
    token = _mint(agentctl, "--sub", "me", "--scope", "teams:read")
    file = project.parent / "my.token"
    file.write_text(token + "\n")
    for ended in (
        agentctl("token", "verify", "-", input=token + "\n"),
        agentctl("token", "verify", "--token-file", str(file)),
        agentctl("token", "verify", env={"AGENTCTL_TOKEN": token}),
        agentctl("token", "verify", "--token-file", "-", input=token),
    ):
        assert ended.code == 0, ended.stderr
        assert "me\tteams:read\tfalse" in ended.stdout
        assert token not in ended.stdout + ended.stderr


@every_row("command", ["inspect", "verify"])
def test_a_token_as_an_argument_is_rejected(
    agentctl: Agentctl, project: Path, command: str
) -> None:
    token = _mint(agentctl, "--sub", "me")
    for arguments in ((token,), ("--token-file", token)):
        ended = agentctl("token", command, *arguments)
        assert (ended.code, ended.stdout) == (2, "")
        assert "command line" in ended.stderr
        assert "--token-file" in ended.stderr
        assert token not in ended.stderr


@every_row(
    "arguments, told",
    [
        ((), "no token given"),
        (("nonsense",), "the only argument is -, for stdin"),
        (("-", "--token-file", "f"), "- and --token-file cannot be used together"),
        (("-",), "no token can be read from stdin"),
        (("--token-file", "none-there"), "no token can be read from none-there"),
        (("--token-file", "/"), "no token can be read from /"),
    ],
)
def test_a_missing_token_is_an_error(
    agentctl: Agentctl, project: Path, arguments: tuple[str, ...], told: str
) -> None:
    ended = agentctl("token", "verify", *arguments)
    assert (ended.code, ended.stdout) == (2, "")
    assert told in ended.stderr


@every_row("token", ["nonsense", "a.b.c", "e30.e30.", "..", "e30.e30.e30"])
def test_verify_reports_the_reason(agentctl: Agentctl, project: Path, token: str) -> None:
    ended = agentctl("token", "verify", "-", input=token)
    assert (ended.code, ended.stdout) == (4, "")
    assert "  cause: " in ended.stderr
    assert "token inspect" in ended.stderr


def test_inspect_rejects_other_text(agentctl: Agentctl, project: Path) -> None:
    ended = agentctl("token", "inspect", "-", input="nonsense")
    assert (ended.code, ended.stdout) == (4, "")
    assert "three segments" in ended.stderr


def test_inspect_reports_the_verification(
    agentctl: Agentctl, project: Path, tmp_path: Path
) -> None:
    token = _mint(agentctl, "--sub", "me", "--scope", "agents:writer:run")
    good = agentctl("token", "inspect", "-", input=token)
    assert good.code == 0
    assert good.stderr == "verified\n"
    assert "\tgrants create_agent_run, cancel_agent_run" in good.stdout
    assert "expires in 1 h" in good.stdout
    stranger = make_project(tmp_path / "other")
    bad = agentctl("token", "inspect", "-", "--config", str(stranger), "-o", "json", input=token)
    assert bad.code == 0
    assert bad.stderr.startswith("NOT VERIFIED: ")
    assert json.loads(bad.stdout)["verified"] is False


def test_inspect_needs_no_configuration(agentctl: Agentctl, tmp_path: Path, project: Path) -> None:
    token = _mint(agentctl, "--sub", "me")
    ended = agentctl("token", "inspect", "-", input=token, cwd=tmp_path)
    assert ended.code == 0
    assert ended.stderr.startswith("NOT VERIFIED: no key to verify it with")
    assert "claims.sub\tme" in ended.stdout
    named = agentctl("token", "inspect", "-", "--config", "none.toml", input=token, cwd=tmp_path)
    assert (named.code, named.stdout) == (2, "")


def test_inspect_with_invalid_keys(agentctl: Agentctl, project: Path) -> None:
    token = _mint(agentctl, "--sub", "me")
    (project.parent / "keys" / "signing.pub.pem").write_text("nonsense")
    ended = agentctl("token", "inspect", "-", input=token)
    assert ended.code == 0
    assert ended.stderr.startswith("NOT VERIFIED: no key to verify it with")


def test_inspect_shows_claims_of_any_type(agentctl: Agentctl, project: Path) -> None:
    import base64

    claims = {
        "exp": 1e300,
        "iat": "x",
        "nbf": True,
        "scopes": [1, "agents:read", "\x1b[31m"],
        "e": "\x1b",
    }
    parts = [{"alg": "ES256"}, claims]
    token = ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts
    )
    ended = agentctl("token", "inspect", "-", input=f"{token}.AAAA")
    assert ended.code == 0, ended.stderr
    assert "\x1b" not in ended.stdout + ended.stderr
    assert "agents:read\tgrants get_agents" in ended.stdout
    assert "grants nothing" in ended.stdout


def test_an_expired_token_is_rejected(agentctl: Agentctl, project: Path) -> None:
    with shift_clock(-7_200):
        token = _mint(agentctl, "--sub", "me", "--expires-in", "1h")
    ended = agentctl("token", "verify", "-", input=token)
    assert ended.code == 4
    assert "cause: the token has expired" in ended.stderr
    assert "expired " in agentctl("token", "inspect", "-", input=token).stdout


def test_a_token_of_a_shared_secret_is_valid(agentctl: Agentctl, home: Path) -> None:
    make_project(home, "HS256")
    token = _mint(agentctl, "--sub", "me")
    assert agentctl("token", "verify", "-", input=token).code == 0
