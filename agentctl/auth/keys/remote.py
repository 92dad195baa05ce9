"""The key set of an identity provider, by URL or discovery (decision 139).

A fetch runs in a separate thread with its own event loop, at most one at a time, so no request and
no other check waits for the network unless it needs the result. During an outage the last key set
stays in use for `STALE_SECONDS`.

A fetch is bounded in time and size, and follows no redirect to another origin: a response of
another origin, or over plain HTTP, could come from anyone, and its keys would verify anyone's
tokens. An issuer elsewhere cannot name a URL of this machine (SSRF); the addresses that a name
resolves to are not checked.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urljoin, urlsplit

from agentctl.auth.keys.keyring import log_faults
from agentctl.auth.tokens.jws import KeySet
from agentctl.errors import InvalidConfiguration, InvalidKey
from agentctl.records.hosts import is_loopback_host
from agentctl.records.proxies import build_proxy_options, find_proxy_variable
from agentctl.records.strict import NotStrict, parse_document
from agentctl.records.times import format_span
from agentctl.records.tls import describe_tls_failure

if TYPE_CHECKING:
    import httpx2

    from agentctl.config.settings import Authorization

FETCH_SECONDS = 5.0
"""Maximum time of a fetch, with discovery and redirects."""

MAXIMUM_BYTES = 1_048_576
"""Maximum size of a document."""

MAXIMUM_REDIRECTS = 3
"""Maximum number of redirects of a fetch, all within one origin."""

DISCOVERY_PATH = "/.well-known/openid-configuration"
"""Path of the configuration of an issuer (OpenID Connect Discovery 1.0, 4)."""

FetchErrorCode = Literal[
    "unreachable", "timeout", "tls", "status", "redirect", "too_large", "not_json",
    "issuer_mismatch", "insecure_url", "invalid_keys", "internal",
]  # fmt: skip

REFRESH_SECONDS = 600.0
"""Time after which a fetched key set is fetched again."""

STALE_SECONDS = 86_400.0
"""Maximum age of a fetched key set that cannot be fetched again."""

UNKNOWN_KEY_SECONDS = 10.0
"""Minimum time between two fetches because of tokens with an unknown key."""

FIRST_RETRY_SECONDS = 1.0
"""Pause after the first failure; it is doubled after each further failure."""

MAXIMUM_RETRY_SECONDS = 60.0
"""Longest pause after a failure."""

_OAUTH_ERROR = re.compile(r"[a-z_]{1,64}")
"""The form of error codes of OAuth 2.0, which can be shown to users."""

_log = logging.getLogger("agentctl.auth")


class FetchError(Exception):
    """A failed fetch.

    Args:
        detail: the failure in a sentence, without content of the response.
        oauth_error: `error` of the response to a form (RFC 6749 5.2), letters and `_`; or empty.
    """

    def __init__(self, code: FetchErrorCode, detail: str, oauth_error: str = "") -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.oauth_error = oauth_error


def is_allowed_url(url: str, issuer: str = "") -> bool:
    """Return True for https, and for http to this machine.

    Args:
        issuer: the issuer that names the URL; empty for a URL of the configuration. An issuer
            elsewhere must not choose a request to this machine, not even with https.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return False

    if parts.username is not None or not parts.hostname:
        return False

    if not is_loopback_host(parts.hostname):
        return parts.scheme == "https"

    if issuer and not is_loopback_host(urlsplit(issuer).hostname or ""):
        return False
    return parts.scheme in ("http", "https")


async def fetch_key_set(url: str, issuer: str = "") -> dict[str, Any]:
    """Return a parsed key set, whose keys are not checked.

    Args:
        url: the URL of the key set; empty to discover it.
        issuer: the issuer whose configuration names the key set, if `url` is empty.

    Raises:
        FetchError: the key set cannot be fetched.
    """
    async with _open_client(url or issuer) as client:
        return await _fetch(client, url or await _discover(client, issuer))


async def fetch_configuration(issuer: str) -> dict[str, Any]:
    """Return the configuration of an issuer (OpenID Connect Discovery 1.0, 4).

    Raises:
        FetchError: it cannot be fetched, or is of another issuer.
    """
    async with _open_client(issuer) as client:
        return await _fetch_configuration(client, issuer)


async def post_form(
    url: str, fields: Mapping[str, str], *, reads_answer: bool = True
) -> dict[str, Any]:
    """Send a form; return the object of the response, or an empty one if none is read.

    Raises:
        FetchError: there is no response with an object and the status 200.
    """
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    async with (
        _open_client(url) as client,
        client.stream("POST", url, data=dict(fields), headers=headers) as response,
    ):
        if response.status_code >= 400:
            error = await _read_oauth_error(response)
            raise FetchError("status", f"the server responds with {response.status_code}", error)
        return await _read_object(response) if reads_answer else {}


