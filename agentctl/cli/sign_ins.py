"""Sign-ins: the tokens of `agentctl login`, one set for each server, and their renewal.

`sign-ins/NAME.json` in the user's configuration directory, mode 0600 in a directory of mode 0700,
describes a sign-in. Its tokens are in the keyring of the system, or in this file. They are sent
only to the URL of their server.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agentctl.cli.contexts import contexts_path
from agentctl.cli.files import replacing_private_file
from agentctl.errors import BadRequest, InvalidConfiguration, Unauthenticated, Unavailable

if TYPE_CHECKING:
    from agentctl.auth.oidc import OidcClient, Tokens

T = TypeVar("T")

LOCK_SECONDS = 60.0
"""Maximum time to wait for another command that changes the same sign-in."""

KEYRING_SECONDS = 60.0
"""Maximum time of the keyring, which may ask a person to unlock it."""

RETRY_SECONDS = 10.0
"""Time between two attempts to renew a token that is still valid."""

_MAXIMUM_BYTES = 1 << 18
_SERVICE = "agentctl"
_SECRETS = ("token", "refresh_token")
_FIELDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("server", "issuer", "client_id", "kind", "user", "name", "kept_in"), str),
    **dict.fromkeys(_SECRETS, str),
    **dict.fromkeys(("expires_at", "renew_at"), (float, int)),
}


@dataclass(frozen=True, slots=True)
class SignIn:
    """The sign-in of a person at a server, with the tokens of `auth.oidc.Tokens`."""

    server: str
    issuer: str
    client_id: str

    kind: str
    """The token of the provider that the server takes."""

    user: str
    """The principal of the server."""

    name: str
    """The name of the person at the provider; may be empty."""

    kept_in: str
    """The place of the tokens."""

    expires_at: float = 0.0
    renew_at: float = 0.0
    token: str = ""
    refresh_token: str = ""

    def __repr__(self) -> str:
        return f"SignIn({self.server!r})"

    def with_tokens(self, tokens: Tokens) -> SignIn:
        """Return the sign-in with other tokens."""
        return replace(
            self,
            expires_at=tokens.expires_at,
            renew_at=tokens.renew_at,
            token=tokens.token,
            refresh_token=tokens.refresh_token,
            name=tokens.name or self.name,
        )

    def describe(self) -> dict[str, Any]:
        """Return the record of a sign-in, which has no token."""
        from agentctl.records.times import format_rfc3339

        end = format_rfc3339(int(self.expires_at * 1e6)) if self.expires_at else None
        return {
            "user": self.user,
            "name": self.name or None,
            "issuer": self.issuer,
            "expires_at": end,
            "kept_in": self.kept_in,
        }


class StoredTokens:
    """The tokens of a sign-in for the requests of one command; a `TokenSource`."""

    def __init__(self, sign_in: SignIn) -> None:
        self._sign_in = sign_in
        self._renew_after = sign_in.renew_at
        self._ended: Unauthenticated | None = None

    async def read(self) -> str:
        """Return the token, renewed if it is about to expire.

        Without a renewal the token stays: the server decides about it.
        """
        if self._renew_after and time.time() >= self._renew_after:
            self._renew_after = time.time() + RETRY_SECONDS
            with suppress(Unauthenticated, Unavailable):
                await self.renew(self._sign_in.token)
        return self._sign_in.token

    async def renew(self, refused: str) -> str:
        """Return a new token in place of the token that the server refused.

        Raises:
            Unauthenticated: the user has to sign in again.
            Unavailable: the provider or the keyring does not respond.
            InvalidConfiguration: the file of the sign-in cannot be used.
        """
        import asyncio

        if self._ended is not None:
            raise self._ended

        try:
            # A thread: a command that is interrupted still stores the next refresh token.
            self._sign_in = await asyncio.to_thread(_renew, self._sign_in.server, refused)
        except Unauthenticated as failure:
            self._ended = failure
            raise

        self._renew_after = self._sign_in.renew_at
        return self._sign_in.token


async def open_tokens(url: str) -> StoredTokens | None:
    """Return the tokens of the sign-in at a server; None without a sign-in; see `find_sign_in`."""
    sign_in = describe_sign_in(url)
    if sign_in is None:
        return None

    if sign_in.kept_in != "file":
        import asyncio

        # A completion, which has little time, does not wait for the keyring.
        sign_in = await asyncio.to_thread(find_sign_in, url)
    return None if sign_in is None else StoredTokens(sign_in)


def find_sign_in(url: str) -> SignIn | None:
    """Return the sign-in at a server with its tokens; None without a sign-in.

    Raises:
        UsageError: the URL is not valid.
        InvalidConfiguration: the file is damaged, or other users can read it.
        Unavailable: the keyring cannot be used.
    """
    sign_in = describe_sign_in(url)
    if sign_in is None or sign_in.kept_in == "file":
        return sign_in

    text = _ask_keyring(lambda keyring: keyring.get_password(_SERVICE, sign_in.server))
    secrets = _parse_object(text or "")
    if not all(isinstance(secrets.get(name), str) for name in _SECRETS):
        raise Unavailable(
            "The keyring does not have the tokens of the sign-in", hint=_build_hint(sign_in.server)
        )

    return replace(sign_in, token=secrets["token"], refresh_token=secrets["refresh_token"])


def describe_sign_in(url: str) -> SignIn | None:
    """Return the sign-in at a server as its file has it: with empty tokens if the keyring has them.

    Raises:
        UsageError: the URL is not valid.
        InvalidConfiguration: the file is damaged, or other users can read it.
    """
    from agentctl.remote.address import parse_address

    server = parse_address(url).base
    path = _find_path(server)
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")
    except FileNotFoundError:
        return None
    except OSError as failure:
        raise _build_unusable_error(path, failure) from None

    with file:
        # Of the open file: the path could name another file by now.
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidConfiguration(
                f"the sign-in in {path} is not used",
                cause="other users can read or write it",
                hint=f"sign in again: agentctl login --url {server}; or run chmod 600 on the file",
            )
        record = _parse_object(file.read(_MAXIMUM_BYTES).decode("utf-8", "replace"))

    record = dict.fromkeys(_SECRETS, "") | record
    is_whole = all(isinstance(record.get(name), kind) for name, kind in _FIELDS.items())
    if not is_whole or record["server"] != server:
        raise InvalidConfiguration(
            f"the sign-in in {path} is damaged", hint=f"remove the file, then {_build_hint(server)}"
        )
    return SignIn(**{name: record[name] for name in _FIELDS})


@contextmanager
def changing_sign_in(server: str) -> Iterator[Callable[[SignIn], None]]:
    """Exclude other commands, and yield the function that stores the sign-in.

    The file is open before the block begins: a place that cannot be written fails before a provider
    is asked.

    Raises:
        InvalidConfiguration: the file cannot be written.
        Unavailable: another command does not end, or the keyring cannot be used.
    """
    path = _find_path(server)
    with _locked(path):
        was_in_keyring = False
        # A new sign-in replaces a damaged one.
        with suppress(InvalidConfiguration):
            before = describe_sign_in(server)
            was_in_keyring = before is not None and before.kept_in == "keyring"

        try:
            with replacing_private_file(path) as write:

                def store(sign_in: SignIn) -> None:
                    record = {name: getattr(sign_in, name) for name in _FIELDS}
                    if sign_in.kept_in == "keyring":
                        secrets = json.dumps({name: record.pop(name) for name in _SECRETS})
                        _ask_keyring(
                            lambda keyring: keyring.set_password(_SERVICE, server, secrets)
                        )
                    write(json.dumps(record, indent=2).encode())
                    if was_in_keyring and sign_in.kept_in != "keyring":
                        # A locked keyring is a reason for the change.
                        with suppress(Unavailable):
                            _delete_from_keyring(server)

                yield store
        except OSError as failure:
            raise _build_unusable_error(path, failure) from None


def forget_sign_in(server: str) -> SignIn | None:
    """Delete the sign-in at a server here; return it with its last tokens, None without a sign-in.

    Raises:
        InvalidConfiguration, Unavailable: as of `find_sign_in` and `changing_sign_in`.
    """
    path = _find_path(server)
    with _locked(path):
        sign_in = find_sign_in(server)
        if sign_in is None:
            return None

        if sign_in.kept_in == "keyring":
            _delete_from_keyring(server)
        try:
            path.unlink()
        except OSError as failure:
            raise _build_unusable_error(path, failure) from None
    return sign_in


def build_client(
    issuer: str, client_id: str, kind: Any, scopes: tuple[str, ...] = ()
) -> OidcClient:
    """Return the client of a provider; `kind` is the token that the server takes."""
    from agentctl.auth.oidc import OidcClient
    from agentctl.config.settings import Console

    return OidcClient(
        Console(oidc_issuer=issuer, oidc_client_id=client_id, oidc_scopes=scopes, oidc_token=kind)
    )


def has_keyring() -> bool:
    """Return True if the optional package is installed and has an open place for secrets.

    Raises:
        Unavailable: the place is locked.
    """
    from importlib.util import find_spec

    if find_spec("keyring") is None:
        return False

    def check(keyring: Any) -> bool:
        # Below 1 a place is not recommended, such as a file with clear text.
        if keyring.get_keyring().priority < 1:
            return False
        keyring.get_password(_SERVICE, "")
        return True

    return _ask_keyring(check)


def _renew(server: str, refused: str) -> SignIn:
    """Renew the token of a sign-in, unless another command has done it."""
    import asyncio

    with changing_sign_in(server) as store:
        sign_in = find_sign_in(server)
        if sign_in is None:
            raise _build_ended_error(server, "signed out")
        if sign_in.token != refused:
            # Another command has renewed it.
            return sign_in
        if not sign_in.refresh_token:
            raise _build_ended_error(server, "the provider gave no refresh token")

        client = build_client(sign_in.issuer, sign_in.client_id, sign_in.kind)
        try:
            tokens = asyncio.run(client.refresh(sign_in.refresh_token))
        except BadRequest as failure:
            raise _build_ended_error(server, failure.cause or failure.detail) from None

        renewed = sign_in.with_tokens(tokens)
        store(renewed)
        return renewed


def _build_ended_error(server: str, cause: str) -> Unauthenticated:
    return Unauthenticated("The sign-in has ended", cause=cause, hint=_build_hint(server))


def _build_hint(server: str) -> str:
    return f"sign in again: agentctl login --url {server}"


def _find_path(server: str) -> Path:
    name = hashlib.sha256(server.encode()).hexdigest()[:16]
    return contexts_path().parent / "sign-ins" / f"{name}.json"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Exclude other processes from a sign-in. The lock is a file that stays."""
    import fcntl

    deadline = time.monotonic() + LOCK_SECONDS
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as failure:
        raise _build_unusable_error(path, failure) from None

    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        "Another command changes the sign-in", hint="try again in a moment"
                    ) from None
                time.sleep(0.02)

        yield
    finally:
        os.close(lock)


