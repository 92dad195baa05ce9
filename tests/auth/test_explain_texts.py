"""Texts of explanations for clocks, races and an unavailable database."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentctl.auth.explain.checks import diagnose
from agentctl.auth.explain.credential import (
    collect_facts,
    describe_difference,
    join_some,
    quote_value,
    suggest_path,
)
from agentctl.auth.explain.explain import Explanation, explain_request
from agentctl.auth.principal import Principal
from agentctl.auth.tokens.account_tokens import AccountTokens, StoredAccount, generate_account_token
from agentctl.auth.tokens.jws import KeySet
from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Authorization, Settings
from agentctl.errors import Unavailable
from agentctl.interface.operations import ROUTES
from agentctl.records.routes import RouteTable
from tests.auth.verifiers import OLD, jwks
from tests.kit.forged_tokens import NOW, hs, rs, rsa_pair, token

SECRET = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEF"
SETTINGS = Settings(
    authorization=Authorization(algorithm="HS256", verification_keys=(SECRET.decode(),))
)


def explain(
    given: str | None, path: str = "/auth/me", settings: Settings = SETTINGS, **more: Any
) -> Explanation:
    verifier = Verifier(settings, clock=lambda: NOW, **more)
    return asyncio.run(explain_request(verifier, settings, "GET", path, given, now=NOW))


def signed(**claims: Any) -> str:
    return token({"alg": "HS256"}, claims, hs(SECRET))


def deciding_check(found: Explanation) -> tuple[int, str, str]:
    step = next(step for step in found.steps if step.name == found.decided_by)
    return found.status, step.name, f"{step.found} | {step.cause}"


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"exp": NOW - 240}, "expired 4 min ago"),
        ({"exp": NOW}, "expired 0 s ago"),
        ({"exp": NOW - 5.5}, "expired 6 s ago"),
        ({"nbf": NOW + 7_200}, "not valid for another 2 h"),
        ({"nbf": NOW + 11}, "not valid for another 11 s"),
        ({"iat": NOW + 3_900}, "issued in 1 h 5 min, by the clock here"),
    ],
)
def test_failed_times_are_described_as_distances(claims: dict[str, float], said: str) -> None:
    status, _, text = deciding_check(explain(signed(**claims)))
    assert status == 401
    assert said in text


def test_valid_times_are_described_as_distances() -> None:
    found = explain(signed(exp=NOW + 720, iat=NOW - 60, nbf=NOW - 60))
    assert found.allowed
    steps = {step.name: step.found for step in found.steps}
    assert steps["claims.exp"].endswith("Z, in 12 min")
    assert steps["claims.iat"].endswith("Z, 1 min ago")
    assert explain(signed()).steps[9].found == "none: the token never expires"


def test_empty_token_fails_the_transport_check() -> None:
    assert deciding_check(explain("")) == (
        401,
        "transport",
        "not Bearer and one token | no token follows the word Bearer",
    )


def test_operation_without_scope_needs_any_token() -> None:
    steps = explain(None).steps
    assert (steps[-1].name, steps[-1].outcome, steps[-1].found) == (
        "policy",
        "skipped",
        "needs any valid token",
    )


class UnavailableStore:
    """A store of accounts whose database is not available."""

    async def find(self, token_hash: str) -> StoredAccount | None:
        raise Unavailable("The database is not available")

    def record_use(self, account: StoredAccount) -> None:
        raise AssertionError


def test_unavailable_database_explains_a_503() -> None:
    accounts = AccountTokens(UnavailableStore(), admin_scope="agent_os:admin")
    found = explain(generate_account_token(), accounts=accounts)
    assert deciding_check(found) == (503, "account.known", " | The database is not available")
    assert explain("anything", "/health", accounts=accounts).allowed
    nowhere = explain(generate_account_token(), "/nothing", accounts=accounts)
    assert (nowhere.status, nowhere.match) == (503, None)


def test_rejected_key_files_are_mentioned(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(jwks(("old", OLD)))
    settings = Settings(authorization=Authorization(jwks_file=(path,)))
    verifier = Verifier(settings)
    path.write_text("{")
    for _ in range(5):
        verifier.reload_keys()
    assert verifier.problem is not None

    def ask(kid: str) -> Explanation:
        given = token({"alg": "RS256", "kid": kid}, {}, rs(OLD))
        return asyncio.run(explain_request(verifier, settings, "GET", "/auth/me", given))

    steps = {step.name: step.found for step in ask("old").steps}
    assert "these are the previous keys" in steps["key"]
    failed = next(step for step in ask("new").steps if step.outcome == "failed")
    assert "fix the changed key files" in (failed.remedy or "")
    assert str(tmp_path) not in str(ask("new").record())


class ChangingVerifier(Verifier):
    """A verifier whose keys change during an explanation."""

    @property
    def keys(self) -> KeySet | None:
        keys = super().keys
        assert keys is not None
        return KeySet(keys.spec, {}, ())


def test_changed_keys_leave_the_verdict() -> None:
    """The verifier decides; only the description is missing."""
    verifier = ChangingVerifier(SETTINGS, clock=lambda: NOW)
    found = asyncio.run(explain_request(verifier, SETTINGS, "GET", "/auth/me", signed(), now=NOW))
    assert found.allowed
    assert {step.name: step.found for step in found.steps}["key"] == ""


def test_unknown_check_uses_the_reason() -> None:
    verifier = Verifier(SETTINGS)
    assert verifier.keys is not None
    facts = collect_facts("x", SETTINGS, verifier.keys, stale=False, now=NOW)
    assert diagnose("future", "it fails", facts) == ("", "it fails", "request a new token")


def test_authorization_off_skips_the_checks() -> None:
    off = replace(SETTINGS, authorization=replace(SETTINGS.authorization, enabled=False))
    found = explain("anything", "/agents", off)
    assert found.principal == Principal(subject=None, admin=True, sees_all_users=True)
    outcomes = {step.name: step.outcome for step in found.steps}
    assert (outcomes["authorization"], outcomes["signature"]) == ("passed", "skipped")


@pytest.mark.parametrize(
    ("given", "wanted", "said"),
    [
        ("a/", "a", "slash"),
        ("A", "a", "upper and lower"),
        (" a", "a", "white space"),
        ("http://a", "https://a/", "before ://"),
        ("ab", "a", "extra text"),
        ("a", "ab", "only a part"),
        ("x", "y", None),
        ("", "y", None),
        ("x", "", None),
    ],
)
def test_similar_texts_have_a_described_difference(
    given: str, wanted: str, said: str | None
) -> None:
    found = describe_difference(given, wanted)
    assert found is None if said is None else said in str(found)


def test_values_are_quoted_on_one_line() -> None:
    assert quote_value("ü") == '"ü"'
    assert quote_value("a\u202eb\ud800") == '"a\\u202eb\\ud800"'
    assert quote_value("x" * 200) == '"' + "x" * 99 + "..."
    assert join_some([str(n) for n in range(10)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


def test_keys_of_different_sizes_have_no_signature_size() -> None:
    pems = (rsa_pair(1).pem, rsa_pair(4, 3072).pem)
    settings = Settings(authorization=Authorization(verification_keys=pems))
    given = token({"alg": "RS256"}, {}, lambda data: b"x" * 300)
    status, check, said = deciding_check(explain(given, settings=settings))
    assert (status, check) == (401, "signature")
    assert "signed with another key" in said


def test_prefix_of_a_proxy_is_looked_for_in_the_first_parts() -> None:
    searched: list[str] = []

    class CountedTable(RouteTable):
        def find(self, method: str, path: str) -> Any:
            searched.append(path)
            return super().find(method, path)

    table = CountedTable(ROUTES)

    def suggest(parts: int) -> str | None:
        searched.clear()
        return suggest_path(table, "GET", "/" + "a/" * parts + "agents/echo")

    assert suggest(14) is not None
    assert suggest(15) is None
    most = len(searched)
    assert suggest(4_090) is None
    assert len(searched) == most