@asynccontextmanager
async def _open_client(url: str) -> AsyncIterator[httpx2.AsyncClient]:
    import httpx2

    try:
        options = build_proxy_options(url)
    except InvalidConfiguration as failure:
        raise FetchError("unreachable", f"{failure.detail}: {failure.cause}") from None

    try:
        async with (
            asyncio.timeout(FETCH_SECONDS),
            # With SSL_CERT_FILE and SSL_CERT_DIR, which the options do not read.
            httpx2.AsyncClient(
                timeout=FETCH_SECONDS, verify=httpx2.create_ssl_context(), **options
            ) as client,
        ):
            yield client
    except (TimeoutError, httpx2.TimeoutException):
        raise FetchError("timeout", f"no response within {FETCH_SECONDS:g} seconds") from None
    except (httpx2.HTTPError, ssl.SSLError) as error:
        raise _build_connection_error(url, error) from None


def _build_connection_error(url: str, error: BaseException) -> FetchError:
    """Build the error of a failed connection to the server of a URL, or to the proxy before it."""
    tls_fault = describe_tls_failure(error)
    if tls_fault is not None:
        return FetchError("tls", tls_fault)

    proxy = find_proxy_variable(url)
    if proxy is not None:
        problem = f"the server cannot be reached through the proxy of {proxy}"
        return FetchError("unreachable", problem)

    return FetchError("unreachable", "the server cannot be reached")


async def _discover(client: httpx2.AsyncClient, issuer: str) -> str:
    """Return the URL of the key set of an issuer."""
    document = await _fetch_configuration(client, issuer)
    url = document.get("jwks_uri")
    if not isinstance(url, str) or not is_allowed_url(url, issuer):
        raise FetchError(
            "insecure_url", "the issuer names no key set with https, or one on this machine"
        )
    return url


async def _fetch_configuration(client: httpx2.AsyncClient, issuer: str) -> dict[str, Any]:
    document = await _fetch(client, issuer.rstrip("/") + DISCOVERY_PATH)
    if document.get("issuer") != issuer:
        raise FetchError("issuer_mismatch", "the discovered configuration is of another issuer")
    return document


async def _fetch(client: httpx2.AsyncClient, url: str) -> dict[str, Any]:
    for _ in range(MAXIMUM_REDIRECTS + 1):
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        async with client.stream("GET", url, headers=headers) as response:
            if 300 <= response.status_code < 400:
                target = urljoin(url, response.headers.get("location", ""))
                if _get_origin(target) != _get_origin(url):
                    raise FetchError("redirect", "the server redirects to another origin")
                url = target
                continue
            return await _read_object(response)
    raise FetchError("redirect", f"the server redirects more than {MAXIMUM_REDIRECTS} times")


async def _read_object(response: httpx2.Response) -> dict[str, Any]:
    if response.status_code != 200:
        raise FetchError("status", f"the server responds with {response.status_code}")
    content = await _read(response)
    try:
        return parse_document(content)
    except NotStrict as failure:
        raise FetchError("not_json", f"the response {failure}") from None


async def _read_oauth_error(response: httpx2.Response) -> str:
    try:
        error = parse_document(await _read(response)).get("error")
    except NotStrict:
        return ""
    return error if isinstance(error, str) and _OAUTH_ERROR.fullmatch(error) else ""


async def _read(response: httpx2.Response) -> bytes:
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > MAXIMUM_BYTES:
            raise FetchError("too_large", f"the response has more than {MAXIMUM_BYTES} bytes")
    return bytes(content)


def _get_origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    ports = {"http": 80, "https": 443}
    try:
        return parts.scheme, parts.hostname, parts.port or ports.get(parts.scheme)
    except ValueError:
        return "", None, None


@dataclass(frozen=True, slots=True)
class RemoteKeyState:
    """The state of a remote key set, for the operator. Times are seconds since the epoch."""

    source: str
    """The URL of the key set, or the issuer."""

    count: int
    """Number of keys in use."""

    left_out: int
    """Number of unusable entries, which the provider has to correct."""

    fetched_at: float | None
    """Time of the last successful fetch; None before it."""

    error: FetchErrorCode | None
    """Class of the last failure; None if the last fetch succeeded."""

    detail: str
    """The last failure in a sentence; empty if the last fetch succeeded."""

    failed_at: float | None
    """Time of the last failure; None if the last fetch succeeded."""

    next_refresh_at: float
    """Time of the next fetch."""

    is_expired: bool
    """True if the keys are too old to be used."""

    def describe(self, now: float) -> str:
        """Return the state in one line."""
        if self.fetched_at is None:
            text = f"keys of {self.source}: not fetched"
        else:
            number = "1 key" if self.count == 1 else f"{self.count} keys"
            age = format_span(now - self.fetched_at)
            text = f"{number} of {self.source}, fetched {age} ago"
            if self.left_out:
                text += f", {self.left_out} left out"
            if self.is_expired:
                text += ", too old to be used"

        if self.error is not None and self.failed_at is not None:
            text += f"; last error {format_span(now - self.failed_at)} ago: {self.error}"
            text += f" ({self.detail})"

        ahead = self.next_refresh_at - now
        next_refresh = f"in {format_span(ahead)}" if ahead > 0 else "now"
        return f"{text}; next refresh {next_refresh}"


