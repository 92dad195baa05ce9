"""`agentctl keys`: private key files readable only by their owner, and public ones."""

from __future__ import annotations

import base64
import json
import stat
import tomllib
from pathlib import Path

import pytest

from agentctl.auth.keys.material import parse_keys
from agentctl.auth.tokens.algorithms import get_algorithm
from agentctl.auth.tokens.jws import KeySet
from tests.cli.conftest import Agentctl
from tests.cli.projects import make_project


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("algorithm", ["RS256", "PS512", "ES384", "EdDSA"])
def test_generate_writes_a_key_pair(agentctl: Agentctl, home: Path, algorithm: str) -> None:
    ended = agentctl("keys", "generate", "--algorithm", algorithm, "--out", "new/my.pem")
    assert ended.code == 0, ended.stderr
    (key_id,) = ended.lines
    private = home / "new/my.pem"
    public = home / "new/my.pub.pem"
    assert (_mode(private), _mode(public) & 0o133) == (0o600, 0)
    assert "PRIVATE KEY" in private.read_text()
    assert parse_keys(public.read_text(), get_algorithm(algorithm), "A key")
    assert "PRIVATE" not in public.read_text() + ended.stdout + ended.stderr
    assert len(key_id) == 43


def test_generate_writes_a_shared_secret(agentctl: Agentctl, home: Path) -> None:
    ended = agentctl("keys", "generate", "--algorithm", "HS512", "--out", "shared.secret")
    assert ended.code == 0
    assert [path.name for path in home.iterdir()] == ["shared.secret"]
    secret = (home / "shared.secret").read_text().strip()
    assert _mode(home / "shared.secret") == 0o600
    assert secret not in ended.stdout + ended.stderr


def test_the_suggested_configuration_works_from_any_directory(
    agentctl: Agentctl, home: Path
) -> None:
    alone = agentctl("keys", "generate", "--algorithm", "ES256", "--out", "a.pem")
    assert "to use it, add to agentctl.toml:\n" in alone.stderr
    assert f'  key_file = "{home}/a.pem"\n' in alone.stderr
    config = make_project(home / "project")
    below = {"AGENTCTL_CONFIG": str(config)}
    out = ("keys", "generate", "--algorithm", "ES256", "--out", "project/keys/b.pem")
    told = agentctl(*out, env=below).stderr.partition(f"to use it, add to {config}:\n")[2]
    written = tomllib.loads(told)
    assert written["authorization"]["verification_key_files"] == ["keys/b.pub.pem"]
    assert written["signing"]["key_file"] == "keys/b.pem"
    config.write_text(told)
    assert agentctl("keys", "list", "-o", "name", env=below).code == 0


def test_an_ed25519_key_is_suggested_for_the_audit_log(agentctl: Agentctl, home: Path) -> None:
    config = make_project(home / "project")
    out = ("keys", "generate", "--algorithm", "EdDSA", "--out", "project/keys/audit.pem")
    notes = agentctl(*out, env={"AGENTCTL_CONFIG": str(config)}).stderr
    alternative = notes.partition("or, to sign the audit log instead of tokens:\n")[2]
    assert tomllib.loads(alternative) == {"audit": {"key_file": "keys/audit.pem"}}


def test_a_key_id_can_be_given(agentctl: Agentctl) -> None:
    ended = agentctl("keys", "generate", "--algorithm", "ES256", "--key-id", "2026-a")
    assert ended.lines == ["2026-a"]
    assert 'key_id = "2026-a"' in ended.stderr


@pytest.mark.parametrize("name", ["signing.pem", "signing.pub.pem"])
def test_generate_overwrites_nothing(agentctl: Agentctl, home: Path, name: str) -> None:
    (home / name).write_text("precious")
    ended = agentctl("keys", "generate")
    assert (ended.code, ended.stdout) == (6, "")
    assert f"{name} already exists" in ended.stderr
    assert [path.name for path in home.iterdir()] == [name]
    assert (home / name).read_text() == "precious"


def test_generate_follows_no_dangling_link(agentctl: Agentctl, home: Path) -> None:
    (home / "signing.pub.pem").symlink_to("elsewhere")
    assert agentctl("keys", "generate").code == 6
    assert not (home / "elsewhere").exists()


def test_an_unwritable_directory_is_reported(agentctl: Agentctl, home: Path) -> None:
    (home / "file").write_text("")
    ended = agentctl("keys", "generate", "--out", "file/key.pem")
    assert (ended.code, ended.stdout) == (2, "")
    assert "error: " in ended.stderr


def test_an_unknown_algorithm_is_rejected(agentctl: Agentctl, home: Path) -> None:
    ended = agentctl("keys", "generate", "--algorithm", "none")
    assert (ended.code, ended.stdout) == (2, "")
    assert list(home.iterdir()) == []


