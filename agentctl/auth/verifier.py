"""From the Authorization header to a principal."""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from agentctl.auth.keys.keyring import Keyring
from agentctl.auth.principal import Principal, anonymous_principal
from agentctl.auth.tokens.account_tokens import account_token_prefix
from agentctl.auth.tokens.claims import ClaimRules, Claims, check_claims
from agentctl.auth.tokens.jws import KeySet, verify_token
from agentctl.errors import InvalidToken, Unauthenticated

if TYPE_CHECKING:
    from agentctl.auth.tokens.account_lookup import AccountTokens
    from agentctl.config.settings import Authorization, Settings

__all__ = ["Verifier", "build_principal", "parse_bearer"]

_CACHE_SIZE = 4_096
_CACHE_SECONDS = 30.0
_POLL_SECONDS = 1.0
_JOIN_SECONDS = 2.0

_log = logging.getLogger("agentctl.auth")


@dataclass(frozen=True, slots=True)
class _CachedToken:
    """A token that was verified.

    Attributes:
        principal: whom it stands for.
        expires_at: its `exp`, on the wall clock.
        stale_at: when it is verified again, on the monotonic clock.
    """

    principal: Principal
    expires_at: float
    stale_at: float


@dataclass(frozen=True, slots=True)
class _KeyGeneration:
    """A key set, and what it verified: one reference is replaced, so neither is ever without other.

    Attributes:
        keys: the set.
        cache: tokens that it verified, by their SHA-256, the oldest first.
    """

    keys: KeySet
    cache: dict[bytes, _CachedToken] = field(default_factory=dict)