class RemoteKeys:
    """The key set of a URL or of an issuer.

    Args:
        authorization: `[authorization]`, with `jwks_url` or `oidc_discovery`.
        use: takes a new key set into use, and None when the last key set expires; raises InvalidKey
            if it does not fit the other keys.
    """

    def __init__(
        self,
        authorization: Authorization,
        use: Callable[[KeySet | None], None],
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._algorithm = authorization.algorithm
        self._url = authorization.jwks_url
        self._issuer = "" if self._url else authorization.issuer
        self._source = self._url or self._issuer

        self._use = use
        self._clock = clock
        self._monotonic = monotonic

        # The fetch that is under way. The lock is held for no longer than its assignment.
        self._lock = threading.Lock()
        self._flight: Future[None] | None = None

        self._document: dict[str, Any] | None = None
        self._keys: KeySet | None = None

        # Times on the monotonic clock.
        self._fetched_at: float | None = None
        self._attempted_at: float | None = None
        self._next_at = monotonic()

        self._error: FetchError | None = None
        self._failed_at = 0.0
        self._failures = 0

    @property
    def has_keys(self) -> bool:
        """True if a key set is in use."""
        return self._keys is not None

    @property
    def state(self) -> RemoteKeyState:
        """The state now; safe in any thread."""
        # Read once: the thread of a fetch replaces them.
        keys = self._keys
        error = self._error
        fetched_at = self._fetched_at

        # What is added to a time of the monotonic clock gives seconds since the epoch.
        epoch = self._clock() - self._monotonic()

        return RemoteKeyState(
            source=self._source,
            count=0 if keys is None else len(keys.keys),
            left_out=0 if keys is None else len(keys.faults),
            fetched_at=None if fetched_at is None else epoch + fetched_at,
            error=None if error is None else error.code,
            detail="" if error is None else error.detail,
            failed_at=None if error is None else epoch + self._failed_at,
            next_refresh_at=epoch + self._next_at,
            is_expired=fetched_at is not None and keys is None,
        )

    def poll(self) -> None:
        """Start a fetch if it is due, and drop keys that are too old. Never waits."""
        moment = self._monotonic()
        if moment >= self._next_at:
            self.refresh()

        if self._keys is None or self._fetched_at is None:
            return
        if moment - self._fetched_at > STALE_SECONDS:
            _log.error("the keys of %s are too old to be used", self._source)
            self._keys = None
            self._document = None
            self._use(None)

    def refresh_missing(self) -> Future[None] | None:
        """Return a fetch to wait for if no fetch has ended yet, else None."""
        with self._lock:
            has_ended = self._fetched_at is not None or self._error is not None
        return None if has_ended else self.refresh()

    def refresh_unknown(self) -> Future[None] | None:
        """Return a fetch to wait for because of a token with an unknown key.

        None if the last fetch began less than `UNKNOWN_KEY_SECONDS` ago and has ended.
        """
        with self._lock:
            flight = self._flight
            attempted_at = self._attempted_at
        if flight is not None:
            return flight

        # Anyone can send tokens with invented keys: they must not load the provider.
        if attempted_at is not None and self._monotonic() - attempted_at < UNKNOWN_KEY_SECONDS:
            return None
        return self.refresh()

    def refresh(self) -> Future[None]:
        """Start a fetch, unless one is under way, and return it. It never has an exception."""
        with self._lock:
            if self._flight is not None:
                return self._flight
            flight = Future[None]()
            self._flight = flight
            self._attempted_at = self._monotonic()

        threading.Thread(target=self._fetch, args=(flight,), name="jwks", daemon=True).start()
        return flight

    def _fetch(self, flight: Future[None]) -> None:
        try:
            self._accept(asyncio.run(fetch_key_set(self._url, self._issuer)))
        except FetchError as error:
            self._record_failure(error)
        except InvalidKey as error:
            self._record_failure(FetchError("invalid_keys", error.detail_with_cause))
        except Exception:
            _log.exception("the fetch of the verification keys failed")
            self._record_failure(FetchError("internal", "the log has the details"))
        finally:
            # Forget the fetch before it ends: a caller that it wakes can start the next one.
            with self._lock:
                self._flight = None
            flight.set_result(None)

    def _accept(self, document: dict[str, Any]) -> None:
        """Take the keys of a fetched document into use; InvalidKey if they are not usable."""
        if document != self._document:
            keys = KeySet.from_jwks(document, algorithm=self._algorithm)
            self._use(keys)
            log_faults(keys, self._source)
            self._keys = keys
            self._document = document

        if self._error is not None:
            _log.warning("the keys of %s can be fetched again", self._source)

        self._fetched_at = self._monotonic()
        self._error = None
        self._failures = 0
        self._next_at = self._fetched_at + REFRESH_SECONDS

    def _record_failure(self, error: FetchError) -> None:
        # A failure that repeats is logged once.
        if self._error is None or self._error.code != error.code:
            _log.error("the keys of %s cannot be fetched: %s", self._source, error.detail)
        self._failed_at = self._monotonic()
        self._error = error

        pause = FIRST_RETRY_SECONDS * 2 ** min(self._failures, 10)
        self._failures += 1
        self._next_at = self._failed_at + min(pause, MAXIMUM_RETRY_SECONDS, REFRESH_SECONDS)