def test_list_shows_sources_and_unusable_keys(agentctl: Agentctl, home: Path) -> None:
    make_project(home, extra='jwks_file = "jwks.json"')
    jwks = json.loads(agentctl("keys", "jwks").stdout)
    (key,) = jwks["keys"]
    other = {**key, "kid": "encrypts", "use": "enc"}
    (home / "jwks.json").write_text(json.dumps({"keys": [key, other]}))
    ended = agentctl("keys", "list", "-o", "json")
    assert ended.code == 0, ended.stderr
    from_pem, from_jwks, left_out = json.loads(ended.stdout)
    assert from_pem["source"] == str(home / "keys/signing.pub.pem")
    assert from_pem["used"] is True
    assert from_pem["kid"] == from_pem["thumbprint"] == key["kid"]
    assert from_jwks["kid"] == from_jwks["thumbprint"] == key["kid"]
    assert (left_out["kid"], left_out["used"]) == ("encrypts", False)
    assert left_out["reason"]


def test_a_shared_secret_is_listed_without_a_hash(agentctl: Agentctl, home: Path) -> None:
    make_project(home, "HS256")
    ended = agentctl("keys", "list", "-o", "json")
    (row,) = json.loads(ended.stdout)
    assert (row["algorithm"], row["thumbprint"]) == ("HS256", None)


def test_list_without_keys_is_empty(agentctl: Agentctl, home: Path) -> None:
    (home / "agentctl.toml").write_text("[authorization]\nenabled = false\n")
    ended = agentctl("keys", "list", "-o", "json")
    assert (ended.code, ended.stdout) == (0, "[]\n")
    assert "authorization is disabled" in ended.stderr


def test_list_reports_an_invalid_key(agentctl: Agentctl, home: Path) -> None:
    make_project(home)
    (home / "keys/signing.pub.pem").write_text("nonsense")
    ended = agentctl("keys", "list")
    assert (ended.code, ended.stdout) == (2, "")
    assert "signing.pub.pem" in ended.stderr


def test_jwks_is_public(agentctl: Agentctl, home: Path) -> None:
    make_project(home, rest='[signing]\nkey_id = "mine"')
    ended = agentctl("keys", "jwks")
    assert ended.code == 0
    (key,) = json.loads(ended.stdout)["keys"]
    assert (key["kid"], key["use"], key["alg"], "d" in key) == ("mine", "sig", "ES256", False)
    KeySet.from_jwks({"keys": [key]})


def test_jwks_rejects_a_secret_or_a_missing_key(agentctl: Agentctl, home: Path) -> None:
    make_project(home, "HS256")
    ended = agentctl("keys", "jwks")
    assert (ended.code, ended.stdout) == (2, "")
    (home / "keys/signing.pem").unlink()
    ended = agentctl("keys", "jwks")
    assert (ended.code, ended.stdout) == (2, "")
    assert "does not exist" in ended.stderr


def test_list_shows_the_use_of_each_key(agentctl: Agentctl, home: Path) -> None:
    make_project(home, extra='jwks_file = "jwks.json"')
    (key,) = json.loads(agentctl("keys", "jwks").stdout)["keys"]
    entries = [
        key,
        {"kty": "RSA", "n": "AA", "e": "AQAB", "alg": "RS256", "use": "sig"},
        {"kty": "odd", "use": "enc"},
    ]
    (home / "jwks.json").write_text(json.dumps({"keys": entries}))
    rows = json.loads(agentctl("keys", "list", "-o", "json").stdout)
    shown = [(row["use"], row["algorithm"], row["used"], row["signs"]) for row in rows]
    assert shown == [
        (None, "ES256", True, True),
        ("sig", "ES256", True, True),
        ("sig", "RS256", False, False),
        ("enc", None, False, None),
    ]
    assert [len(row["thumbprint"] or "") for row in rows] == [43, 43, 43, 0]
    (home / "keys/signing.pem").unlink()
    rows = json.loads(agentctl("keys", "list", "-o", "json").stdout)
    assert {row["signs"] for row in rows} == {None}


def test_unnamed_keys_of_a_jwks_are_unusable(agentctl: Agentctl, home: Path) -> None:
    make_project(home, extra='jwks_file = "jwks.json"')
    (key,) = json.loads(agentctl("keys", "jwks").stdout)["keys"]
    nameless = {name: value for name, value in key.items() if name != "kid"}
    for entries, used in (([nameless], [True]), ([nameless, key], [False, True])):
        (home / "jwks.json").write_text(json.dumps({"keys": entries}))
        rows = json.loads(agentctl("keys", "list", "-o", "json").stdout)[1:]
        assert [row["used"] for row in rows] == used
        assert [bool(row["reason"]) for row in rows] == [not each for each in used]


def test_secrets_of_a_jwks_are_listed_by_key_id(agentctl: Agentctl, home: Path) -> None:
    make_project(home, "HS256")
    secret = (home / "keys/signing.pem").read_bytes().strip()
    encoded = base64.urlsafe_b64encode(secret).decode().rstrip("=")
    jwks = home / "jwks.json"
    jwks.write_text(json.dumps({"keys": [{"kty": "oct", "k": encoded, "kid": "first"}]}))
    jwks.chmod(0o600)
    config = home / "agentctl.toml"
    config.write_text('[authorization]\nalgorithm = "HS256"\njwks_file = "jwks.json"\n')
    ended = agentctl("keys", "list", "-o", "json")
    (row,) = json.loads(ended.stdout)
    assert (row["kid"], row["thumbprint"], row["signs"]) == ("first", None, None)
    assert encoded not in ended.stdout
