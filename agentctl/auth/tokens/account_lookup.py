"""From the token of a service account to a principal: looked up, remembered for a second.

So a revocation is effective within a second in every process, and at once in the one that was told
of it (`forget`). Look-ups that find nothing are rationed: who makes tokens up, with checksums that
are right, does not get a look into the database for each of them.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from agentctl.auth.principal import Principal
from agentctl.auth.tokens.account_tokens import check_account_token, hash_token
from agentctl.errors import InvalidToken

__all__ = ["AccountStore", "AccountTokens", "StoredAccount", "account_subject"]

CACHE_SECONDS = 1.0
"""How long an answer of the database is good for."""

UNKNOWN_LOOKUPS_PER_SECOND = 20
"""Look-ups in a process of hashes that nobody has: so many at once, and so many a second."""

MAXIMUM_CACHED = 4_096
MAXIMUM_CACHED_UNKNOWN = 256
"""Answers that are remembered at most."""

_UNKNOWN = "no service account has this token"
_RATE_LIMITED = "too many unknown tokens of service accounts: this one was not looked up"

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class StoredAccount:
    """What is stored of a service account, as far as it decides. Times are microseconds.

    Attributes:
        scopes: that were granted.
        expires_at: None: never.
        last_used_at: None: it has not been.
    """

    id: str
    token_hash: str
    scopes: frozenset[str]
    expires_at: int | None
    last_used_at: int | None
    revoked_at: int | None


class AccountStore(Protocol):
    """Where the accounts are stored. `service` fills it."""

    async def find(self, token_hash: str) -> StoredAccount | None:
        """The account with the token of this hash.

        Raises:
            Unavailable: nobody can tell now.
        """
        ...

    def used(self, account: StoredAccount) -> None:
        """Note, some time soon, that the account was used just now. Never fails."""
        ...


def account_subject(account_id: str) -> str:
    """The principal of an account: its id, not its name, so that a name that is given again does
    not inherit what the one before has made.
    """
    return f"sa:{account_id}"


@dataclass(frozen=True, slots=True)
class _CachedAccount:
    """What the database said of a token. `fresh_until` is on the monotonic clock."""

    account: StoredAccount
    principal: Principal
    fresh_until: float


class AccountTokens:
    """Turns tokens of service accounts into principals.

    Args:
        accounts: where they are stored.
        admin_scope: the scope that allows everything.
        clock: the wall clock in seconds since the epoch: accounts expire by it.
        monotonic: a clock that never jumps: remembering and rationing live by it.
    """

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

    async def principal(self, token: str) -> Principal:
        """Who a token stands for.

        Args:
            token: begins as those of service accounts do.

        Raises:
            InvalidToken: it stands for nobody, or not any more.
            Unavailable: nobody can tell now.
        """
        token_hash, moment = hash_token(token), self._monotonic()
        answer = self._found.get(token_hash)
        if answer is None or moment >= answer.fresh_until:
            check_account_token(token)
            answer = await self._look_up(token_hash, moment)
        self._check_active(answer.account)
        return answer.principal

    def forget(self, account_id: str) -> None:
        """Drop what is remembered of an account: it was changed."""
        self._changes += 1
        for token_hash, answer in list(self._found.items()):
            if answer.account.id == account_id:
                del self._found[token_hash]

    async def _look_up(self, token_hash: str, moment: float) -> _CachedAccount:
        """Ask the database. What was found once is always looked up; the rest as far as it goes."""
        if self._unknown.get(token_hash, moment) > moment:
            raise InvalidToken(_UNKNOWN, check="account.known")
        rationed, before = token_hash not in self._found, self._changes
        if rationed and not self._unknown_limit.take(moment):
            raise InvalidToken(_RATE_LIMITED, check="account.known")
        try:
            account = await self._accounts.find(token_hash)
        except BaseException:
            self._unknown_limit.give_back(rationed)
            raise
        if account is None or not _is_same_hash(account.token_hash, token_hash):
            _remember(self._unknown, token_hash, moment + CACHE_SECONDS, MAXIMUM_CACHED_UNKNOWN)
            raise InvalidToken(_UNKNOWN, check="account.known")
        self._unknown_limit.give_back(rationed)
        answer = _CachedAccount(account, self._principal_of(account), moment + CACHE_SECONDS)
        if self._changes == before:  # else it may be from before the change
            _remember(self._found, token_hash, answer, MAXIMUM_CACHED)
        self._check_active(account)
        self._accounts.used(account)
        return answer

    def _principal_of(self, account: StoredAccount) -> Principal:
        """Never `everyone`, the admin scope or not: an account sees what is its own."""
        return Principal(
            subject=account_subject(account.id),
            scopes=account.scopes,
            admin=self._admin_scope in account.scopes,
        )

    def _check_active(self, account: StoredAccount) -> None:
        if account.revoked_at is not None:
            raise InvalidToken("the service account is revoked", check="account.revoked")
        if account.expires_at is not None and self._clock() * 1_000_000 >= account.expires_at:
            raise InvalidToken("the service account has expired", check="account.expired")


class _RateLimit:
    """So many at once, and so many a second.

    Args:
        rate: of both.
        moment: the present, in seconds.
    """

    def __init__(self, rate: int, moment: float) -> None:
        self._rate = float(rate)
        self._left = float(rate)
        self._at = moment

    def take(self, moment: float) -> bool:
        """Take one; False: there is none left."""
        self._left = min(self._rate, self._left + (moment - self._at) * self._rate)
        self._at = moment
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def give_back(self, taken: bool) -> None:
        """What was taken was not needed."""
        self._left = min(self._rate, self._left + taken)


def _is_same_hash(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _remember(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """Keep a value as the youngest; the oldest makes room."""
    kept.pop(key, None)
    while len(kept) >= most:
        del kept[next(iter(kept))]
    kept[key] = value
