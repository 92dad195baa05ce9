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
"""256 random bits."""

_SECRET_WIDTH = 43
"""Base62 digits of the largest 256-bit number; every token has this number of digits."""

_CHECK_WIDTH = 6
"""Base62 digits of the largest 32-bit number."""

_BODY_PATTERN = re.compile(rf"[0-9A-Za-z]{{{_SECRET_WIDTH + _CHECK_WIDTH}}}")

_PREFIX_PATTERN = re.compile(r"[a-z][a-z0-9]{0,30}_pat_")
"""The start of the service account tokens of any deployment."""

CACHE_SECONDS = 1.0
"""Seconds for which a result of the database is cached."""

UNKNOWN_LOOKUPS_PER_SECOND = 20
"""Look-ups of unknown tokens that a process makes per second, and at once after a pause."""

MAXIMUM_CACHED = 4_096
"""Maximum number of cached accounts."""

MAXIMUM_CACHED_UNKNOWN = 256
"""Maximum number of cached hashes of unknown tokens."""

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
        """Return the account whose token has this hash, or None.

        Raises:
            Unavailable: the database is not available.
        """
        ...

    def record_use(self, account: StoredAccount) -> None:
        """Record in the background that the account is used now; never raises."""
        ...


@dataclass(frozen=True, slots=True)
class _CachedAccount:
    """An account that the database has returned."""

    account: StoredAccount
    principal: Principal

    fresh_until: float
    """The time of the next query, in seconds on the monotonic clock."""


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

        self._accounts_by_hash = dict[str, _CachedAccount]()
        self._unknown_until = dict[str, float]()
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

        cached_account = self._accounts_by_hash.get(token_hash)
        if cached_account is None or moment >= cached_account.fresh_until:
            check_account_token(token)
            cached_account = await self._look_up(token_hash, moment)

        # Also for a cached account, which can expire while it is cached.
        self._check_active(cached_account.account)
        return cached_account.principal

    def forget(self, account_id: str) -> None:
        """Drop the cached results of an account after a change."""
        self._changes += 1
        for token_hash, cached_account in list(self._accounts_by_hash.items()):
            if cached_account.account.id == account_id:
                del self._accounts_by_hash[token_hash]

    async def _look_up(self, token_hash: str, moment: float) -> _CachedAccount:
        """Query the database; the rate limit applies to tokens that are not cached."""
        stale_at = moment + CACHE_SECONDS
        if self._unknown_until.get(token_hash, moment) > moment:
            raise InvalidToken(_UNKNOWN, check="account.known")

        # Each token may be unknown until the database has answered. Those that are known, and
        # those whose query failed, do not count against the limit.
        is_limited = token_hash not in self._accounts_by_hash
        if is_limited and not self._unknown_limit.take(moment):
            raise InvalidToken(_RATE_LIMITED, check="account.known")

        changes_before = self._changes
        try:
            account = await self._accounts.find(token_hash)
        except BaseException:
            if is_limited:
                self._unknown_limit.give_back()
            raise

        if account is None or not hmac.compare_digest(
            account.token_hash.encode(), token_hash.encode()
        ):
            _remember(self._unknown_until, token_hash, stale_at, MAXIMUM_CACHED_UNKNOWN)
            raise InvalidToken(_UNKNOWN, check="account.known")

        if is_limited:
            self._unknown_limit.give_back()

        principal = Principal(
            # Not built from the name: an account with a reused name must not inherit data.
            subject=f"sa:{account.id}",
            scopes=account.scopes,
            admin=self._admin_scope in account.scopes,
        )

        cached_account = _CachedAccount(account, principal, stale_at)
        # If an account was changed meanwhile, the result may be older than the change.
        if self._changes == changes_before:
            _remember(self._accounts_by_hash, token_hash, cached_account, MAXIMUM_CACHED)

        self._check_active(account)
        self._accounts.record_use(account)
        return cached_account

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
        self._available = float(rate)
        self._updated_at = moment

    def take(self, moment: float) -> bool:
        """Take a token of the bucket; return False if the bucket is empty."""
        refilled = self._available + (moment - self._updated_at) * self._rate
        self._available = min(self._rate, refilled)
        self._updated_at = moment
        if self._available < 1:
            return False

        self._available -= 1
        return True

    def give_back(self) -> None:
        """Put a token that `take` returned back into the bucket."""
        self._available = min(self._rate, self._available + 1)


def _remember(entries: dict[K, V], key: K, value: V, maximum: int) -> None:
    """Store an entry as the newest one; drop the oldest entries above `maximum`."""
    entries.pop(key, None)
    while len(entries) >= maximum:
        del entries[next(iter(entries))]
    entries[key] = value