class Verifier:
    """Turns credentials into principals, with the keys of the configuration.

    Key files are looked at once a second at most and read again when they changed: by requests, and
    without any by `watching`. A replacement that is refused leaves the last good keys in use and is
    told in `problem`. Verified tokens are remembered by their SHA-256 for 30 seconds at most, until
    their `exp` or a change of keys.

    Args:
        settings: the configuration.
        accounts: looks up the tokens of service accounts; None: they stand for nobody.
        clock: the wall clock in seconds since the epoch: tokens live by it.
        monotonic: a clock that never jumps: watching and remembering live by it.

    Raises:
        InvalidKey: authorization is on and the keys are refused, or there are none.
    """

    def __init__(
        self,
        settings: Settings,
        accounts: AccountTokens | None = None,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._given = settings.authorization
        self._accounts = accounts
        self._account_start = account_token_prefix(settings.authorization.token_prefix)
        self._rules = ClaimRules.from_settings(settings)
        self._maximum = settings.limits.token_bytes
        self._clock = clock
        self._monotonic = monotonic
        self._keyring = Keyring(self._given) if self._given.enabled else None
        self._generation = None if self._keyring is None else _KeyGeneration(self._keyring.keys)
        self._reload_lock = threading.Lock()
        self._is_watched = False
        self._next_check = monotonic() + _POLL_SECONDS

    @property
    def mode(self) -> Literal["jwt", "none"]:
        """How callers are identified."""
        return "none" if self._keyring is None else "jwt"

    @property
    def problem(self) -> str | None:
        """Why changed key files are not in use, or None; it names files: for the operator only."""
        return None if self._keyring is None else self._keyring.problem

    @property
    def keys(self) -> KeySet | None:
        """The keys in use; None with authorization off."""
        return None if self._generation is None else self._generation.keys

    async def identify(self, authorization: str | None) -> Principal:
        """Who sends this Authorization header, with a JWT or as a service account.

        Which of them a token is, its first characters decide, here and once (`auth.accounts`).

        Args:
            authorization: the header's value; None: there was none.

        Raises:
            Unauthenticated: there was none.
            InvalidToken: it does not hold.
            Unavailable: it is a service account's, and nobody can tell now.
        """
        if self._generation is None:
            return anonymous_principal()
        token = self._token(authorization)
        if self._accounts is not None and token.startswith(self._account_start):
            return await self._accounts.principal(token)
        return self._identify_jwt(token)

    def principal(self, authorization: str | None) -> Principal:
        """As `identify`, without service accounts: their tokens hold for nothing here.

        Raises:
            Unauthenticated: there was none.
            InvalidToken: it does not hold.
        """
        if self._generation is None:
            return anonymous_principal()
        return self._identify_jwt(self._token(authorization))

    def _token(self, authorization: str | None) -> str:
        if authorization is None:
            raise Unauthenticated
        return parse_bearer(authorization, self._maximum)

    def _identify_jwt(self, token: str) -> Principal:
        if token.startswith(self._account_start):
            reason = "it is a service account's token, which is looked up, not verified"
            raise InvalidToken(reason, check="form")
        moment = self._monotonic()
        if moment >= self._next_check and not self._is_watched:
            self.reload_keys()
        generation = self._generation
        assert generation is not None
        digest = hashlib.sha256(token.encode("ascii")).digest()
        entry = generation.cache.get(digest)
        if entry is not None and moment < entry.stale_at and self._clock() < entry.expires_at:
            return entry.principal
        generation.cache.pop(digest, None)
        fresh = self._verify_token(token, generation.keys, moment)
        _remember(generation.cache, digest, fresh)
        return fresh.principal

    def reload_keys(self) -> None:
        """Look at the key files now, and take over what changed; safe in any thread."""
        if self._keyring is None:
            return
        with self._reload_lock:
            self._next_check = self._monotonic() + _POLL_SECONDS
            before = self._keyring.problem
            if self._keyring.reload():
                self._generation = _KeyGeneration(self._keyring.keys)
                _log.info("verification keys changed")
            if self._keyring.problem not in (None, before):
                _log.error("%s", self._keyring.problem)
            elif before is not None and self._keyring.problem is None:
                _log.info("the key files are in use again")

    @contextmanager
    def watch_key_files(self) -> Iterator[None]:
        """Look at the key files every second, in a thread, so that no request waits for a disk.

        Inside, `problem` is up to date although nobody asks, and requests look at no file.
        """
        if self._keyring is None:
            yield
            return
        stop = threading.Event()
        thread = threading.Thread(target=self._watch, args=(stop,), name="keys", daemon=True)
        thread.start()
        self._is_watched = True
        try:
            yield
        finally:
            self._is_watched = False
            stop.set()
            thread.join(_JOIN_SECONDS)

    def _watch(self, stop: threading.Event) -> None:
        while not stop.wait(_POLL_SECONDS):
            try:
                self.reload_keys()
            except Exception:
                # The keys in use stay; a watch that ends would keep removed ones for ever.
                _log.exception("the key files could not be looked at")

    def _verify_token(self, token: str, keys: KeySet, moment: float) -> _CachedToken:
        verified = verify_token(token, keys, maximum=self._maximum)
        claims = check_claims(verified.payload, self._rules, self._clock())
        expires_at = math.inf if claims.expires_at is None else claims.expires_at
        return _CachedToken(
            build_principal(claims, self._given), expires_at, moment + _CACHE_SECONDS
        )


def _remember(cache: dict[bytes, _CachedToken], digest: bytes, entry: _CachedToken) -> None:
    """Keep an entry; the oldest makes room."""
    while len(cache) >= _CACHE_SIZE:
        cache.pop(next(iter(cache)), None)
    cache[digest] = entry


def parse_bearer(authorization: str, maximum: int) -> str:
    """Step `transport`: the token of `Bearer <token>`, as RFC 6750 2.1 has it.

    One space, the scheme in any case. What is longer than any token is refused unread.

    Raises:
        InvalidToken: it is something else.
    """
    if len(authorization) > len("Bearer ") + maximum:
        raise InvalidToken(f"the token is longer than {maximum} bytes", check="length")
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token or " " in token or not token.isascii():
        reason = "the Authorization header is not Bearer and one token"
        raise InvalidToken(reason, check="transport")
    return token


def build_principal(claims: Claims, given: Authorization) -> Principal:
    """Whom claims that hold stand for, with `[authorization]` as given."""
    admin = given.admin_scope in claims.scopes
    return Principal(
        subject=claims.subject,
        scopes=claims.scopes,
        admin=admin,
        sees_all_users=admin or not given.user_isolation,
        session_id=claims.session_id,
    )
