"""Service accounts: tokens, look-ups and grants (security cases K01 to K05, F10)."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctl.auth import principal as scope_names
from agentctl.auth.explain.checks import ACCOUNT_CHECKS
from agentctl.auth.policy import POLICY, NeedsScope
from agentctl.auth.principal import Principal, is_action_allowed, is_covered, local_principal
from agentctl.auth.tokens import account_tokens
from agentctl.auth.tokens.account_tokens import (
    MAXIMUM_CACHED,
    MAXIMUM_CACHED_UNKNOWN,
    UNKNOWN_LOOKUPS_PER_SECOND,
    AccountTokens,
    StoredAccount,
    check_account_token,
    generate_account_token,
    has_valid_checksum,
    hash_token,
    is_account_token,
)
from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Authorization, Settings
from agentctl.errors import (
    BadRequest,
    Forbidden,
    InvalidToken,
    Unauthenticated,
    Unavailable,
    ValidationFailed,
)
from agentctl.records.authorization import KNOWN_SCOPES
from tests.auth.verifiers import OLD, Clock, bearer

ADMIN = "agent_os:admin"
DIGITS = account_tokens._DIGITS


# The form of tokens


def test_token_has_prefix_secret_and_checksum() -> None:
    token = generate_account_token("acme_pat_")
    assert re.fullmatch(r"acme_pat_[0-9A-Za-z]{49}", token)
    assert has_valid_checksum(token)
    check_account_token(token)
    crc = 0
    for digit in token[-6:]:
        crc = crc * 62 + DIGITS.index(digit)
    assert crc == zlib.crc32(token[:-6].encode())


@pytest.mark.parametrize("secret", [b"\x00" * 32, b"\xff" * 32, b"\x00" * 31 + b"\x01"])
def test_all_secrets_have_the_same_length(monkeypatch: pytest.MonkeyPatch, secret: bytes) -> None:
    monkeypatch.setattr(
        "agentctl.auth.tokens.account_tokens.os.urandom", lambda size: secret[:size]
    )
    token = generate_account_token()
    assert len(token) == len("agentctl_pat_") + 43 + 6
    number = 0
    for digit in token[13:56]:
        number = number * 62 + DIGITS.index(digit)
    assert number == int.from_bytes(secret, "big")


def test_generated_tokens_are_different() -> None:
    assert len({generate_account_token("a_pat_") for _ in range(1_000)}) == 1_000


@given(place=st.integers(0, 61), letter=st.sampled_from(DIGITS))
def test_checksum_detects_one_wrong_character(place: int, letter: str) -> None:
    """CRC32 finds every burst that is shorter than itself."""
    token = generate_account_token()
    wrong = token[:place] + letter + token[place + 1 :]
    assert has_valid_checksum(wrong) == (wrong == token)


@given(st.text(max_size=80))
def test_any_text_is_checked_without_an_exception(text: str) -> None:
    assert not has_valid_checksum(text)
    assert not has_valid_checksum(f"agentctl_pat_{text}")


@pytest.mark.parametrize(
    "change",
    [
        lambda token: token[:-1],
        lambda token: token + "0",
        lambda token: token + "\n",
        lambda token: token.upper(),
        lambda token: token.replace("_pat_", "_pa_"),
        lambda token: "x" + token,
        lambda token: token[13:],
        lambda token: "agentctl_pat_",
        lambda token: "",
    ],
)
def test_malformed_tokens_are_rejected(change: Callable[[str], str]) -> None:
    with pytest.raises(InvalidToken) as refusal:
        check_account_token(change(generate_account_token()))
    assert refusal.value.check == "account.form"


def test_prefix_decides_the_kind_of_a_credential() -> None:
    assert is_account_token(generate_account_token("acme_pat_"))
    assert is_account_token("acme_pat_")
    for other in ("", "acme_pa_x", "Acme_pat_x", "eyJhbGciOiJSUzI1NiJ9.e30.", "1a_pat_x", "_pat_x"):
        assert not is_account_token(other)


def test_token_is_stored_as_its_sha256() -> None:
    token = generate_account_token()
    assert re.fullmatch(r"[0-9a-f]{64}", hash_token(token))
    assert hash_token(token) == hash_token(token) != hash_token(generate_account_token())


# Look-ups


class MemoryStore:
    """A store of accounts in memory that counts its queries."""

    def __init__(self) -> None:
        self.accounts = dict[str, StoredAccount]()
        self.asked = list[str]()
        self.noted = list[str]()
        self.failure: Exception | None = None
        self.meanwhile: Callable[[], object] = lambda: None

    def add(self, **given: Any) -> str:
        token = generate_account_token()
        values: dict[str, Any] = {
            "id": f"a{len(self.accounts)}",
            "token_hash": hash_token(token),
            "scopes": frozenset({"agents:read"}),
            "expires_at": None,
            "last_used_at": None,
            "revoked_at": None,
        }
        self.accounts[hash_token(token)] = StoredAccount(**values | given)
        return token

    def change(self, token: str, **given: Any) -> None:
        key = hash_token(token)
        self.accounts[key] = replace(self.accounts[key], **given)

    async def find(self, token_hash: str) -> StoredAccount | None:
        self.asked.append(token_hash)
        found = self.accounts.get(token_hash)
        self.meanwhile()
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return found

    def record_use(self, account: StoredAccount) -> None:
        self.noted.append(account.id)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stored() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def tokens(stored: MemoryStore, clock: Clock) -> AccountTokens:
    return AccountTokens(
        stored, admin_scope=ADMIN, clock=lambda: clock.wall, monotonic=lambda: clock.steady
    )


def ask(tokens: AccountTokens, token: str) -> Principal:
    return asyncio.run(tokens.identify(token))


def failed_check(tokens: AccountTokens, token: str) -> str:
    """Return the check that a token fails; no message contains the token."""
    with pytest.raises(InvalidToken) as refusal:
        ask(tokens, token)
    assert token[13:] not in f"{refusal.value.reason}{refusal.value.detail}{refusal.value!r}"
    assert refusal.value.check in {check.name for check in ACCOUNT_CHECKS}
    return refusal.value.check


def test_account_becomes_a_principal(tokens: AccountTokens, stored: MemoryStore) -> None:
    token = stored.add(id="x")
    expected = Principal(subject="sa:x", scopes=frozenset({"agents:read"}))
    assert ask(tokens, token) == expected
    assert (expected.admin, expected.sees_all_users, expected.session_id) == (False, False, None)


def test_admin_account_sees_only_its_data(tokens: AccountTokens, stored: MemoryStore) -> None:
    principal = ask(tokens, stored.add(scopes=frozenset({ADMIN})))
    assert (principal.admin, principal.sees_all_users) == (True, False)


def test_wrong_checksum_is_not_looked_up(tokens: AccountTokens, stored: MemoryStore) -> None:
    token = stored.add()
    assert failed_check(tokens, token[:-1] + ("a" if token[-1] != "a" else "b")) == "account.form"
    assert stored.asked == []


def test_unknown_token_is_looked_up_once_per_second(
    tokens: AccountTokens, stored: MemoryStore, clock: Clock
) -> None:
    token = generate_account_token()
    for _ in range(3):
        assert failed_check(tokens, token) == "account.known"
    assert len(stored.asked) == 1
    clock.move(1)
    assert failed_check(tokens, token) == "account.known"
    assert len(stored.asked) == 2


def test_account_with_another_hash_is_rejected(tokens: AccountTokens, stored: MemoryStore) -> None:
    """The comparison after the look-up (K02): a database may compare otherwise than we do."""
    token = stored.add()
    stored.change(token, token_hash=hash_token(token).upper())
    assert failed_check(tokens, token) == "account.known"


def test_found_account_is_cached_for_one_second(
    tokens: AccountTokens, stored: MemoryStore, clock: Clock
) -> None:
    token = stored.add()
    for _ in range(5):
        ask(tokens, token)
    assert len(stored.asked) == 1
    stored.change(token, revoked_at=1)
    clock.move(0.99)
    ask(tokens, token)
    clock.move(0.01)
    assert failed_check(tokens, token) == "account.revoked"
    assert failed_check(tokens, token) == "account.revoked"
    assert len(stored.asked) == 2


def test_revocation_is_immediate_in_the_same_process(
    tokens: AccountTokens, stored: MemoryStore
) -> None:
    token = stored.add()
    other = stored.add()
    ask(tokens, token), ask(tokens, other)
    stored.change(token, revoked_at=1)
    tokens.forget("a0")
    assert failed_check(tokens, token) == "account.revoked"
    ask(tokens, other)
    assert len(stored.asked) == 3


def test_result_older_than_a_revocation_is_not_cached(
    tokens: AccountTokens, stored: MemoryStore
) -> None:
    token = stored.add()

    def revoke() -> None:
        stored.change(token, revoked_at=1)
        tokens.forget("a0")
        stored.meanwhile = lambda: None

    stored.meanwhile = revoke
    ask(tokens, token)
    assert failed_check(tokens, token) == "account.revoked"


def test_cached_account_expires_by_the_wall_clock(
    tokens: AccountTokens, stored: MemoryStore, clock: Clock
) -> None:
    token = stored.add(expires_at=int((clock.wall + 0.5) * 1_000_000))
    ask(tokens, token)
    clock.move(0.49)
    ask(tokens, token)
    clock.move(0.01)
    assert failed_check(tokens, token) == "account.expired"
    assert len(stored.asked) == 1


def test_only_accepted_tokens_count_as_use(
    tokens: AccountTokens, stored: MemoryStore, clock: Clock
) -> None:
    good = stored.add()
    gone = stored.add(revoked_at=1)
    old = stored.add(expires_at=1)
    ask(tokens, good), ask(tokens, good)
    assert (failed_check(tokens, gone), failed_check(tokens, old)) == (
        "account.revoked",
        "account.expired",
    )
    assert stored.noted == ["a0"]
    clock.move(1)
    ask(tokens, good)
    assert stored.noted == ["a0", "a0"]


def test_unavailable_database_is_not_a_rejection(
    tokens: AccountTokens, stored: MemoryStore, clock: Clock
) -> None:
    token = stored.add()
    stored.failure = Unavailable("The database is not available")
    for _ in range(UNKNOWN_LOOKUPS_PER_SECOND + 5):
        with pytest.raises(Unavailable):
            ask(tokens, token)
    stored.failure = None
    ask(tokens, token)
    stored.failure = Unavailable("The database is not available")
    ask(tokens, token)
    clock.move(1)
    with pytest.raises(Unavailable):
        ask(tokens, token)


def test_rate_limit_applies_to_unknown_tokens_only(
    tokens: AccountTokens, stored: MemoryStore, clock: Clock
) -> None:
    known = stored.add()
    ask(tokens, known)
    for _ in range(100):
        assert failed_check(tokens, generate_account_token()) == "account.known"
    assert len(stored.asked) == 1 + UNKNOWN_LOOKUPS_PER_SECOND
    fresh = stored.add()
    assert failed_check(tokens, fresh) == "account.known"
    clock.move(0.999)
    ask(tokens, known)
    clock.move(0.001)
    ask(tokens, known)
    asked = len(stored.asked)
    for _ in range(100):
        failed_check(tokens, generate_account_token())
    assert len(stored.asked) == asked + UNKNOWN_LOOKUPS_PER_SECOND
    clock.move(0.06)
    ask(tokens, fresh)
    clock.move(60)
    asked = len(stored.asked)
    for _ in range(100):
        failed_check(tokens, generate_account_token())
    assert len(stored.asked) == asked + UNKNOWN_LOOKUPS_PER_SECOND


def test_new_accounts_do_not_use_the_rate_limit(tokens: AccountTokens, stored: MemoryStore) -> None:
    for _ in range(UNKNOWN_LOOKUPS_PER_SECOND * 3):
        ask(tokens, stored.add())


def test_concurrent_unknown_tokens_are_rate_limited(
    tokens: AccountTokens, stored: MemoryStore
) -> None:
    async def all_at_once() -> list[Any]:
        wild = (tokens.identify(generate_account_token()) for _ in range(100))
        return await asyncio.gather(*wild, return_exceptions=True)

    assert {type(each) for each in asyncio.run(all_at_once())} == {InvalidToken}
    assert len(stored.asked) == UNKNOWN_LOOKUPS_PER_SECOND


def test_caches_are_bounded(tokens: AccountTokens, stored: MemoryStore, clock: Clock) -> None:
    many = [stored.add() for _ in range(MAXIMUM_CACHED + 10)]

    async def each() -> None:
        for token in many:
            await tokens.identify(token)

    asyncio.run(each())
    for _ in range(MAXIMUM_CACHED_UNKNOWN + 10):
        clock.move(0.1)
        failed_check(tokens, generate_account_token())
    assert len(tokens._accounts_by_hash) == MAXIMUM_CACHED
    assert len(tokens._unknown_until) == MAXIMUM_CACHED_UNKNOWN


# Which kind of credential it is


@pytest.fixture
def verifier(tokens: AccountTokens, clock: Clock) -> Verifier:
    settings = Settings(authorization=Authorization(verification_keys=(OLD.pem,)))
    return Verifier(settings, tokens, clock=lambda: clock.wall, monotonic=lambda: clock.steady)


def identify(verifier: Verifier, authorization: str | None) -> Principal:
    return asyncio.run(verifier.identify(authorization))


def test_jwt_and_account_token_are_distinguished(verifier: Verifier, stored: MemoryStore) -> None:
    assert identify(verifier, f"bearer {stored.add()}").subject == "sa:a0"
    assert identify(verifier, bearer({"sub": "me"})).subject == "me"
    assert verifier.identify_jwt(bearer({"sub": "me"})).subject == "me"
    with pytest.raises(Unauthenticated) as refusal:
        identify(verifier, None)
    assert not isinstance(refusal.value, InvalidToken)


def test_account_token_is_never_parsed_as_a_jwt(verifier: Verifier, stored: MemoryStore) -> None:
    jwt = bearer({"sub": "me"}).partition(" ")[2]
    with pytest.raises(InvalidToken) as refusal:
        identify(verifier, f"Bearer agentctl_pat_{jwt}")
    assert refusal.value.check == "account.form"
    assert stored.asked == []


@pytest.mark.parametrize("prefix", ["other", "agentct", "agentctll", "Agentctl"])
def test_jwt_is_never_looked_up(verifier: Verifier, stored: MemoryStore, prefix: str) -> None:
    token = generate_account_token(f"{prefix}_pat_")
    stored.accounts[hash_token(token)] = StoredAccount(
        "x", hash_token(token), frozenset({ADMIN}), None, None, None
    )
    with pytest.raises(InvalidToken) as refusal:
        identify(verifier, f"Bearer {token}")
    assert refusal.value.check == "form"
    assert stored.asked == []


def test_account_token_needs_the_database(
    verifier: Verifier, stored: MemoryStore, clock: Clock
) -> None:
    token = stored.add()
    alone = Verifier(Settings(authorization=Authorization(verification_keys=(OLD.pem,))))
    for ask_for in (verifier.identify_jwt, alone.identify_jwt, lambda it: identify(alone, it)):
        with pytest.raises(InvalidToken) as refusal:
            ask_for(f"Bearer {token}")
        assert refusal.value.check == "form"
    assert stored.asked == []


def test_authorization_off_ignores_account_tokens(stored: MemoryStore) -> None:
    tokens = AccountTokens(stored, admin_scope=ADMIN)
    off = Verifier(Settings(authorization=Authorization(enabled=False)), tokens)
    assert identify(off, f"Bearer {stored.add()}").subject is None
    assert identify(off, None).admin
    assert stored.asked == []


# Who may grant what


def test_scope_covers_itself_and_narrower_scopes() -> None:
    for scope in KNOWN_SCOPES:
        assert is_covered({scope}, scope)
        assert not is_covered(set(), scope)
        assert not is_covered(set(KNOWN_SCOPES) - {scope, "system:read", "config:read"}, scope)


@pytest.mark.parametrize(
    ("held", "scope", "expected"),
    [
        ("agents:read", "agents:writer:read", True),
        ("agents:read", "agents:*:read", True),
        ("agents:*:read", "agents:read", True),
        ("agents:*:read", "agents:writer:read", True),
        ("agents:writer:read", "agents:writer:read", True),
        ("agents:writer:read", "agents:editor:read", False),
        ("agents:writer:read", "agents:read", False),
        ("agents:writer:read", "agents:*:read", False),
        ("agents:run", "agents:read", False),
        ("agents:run", "teams:run", False),
        ("config:read", "system:read", True),
        ("system:read", "config:read", True),
        ("sessions:read", "sessions:s1:write", False),
    ],
)
def test_covered_and_uncovered_scopes(held: str, scope: str, expected: bool) -> None:
    assert is_covered({held}, scope) is expected


PARTS = st.sampled_from(["agents", "teams", "sessions", "config", "system", "service_accounts"])
ACTIONS = st.sampled_from(["read", "run", "write", "delete"])
SCOPES = st.one_of(
    st.builds("{}:{}".format, PARTS, ACTIONS),
    st.builds("{}:{}:{}".format, PARTS, st.sampled_from(["*", "a", "b"]), ACTIONS),
)


@given(held=st.frozensets(SCOPES, max_size=4), scope=SCOPES)
def test_covered_scope_grants_nothing_more(held: frozenset[str], scope: str) -> None:
    """A caller that grants a scope can do everything that the scope allows."""
    if not is_covered(held, scope):
        return
    for rule in POLICY.values():
        if not isinstance(rule, NeedsScope):
            continue
        for identifier in (None, "a", "b", "c"):
            if is_action_allowed({scope}, rule.resource, rule.action, identifier):
                assert is_action_allowed(held, rule.resource, rule.action, identifier)


def test_caller_cannot_grant_scopes_it_does_not_have() -> None:
    me = Principal(subject="me", scopes=frozenset({"agents:read", "sessions:write"}))
    scope_names.check_held_scopes(["agents:writer:read", "sessions:write"], me, ADMIN)
    with pytest.raises(Forbidden) as refusal:
        scope_names.check_held_scopes(["agents:read", "agents:run", ADMIN], me, ADMIN)
    assert refusal.value.required_scopes == ("agents:run", ADMIN)
    assert refusal.value.detail.endswith("agents:run, agent_os:admin")


def test_only_administrators_grant_the_admin_scope() -> None:
    scope_names.check_held_scopes([ADMIN, "teams:run"], local_principal("boss"), ADMIN)
    scope_names.check_held_scopes([ADMIN], Principal("sa:x", frozenset({ADMIN}), admin=True), ADMIN)
    named_so = Principal(subject="me", scopes=frozenset({"agents:read"}))
    with pytest.raises(Forbidden):
        scope_names.check_held_scopes(["agents:read"], named_so, "agents:read")


@pytest.mark.parametrize(
    ("scopes", "told"),
    [
        (["agents:read", "agents:reed"], "scopes[1].scope is not a known scope: did you mean"),
        (["xyzzy:plugh"], "scopes[0].scope is not a known scope"),
        (["agents:write"], "scopes[0].scope is not a known scope"),
        (["agents:writer:rum"], "did you mean agents:writer:run?"),
        (["service_accounts:x:read"], "scopes[0].scope is not a known scope"),
        (["agents read"], "scopes[0].scope must have the form"),
        ([""], "scopes[0].scope must have the form"),
        (["agents::read"], "scopes[0].scope must have the form"),
        (["agents:re\x00d"], "scopes[0].scope must have the form"),
        (["agent_os:admim"], "did you mean agent_os:admin?"),
    ],
)
def test_unknown_scopes_are_rejected(scopes: list[str], told: str) -> None:
    with pytest.raises(ValidationFailed) as refusal:
        scope_names.check_known_scopes(scopes, ADMIN)
    assert told in refusal.value.detail


def test_known_scopes_are_accepted() -> None:
    scope_names.check_known_scopes(
        [*KNOWN_SCOPES, ADMIN, "agents:*:run", "sessions:s1:read"], ADMIN
    )
    scope_names.check_known_scopes(["odd.one:boss"], "odd.one:boss")


PRIVILEGED = (
    ADMIN, "sessions:write", "sessions:s1:write", "sessions:*:delete", "sessions:delete",
    "memories:write", "memories:delete", "approvals:write", "approvals:*:write",
    "runs:debug", "webhooks:write", "halts:write",
    "service_accounts:read", "service_accounts:write", "service_accounts:delete",
)  # fmt: skip


def test_privileged_scopes_need_the_flag() -> None:
    plain = [scope for scope in KNOWN_SCOPES if scope not in PRIVILEGED]
    assert {scope.rpartition(":")[2] for scope in plain} <= {"read", "run"}
    scope_names.check_privileged_scopes(plain, ADMIN, allowed=False)
    for scope in PRIVILEGED:
        scope_names.check_privileged_scopes([scope], ADMIN, allowed=True)
        with pytest.raises(BadRequest) as refusal:
            scope_names.check_privileged_scopes([*plain, scope], ADMIN, allowed=False)
        assert refusal.value.detail == f"Privileged scopes need allow_privileged_scopes: {scope}"


def test_rejected_scope_is_not_repeated() -> None:
    with pytest.raises(ValidationFailed) as refusal:
        scope_names.check_known_scopes(["sk-secret value"], ADMIN)
    assert "secret" not in refusal.value.detail
