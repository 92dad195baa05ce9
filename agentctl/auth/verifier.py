"""Verify credentials: from the header `Authorization` to a principal."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

from agentctl.auth.keys.keyring import Keyring, has_remote_keys
from agentctl.auth.keys.remote import FETCH_SECONDS, RemoteKeys, RemoteKeyState
from agentctl.auth.principal import Principal, anonymous_principal
from agentctl.auth.tokens.account_tokens import ACCOUNT_PREFIX, AccountTokens
from agentctl.auth.tokens.algorithms import MAXIMUM_TOKEN
from agentctl.auth.tokens.claims import ClaimRules, check_claims
from agentctl.auth.tokens.jws import KeySet, verify_token
from agentctl.config.settings import Settings
from agentctl.errors import InvalidKey, InvalidToken, Unauthenticated, Unavailable

_CACHE_SIZE = 4_096
"""Maximum number of cached tokens."""

_CACHE_SECONDS = 30.0
"""Time for which a verified token is not verified again."""

_POLL_SECONDS = 1.0
"""Time between two checks of the key files."""

_JOIN_SECONDS = 2.0
"""Maximum time to wait for the end of the thread that checks the key files."""

_WAIT_SECONDS = FETCH_SECONDS + 1
"""Maximum time for which a request waits for a fetch of keys."""

_log = logging.getLogger("agentctl.auth")


@dataclass(frozen=True, slots=True)
class _CachedToken:
    """A verified token."""

    principal: Principal

    expires_at: float
    """Its `exp`, on the wall clock."""

    stale_at: float
    """The time of the next verification, on the monotonic clock."""


@dataclass(frozen=True, slots=True)
class _KeyGeneration:
    """A key set with the tokens that it verified.

    A change of keys replaces both with one assignment, so no token outlives the key that verified
    it, in any thread.
    """

    keys: KeySet

    cache: dict[bytes, _CachedToken] = field(default_factory=dict)
    """Verified tokens by their SHA-256, the oldest first."""


class Verifier:
    """The verifier of credentials, with the keys of the configuration.

    It checks key files for changes at most once per second, during requests or in the thread of
    `watch_key_files`. If new files are rejected, the previous keys stay in use and `problem`
    describes the error. Verified tokens are cached by their SHA-256 for at most 30 seconds, until
    their `exp` or a change of keys.

    Args:
        accounts: looks up the tokens of service accounts; None rejects them.
        clock: the wall clock in seconds since the epoch, for the times of tokens.
        monotonic: a clock that never jumps, for the cache and the checks of key files.

    Raises:
        InvalidKey: authorization is on, and a key is rejected or there is none.
    """

    def __init__(
        self,
        settings: Settings,
        accounts: AccountTokens | None = None,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._authorization = settings.authorization
        self._accounts = accounts
        self._rules = ClaimRules.from_settings(settings)
        self._clock = clock
        self._monotonic = monotonic
        self._keyring = Keyring(self._authorization) if self._authorization.enabled else None
        self._generation = None if self._keyring is None else _KeyGeneration(self._keyring.keys)

        self._reload_lock = threading.RLock()
        self._remote: RemoteKeys | None = None
        self._remote_keys: KeySet | None = None
        self._conflict: str | None = None
        if self._keyring is not None and has_remote_keys(self._authorization):
            self._remote = RemoteKeys(
                self._authorization, self._use_remote_keys, clock=clock, monotonic=monotonic
            )

        self._is_watched = False
        self._next_check = monotonic() + _POLL_SECONDS

    @property
    def mode(self) -> Literal["jwt", "none"]:
        """The kind of authentication: `none` with authorization off."""
        return "none" if self._keyring is None else "jwt"

    @property
    def problem(self) -> str | None:
        """The reason why changed keys are not in use, or None; for the operator only."""
        if self._keyring is not None and self._keyring.problem is not None:
            return self._keyring.problem
        if self._conflict is not None:
            return self._conflict
        state = self.remote_state
        return None if state is None or state.error is None else state.detail

    @property
    def remote_state(self) -> RemoteKeyState | None:
        """The state of the keys that are fetched over HTTP; None without such keys."""
        return None if self._remote is None else self._remote.state

    @property
    def remote_keys(self) -> KeySet | None:
        """The keys in use that were fetched over HTTP; None without any."""
        return self._remote_keys

    @property
    def leaves_out_keys(self) -> bool:
        """True if entries of the key sets in use are left out and someone has to correct them."""
        return self.keys is not None and bool(self.keys.faults)

    @property
    def keys(self) -> KeySet | None:
        """The verification keys in use; None with authorization off."""
        return None if self._generation is None else self._generation.keys

    async def identify(self, authorization: str | None) -> Principal:
        """Return the principal of a header `Authorization`, from a JWT or a service account.

        The prefix of the token decides which (`auth.tokens.account_tokens`).

        Raises:
            Unauthenticated: there is no such field.
            InvalidToken: the credential is not valid.
            Unavailable: the service account cannot be looked up now.
        """
        if self._generation is None:
            return anonymous_principal()

        token = parse_bearer(authorization)
        if self._accounts is not None and token.startswith(ACCOUNT_PREFIX):
            return await self._accounts.identify(token)

        if self._remote is None:
            return self._verify_cached(token)

        # The provider may have signed with a key that is newer than the last fetch.
        await self.load_remote_keys()
        try:
            return self._verify_cached(token)
        except InvalidToken as error:
            await _wait(self._refresh_for(error))

        return self._verify_after_refresh(token)

    async def load_remote_keys(self) -> None:
        """Wait for the first fetch of the remote keys, for a limited time."""
        if self._remote is not None:
            await _wait(self._remote.refresh_missing())

    def identify_jwt(self, authorization: str | None) -> Principal:
        """Return the principal of a header `Authorization` with a JWT; see `identify`.

        Raises:
            InvalidToken: the credential is not valid, or is a token of a service account.
        """
        if self._generation is None:
            return anonymous_principal()

        token = parse_bearer(authorization)
        if self._remote is None:
            return self._verify_cached(token)

        # The same steps as in `identify`.
        _block(self._remote.refresh_missing())
        try:
            return self._verify_cached(token)
        except InvalidToken as error:
            _block(self._refresh_for(error))

        return self._verify_after_refresh(token)

    def fetch_remote_keys(self) -> None:
        """Fetch the remote keys now and wait for the end, for a limited time; for commands."""
        if self._remote is not None:
            _block(self._remote.refresh())

    def _refresh_for(self, error: InvalidToken) -> Future[None]:
        """Return the fetch that may find the key of a refused token.

        Raises:
            InvalidToken: `error`, if no other key could change it, or the last fetch is recent.
            Unavailable: no remote keys are in use, and the last fetch is recent.
        """
        assert self._remote is not None
        if error.check != "key":
            raise error

        flight = self._remote.refresh_unknown()
        if flight is not None:
            return flight
        if not self._remote.has_keys:
            raise _build_keys_unavailable()
        raise error

    def _verify_after_refresh(self, token: str) -> Principal:
        """Verify a token again; without remote keys an unknown key is Unavailable, not invalid."""
        assert self._remote is not None
        try:
            return self._verify_cached(token)
        except InvalidToken as error:
            if error.check == "key" and not self._remote.has_keys:
                raise _build_keys_unavailable() from None
            raise

    def _verify_cached(self, token: str) -> Principal:
        """Return the principal of a JWT, from the cache or after a verification."""
        if token.startswith(ACCOUNT_PREFIX):
            reason = "it is a service account token, which is looked up, not verified"
            raise InvalidToken(reason, check="form")

        moment = self._monotonic()
        if moment >= self._next_check and not self._is_watched:
            self.reload_keys()

        # Read once: another thread replaces it when keys change.
        generation = self._generation
        assert generation is not None

        digest = hashlib.sha256(token.encode("ascii")).digest()
        entry = generation.cache.get(digest)
        if entry is not None and moment < entry.stale_at and self._clock() < entry.expires_at:
            return entry.principal

        generation.cache.pop(digest, None)

        verified = verify_token(token, generation.keys)
        claims = check_claims(verified.payload, self._rules, self._clock())

        admin = self._authorization.admin_scope in claims.scopes
        principal = Principal(
            subject=claims.subject,
            scopes=claims.scopes,
            admin=admin,
            sees_all_users=admin or not self._authorization.user_isolation,
            session_id=claims.session_id,
            claims=verified.payload,
            unread_claims=claims.unread,
        )

        while len(generation.cache) >= _CACHE_SIZE:
            generation.cache.pop(next(iter(generation.cache)), None)
        expires_at = math.inf if claims.expires_at is None else claims.expires_at
        generation.cache[digest] = _CachedToken(principal, expires_at, moment + _CACHE_SECONDS)
        return principal

    def reload_keys(self) -> None:
        """Check the key files now and use changed files; safe in any thread."""
        if self._keyring is None:
            return

        with self._reload_lock:
            self._next_check = self._monotonic() + _POLL_SECONDS
            earlier_problem = self._keyring.problem
            if self._keyring.reload():
                self._generation = _KeyGeneration(self._merge_changed_files())
                _log.info("verification keys changed")

            if self._keyring.problem not in (None, earlier_problem):
                _log.error("%s", self._keyring.problem)
            elif earlier_problem is not None and self._keyring.problem is None:
                _log.info("the key files are valid again and in use")

    def _use_remote_keys(self, keys: KeySet | None) -> None:
        """Use other remote keys next to the keys of the files; InvalidKey if they do not fit."""
        with self._reload_lock:
            merged = self._merge_keys(keys)
            self._remote_keys = keys
            self._generation = _KeyGeneration(merged)
            self._conflict = None
        _log.info("verification keys changed")

    def _merge_changed_files(self) -> KeySet:
        """Return the keys in use; without the remote keys if the new files do not fit them."""
        assert self._keyring is not None
        try:
            merged = self._merge_keys(self._remote_keys)
            self._conflict = None
        except InvalidKey as failure:
            # With an error here, the keys that were removed from the files would stay in use.
            self._conflict = f"{failure.detail}; the fetched keys are not in use"
            _log.error("%s", self._conflict)
            return self._keyring.keys
        return merged

    def _merge_keys(self, remote: KeySet | None) -> KeySet:
        assert self._keyring is not None
        local = self._keyring.keys
        return local if remote is None else local.merge(remote)

    @contextmanager
    def watch_key_files(self) -> Iterator[None]:
        """Check the key files every second in a thread, so that no request waits for a disk.

        Within the context `problem` is up to date without requests, requests read no file, and
        remote keys are fetched before they are too old.
        """
        if self._keyring is None:
            yield
            return

        stop = threading.Event()
        if self._remote is not None:
            self._remote.poll()

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
                if self._remote is not None:
                    self._remote.poll()
                self.reload_keys()
            except Exception:
                # If the thread ended here, removed keys would stay in use for ever.
                _log.exception("the key files could not be checked")


async def _wait(flight: Future[None] | None) -> None:
    """Wait for a fetch without blocking the event loop, for a limited time."""
    if flight is not None:
        await asyncio.wait({asyncio.wrap_future(flight)}, timeout=_WAIT_SECONDS)


def _block(flight: Future[None] | None) -> None:
    """Wait for a fetch in this thread, for a limited time."""
    if flight is not None:
        with suppress(TimeoutError):
            flight.result(_WAIT_SECONDS)


def _build_keys_unavailable() -> Unavailable:
    return Unavailable(
        "The verification keys are not available",
        hint="the log of the server and `agentctl doctor` have the reason",
    )


def parse_bearer(authorization: str | None) -> str:
    """Run the check `transport`: return the token of `Bearer <token>` (RFC 6750 2.1).

    The scheme is compared without case and one space follows it. A field that is longer than any
    token is rejected before it is parsed.

    Raises:
        Unauthenticated: there is no such field.
        InvalidToken: the field has another form, or is too long.
    """
    if authorization is None:
        raise Unauthenticated
    if len(authorization) > len("Bearer ") + MAXIMUM_TOKEN:
        raise InvalidToken(f"the token is longer than {MAXIMUM_TOKEN} bytes", check="length")
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token or " " in token or not token.isascii():
        reason = "the Authorization header is not Bearer and one token"
        raise InvalidToken(reason, check="transport")
    return token
