"""Minting, inspecting and verifying tokens."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agentctl.auth.keys import files, signing
from agentctl.auth.tokens.algorithms import ALGORITHMS
from agentctl.auth.tokens.mint import (
    build_verification_report,
    check_mintable_scopes,
    inspect_token,
    mint_token,
)
from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Authorization, Settings, Signing
from agentctl.errors import InvalidKey, InvalidToken, UsageError
from tests.auth.verifiers import JWT_CHECK_NAMES
from tests.kit.forged_tokens import NOW, fixed, hs, rsa_pair, token

HOUR = timedelta(hours=1)


def settings(tmp_path: Path, algorithm: Any = "EdDSA", **given: Any) -> Settings:
    """Settings whose server trusts their signing key."""
    path = tmp_path / f"{algorithm}.key"
    private = _build_key(algorithm)
    files.write_private_key(path, private)
    trusted = path
    if not algorithm.startswith("HS"):
        trusted = tmp_path / f"{algorithm}.pub"
        trusted.write_bytes(signing.build_public_pem(private, algorithm))
    authorization = Authorization(algorithm=algorithm, verification_key_files=(trusted,), **given)
    return Settings(authorization=authorization, signing=Signing(path))


def _build_key(algorithm: str) -> bytes:
    # A new RSA key takes a tenth of a second.
    if algorithm.startswith(("RS", "PS")):
        return rsa_pair().private_pem.encode()
    return signing.generate_key(algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_minted_token_is_accepted(tmp_path: Path, algorithm: str) -> None:
    given = settings(tmp_path, algorithm)
    text = mint_token(given, "me", ["agents:run", "sessions:read"], HOUR, session_id="s1")
    principal = Verifier(given).identify_jwt(f"Bearer {text}")
    assert (principal.subject, principal.session_id) == ("me", "s1")
    assert principal.scopes == {"agents:run", "sessions:read"}


def test_minted_token_has_the_claims(tmp_path: Path) -> None:
    given = settings(tmp_path)
    before = int(time.time())
    first, second = (inspect_token(mint_token(given, "me", ["teams:read"], HOUR)) for _ in range(2))
    private = files.read_private_key(given.signing.key_file)
    assert first["header"] == {
        "alg": "EdDSA",
        "kid": signing.signing_key_thumbprint(private, "EdDSA"),
        "typ": "JWT",
    }
    claims = first["claims"]
    assert claims.keys() == {"sub", "scopes", "iat", "exp", "jti"}
    assert before <= claims["iat"] <= time.time()
    assert claims["exp"] - claims["iat"] == 3600
    assert claims["jti"] != second["claims"]["jti"]
    assert first["verified"] is False


def test_key_id_audience_and_issuer_follow_the_settings(tmp_path: Path) -> None:
    given = settings(tmp_path, verify_audience=True, issuer="https://issuer.example")
    given = replace(given, signing=replace(given.signing, key_id="mine"))
    shown = inspect_token(mint_token(given))
    assert shown["header"]["kid"] == "mine"
    assert shown["claims"]["aud"] == "agentctl"
    assert shown["claims"]["iss"] == "https://issuer.example"
    assert "sub" not in shown["claims"]
    with pytest.raises(UsageError):
        mint_token(given, audience="elsewhere")
    assert (
        inspect_token(mint_token(settings(tmp_path, "ES256"), audience="x"))["claims"]["aud"] == "x"
    )


@pytest.mark.parametrize(
    "subject", ["", " me", "sa:x", "__system", "m\ne", "\udcff", "x" * 256, "SA:x"]
)
def test_unacceptable_subject_is_not_minted(tmp_path: Path, subject: str) -> None:
    with pytest.raises(UsageError) as refusal:
        mint_token(settings(tmp_path), subject)
    assert refusal.value.exit_code == 2
    assert "sub" in str(refusal.value.cause)


@pytest.mark.parametrize("expires_in", [timedelta(0), timedelta(seconds=-5), timedelta(days=3_651)])
def test_lifetime_must_be_within_its_bounds(tmp_path: Path, expires_in: timedelta) -> None:
    with pytest.raises(UsageError):
        mint_token(settings(tmp_path), "me", (), expires_in)


def test_token_above_the_limit_is_not_minted(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="bytes long"):
        mint_token(settings(tmp_path), "me", [f"agents:{'a' * 60}{n}:run" for n in range(120)])


def test_readable_key_file_does_not_sign(tmp_path: Path) -> None:
    given = settings(tmp_path)
    given.signing.key_file.chmod(0o640)
    with pytest.raises(InvalidKey) as refusal:
        mint_token(given, "me")
    assert str(refusal.value.hint).startswith("chmod 600 ")


def test_key_of_another_type_does_not_sign(tmp_path: Path) -> None:
    given = settings(tmp_path)
    with pytest.raises(InvalidKey):
        mint_token(
            replace(given, authorization=replace(given.authorization, algorithm="RS256")), "me"
        )


@pytest.mark.parametrize(
    ("scope", "near"),
    [
        ("agent:run", "agents:run"),
        ("agents:echo:runs", "agents:echo:run"),
        ("agents:write", "agents:read"),
        ("agent_os:admn", "agent_os:admin"),
        ("\x1b[2J", None),
    ],
)
def test_unknown_scope_is_rejected_with_a_suggestion(scope: str, near: str | None) -> None:
    with pytest.raises(UsageError) as refusal:
        check_mintable_scopes(["agents:run", scope], "agent_os:admin")
    assert "\x1b" not in refusal.value.detail
    assert (near or "agent_os:admin") in str(refusal.value.hint)


def test_known_scopes_are_minted() -> None:
    scopes = ["agents:run", "sessions:read", "teams:t1:read", "workflows:*:run", "sessions:s1:read"]
    check_mintable_scopes([*scopes, "agent_os:admin"], "agent_os:admin")
    check_mintable_scopes(["superuser"], "superuser")


def test_inspect_reads_unverified_tokens() -> None:
    shown = inspect_token(token({"alg": "none"}, {"sub": "me", "exp": NOW, "iat": "x"}, fixed(b"")))
    assert shown["header"] == {"alg": "none"}
    assert shown["times"] == {"exp": "2027-01-15T08:00:00.000000Z"}
    assert shown["expired"] is (time.time() >= NOW)
    assert shown["verified"] is False


@pytest.mark.parametrize("exp", [1e308, -1e308, True, "1", 10**30, None, [1]])
def test_inspect_accepts_odd_times(exp: Any) -> None:
    shown = inspect_token(token({}, {"exp": exp}, fixed(b"x")))
    assert (shown["times"], shown["expired"]) == ({}, None)


@pytest.mark.parametrize("text", ["", "x", "a.b.c", "e30.e30", "e30.W10.", "e30.e30.=", "\0.\0.\0"])
def test_inspect_reports_a_malformed_token(text: str) -> None:
    with pytest.raises(InvalidToken) as refusal:
        inspect_token(text)
    assert refusal.value.cause


def test_report_has_the_valid_claims(tmp_path: Path) -> None:
    given = settings(tmp_path, "HS256")
    secret = files.read_private_key(given.signing.key_file).strip()
    claims = {"sub": "me", "scopes": ["agent_os:admin", "x y"], "exp": int(time.time()) + 60}
    report = build_verification_report(token({"alg": "HS256"}, claims, hs(secret)), given)
    assert report == {
        "verified": True,
        "header": {"alg": "HS256"},
        "claims": claims,
        "subject": "me",
        "scopes": ["agent_os:admin"],
        "admin": True,
        "remote_keys": None,
    }


@pytest.mark.parametrize(
    ("claims", "secret", "reason"),
    [
        ({"exp": 1}, None, "the token has expired"),
        ({}, b"x" * 32, "the signature is not valid"),
        ({"sub": "sa:x"}, None, "the token's sub is a reserved subject"),
    ],
)
def test_report_has_cause_and_remedy(
    tmp_path: Path, claims: dict[str, Any], secret: bytes | None, reason: str
) -> None:
    given = settings(tmp_path, "HS256")
    own = files.read_private_key(given.signing.key_file).strip()
    report = build_verification_report(token({"alg": "HS256"}, claims, hs(secret or own)), given)
    assert (report["verified"], report["reason"]) == (False, reason)
    assert report["check"] in JWT_CHECK_NAMES
    assert report["cause"]
    assert report["remedy"]


def test_minting_does_not_import_pyjwt(tmp_path: Path) -> None:
    given = settings(tmp_path)
    script = (
        "import sys; from pathlib import Path; from agentctl.auth.tokens.mint import mint_token;"
        "from agentctl.config.settings import *;"
        "light = {'jwt', 'cryptography'} & sys.modules.keys();"
        f"s = Settings(authorization=Authorization(algorithm='EdDSA'),"
        f"signing=Signing(Path({str(given.signing.key_file)!r})));"
        "mint_token(s, 'me'); print(light, 'jwt' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["set()", "False"]
