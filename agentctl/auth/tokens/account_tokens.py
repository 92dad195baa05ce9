"""Service account tokens: `agentctl_pat_`, 256 random bits and a checksum.

Only the prefix decides the kind of a credential: a token that starts with `agentctl_pat_` is never
parsed as a JWT, and any other token is never looked up. The checksum proves nothing. It detects
tokens that are cut off, mistyped or invented without a query of the database, and lets secret
scanners find tokens in source code. docs/contract.md "Service accounts" has the format.

Principals are looked up with a cache of one second: a revocation is effective within a second in
every process, and at once in the process that calls `forget`. A token is found by its SHA-256, and
the hashes are compared in constant time. Look-ups of unknown tokens have a rate limit, so that an
attacker who invents tokens with valid checksums cannot load the database.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from agentctl.auth.principal import Principal
from agentctl.errors import InvalidToken

ACCOUNT_PREFIX = "agentctl_pat_"
"""The start of service account tokens."""

HINT_CHARACTERS = 4
"""The number of last characters that are stored as a hint; they belong to the checksum."""

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SECRET_BYTES = 32
_SECRET_WIDTH = 43
"""Base62 digits of the largest 256-bit number; every token has this number of digits."""

_CHECK_WIDTH = 6
"""Base62 digits of the largest 32-bit number."""

_BODY_PATTERN = re.compile(rf"[0-9A-Za-z]{{{_SECRET_WIDTH + _CHECK_WIDTH}}}")
_PREFIX_PATTERN = re.compile(r"[a-z][a-z0-9]{0,30}_pat_")

CACHE_SECONDS = 1.0
"""Seconds for which a result of the database is cached."""

UNKNOWN_LOOKUPS_PER_SECOND = 20
"""Rate limit of look-ups that find nothing, for each process: the burst and the rate."""

MAXIMUM_CACHED = 4_096
"""Cached accounts."""

MAXIMUM_CACHED_UNKNOWN = 256
"""Cached hashes of unknown tokens."""

_UNKNOWN = "no service account has this token"
_RATE_LIMITED = "too many unknown service account tokens: this one was not looked up"

K = TypeVar("K")
V = TypeVar("V")


def is_account_token(token: str) -> bool:
    """Return True for a service account token of any deployment."""
    return _PREFIX_PATTERN.match(token) is not None


def generate_account_token(prefix: str = ACCOUNT_PREFIX) -> str:
    """Return a new token; its checksum covers the prefix."""
    secret = int.from_bytes(os.urandom(_SECRET_BYTES), "big")
    body = prefix + _base62(secret, _SECRET_WIDTH)
    return body + _checksum(body)


def has_valid_checksum(token: str) -> bool:
    """Return True if the last six characters of a token are its checksum."""
    start = _PREFIX_PATTERN.match(token)
    if start is None or _BODY_PATTERN.fullmatch(token, start.end()) is None:
        return False
    return _checksum(token[:-_CHECK_WIDTH]) == token[-_CHECK_WIDTH:]


def check_account_token(token: str) -> None:
    """Run the check `account.form`: length, alphabet and checksum of a service account token.

    Raises:
        InvalidToken: one of them is wrong.
    """
    if not has_valid_checksum(token):
        reason = "the service account token is cut off or mistyped: its checksum is wrong"
        raise InvalidToken(reason, check="account.form")


def hash_token(token: str) -> str:
    """Return the SHA-256 of a token, by which the database stores and finds it.

    A token has 256 random bits, so it needs neither a salt nor a slow hash.
    """
    return hashlib.sha256(token.encode("ascii")).hexdigest()


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode("ascii")), _CHECK_WIDTH)


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


@dataclass(frozen=True, slots=True)
class StoredAccount:
    """The stored properties of a service account that decide about access.

    Times are microseconds since the epoch.
    """

    id: str
    token_hash: str
    scopes: frozenset[str]
    expires_at: int | None
    last_used_at: int | None
    revoked_at: int | None


class AccountStore(Protocol):
    """The store of service accounts, implemented by `agentctl.service`."""

    async def find(self, token_hash: str) -> StoredAccount | None:
        """Return the account whose token has this hash; Unavailable if the database is."""
        ...

    def record_use(self, account: StoredAccount) -> None:
        """Record in the background that the account is used now; never raises."""
        ...


@dataclass(frozen=True, slots=True)
class _CachedAccount:
    """A result of the database. `fresh_until` is on the monotonic clock."""

    account: StoredAccount
    principal: Principal
    fresh_until: float


class AccountTokens:
    """The look-up of service account tokens."""

    def __init__(
        self,
        accounts: AccountStore,
        *,
        admin_scope: str,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._accounts = accounts
        self._admin_scope = admin_scope
        self._clock = clock
        self._monotonic = monotonic
        self._found = dict[str, _CachedAccount]()
        self._unknown = dict[str, float]()
        self._unknown_limit = _RateLimit(UNKNOWN_LOOKUPS_PER_SECOND, monotonic())
        self._changes = 0

    async def identify(self, token: str) -> Principal:
        """Return the principal of a service account token.

        Raises:
            InvalidToken: no account has the token, or the account is revoked or expired.
            Unavailable: the database is not available.
        """
        token_hash = hash_token(token)
        moment = self._monotonic()
        answer = self._found.get(token_hash)
        if answer is None or moment >= answer.fresh_until:
            check_account_token(token)
            answer = await self._look_up(token_hash, moment)
        self._check_active(answer.account)
        return answer.principal

    def forget(self, account_id: str) -> None:
        """Drop the cached results of an account after a change."""
        self._changes += 1
        for token_hash, answer in list(self._found.items()):
            if answer.account.id == account_id:
                del self._found[token_hash]

    async def _look_up(self, token_hash: str, moment: float) -> _CachedAccount:
        """Query the database; the rate limit applies to tokens that were never found."""
        if self._unknown.get(token_hash, moment) > moment:
            raise InvalidToken(_UNKNOWN, check="account.known")

        rationed = token_hash not in self._found
        before = self._changes
        if rationed and not self._unknown_limit.take(moment):
            raise InvalidToken(_RATE_LIMITED, check="account.known")

        try:
            account = await self._accounts.find(token_hash)
        except BaseException:
            self._unknown_limit.give_back(rationed)
            raise

        if account is None or not hmac.compare_digest(
            account.token_hash.encode(), token_hash.encode()
        ):
            _remember(self._unknown, token_hash, moment + CACHE_SECONDS, MAXIMUM_CACHED_UNKNOWN)
            raise InvalidToken(_UNKNOWN, check="account.known")

        self._unknown_limit.give_back(rationed)
        principal = Principal(
            # Not built from the name: an account with a reused name must not inherit data.
            subject=f"sa:{account.id}",
            scopes=account.scopes,
            admin=self._admin_scope in account.scopes,
        )

        answer = _CachedAccount(account, principal, moment + CACHE_SECONDS)
        # If an account was changed meanwhile, the result may be older than the change.
        if self._changes == before:
            _remember(self._found, token_hash, answer, MAXIMUM_CACHED)

        self._check_active(account)
        self._accounts.record_use(account)
        return answer

    def _check_active(self, account: StoredAccount) -> None:
        if account.revoked_at is not None:
            raise InvalidToken("the service account is revoked", check="account.revoked")
        if account.expires_at is not None and self._clock() * 1_000_000 >= account.expires_at:
            raise InvalidToken("the service account has expired", check="account.expired")


class _RateLimit:
    """A token bucket.

    Args:
        rate: the size of the burst, and the rate per second.
        moment: the current time in seconds.
    """

    def __init__(self, rate: int, moment: float) -> None:
        self._rate = float(rate)
        self._left = float(rate)
        self._at = moment

    def take(self, moment: float) -> bool:
        """Take one; return False if none is left."""
        self._left = min(self._rate, self._left + (moment - self._at) * self._rate)
        self._at = moment
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def give_back(self, was_taken: bool) -> None:
        """Give back one that was taken and not used."""
        self._left = min(self._rate, self._left + was_taken)


def _remember(entries: dict[K, V], key: K, value: V, most: int) -> None:
    entries.pop(key, None)
    while len(entries) >= most:
        del entries[next(iter(entries))]
    entries[key] = value