def _delete_from_keyring(server: str) -> None:
    _ask_keyring(lambda keyring: keyring.delete_password(_SERVICE, server))


def _ask_keyring(work: Callable[[Any], T]) -> T:
    """Call the keyring in a thread, because a locked keyring may wait for a person.

    Raises:
        Unavailable: it does not respond, or refuses.
    """
    answers: list[T] = []
    causes: list[str] = []

    def ask() -> None:
        try:
            import keyring

            answers.append(work(keyring))
        except ImportError:
            causes.append("the package keyring is not installed")
        except Exception as failure:
            # Each backend has its own errors.
            is_locked = type(failure).__name__ == "KeyringLocked"
            causes.append("it is locked" if is_locked else "it refused the request")

    thread = threading.Thread(target=ask, name="keyring", daemon=True)
    thread.start()
    thread.join(KEYRING_SECONDS)

    if answers:
        return answers[0]
    raise Unavailable(
        "The keyring cannot be used",
        cause=causes[0] if causes else f"no answer within {KEYRING_SECONDS:g} seconds",
        hint="unlock it, or keep the tokens in a file: agentctl login --insecure-storage",
    )


def _parse_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _build_unusable_error(path: Path, failure: OSError) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"the sign-in in {path} cannot be used",
        cause=(failure.strerror or "input or output failed").lower(),
        hint="check who owns the file and its directory",
    )
