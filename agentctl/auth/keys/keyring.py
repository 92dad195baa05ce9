"""The keys that the configuration names, and whether their files have changed since."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from agentctl.auth.keys.files import read_key_file
from agentctl.auth.keys.material import keys_from_text
from agentctl.auth.tokens.algorithms import Spec, spec_of
from agentctl.auth.tokens.jws import KeySet
from agentctl.auth.tokens.strict import NotStrict, parse_object
from agentctl.errors import InvalidKey

if TYPE_CHECKING:
    from agentctl.config.settings import Authorization

__all__ = ["MAXIMUM_WAIT", "Keyring", "load_keys", "read_files"]

MAXIMUM_WAIT = 3
"""Looks at files that are being written before they are read all the same."""

Files = dict[Path, bytes]
Stamp = tuple[int, int, int, int, int] | None

_UNSETTLED = 2_000_000_000
"""Nanoseconds: a file that changed this shortly ago may change again under the same time stamp."""


class Keyring:
    """The key set in use, and the state of the files that it came from.

    A file that another took the place of is whole and read at once. One that is written where it is
    is read when it kept still from one look to the next, after MAXIMUM_WAIT looks in any case, so
    that what is written slowly does not count by half.

    Attributes:
        keys: the last good set; replaced as a whole, never changed.
        problem: why the files as they are now are not in use, or None.

    Args:
        given: `[authorization]`.

    Raises:
        InvalidKey: a key is refused, or there is none.
    """

    def __init__(self, given: Authorization) -> None:
        self._given = given
        self._read = self._seen = _stamps(given)
        self._waited = 0
        self._files = read_files(given)
        self.keys = load_keys(given, self._files)
        self.problem: str | None = None

    def reload(self) -> bool:
        """Look at the files, and read them if they changed; True when other keys are in use now.

        A set that is refused changes nothing but `problem`.
        """
        found = _stamps(self._given)
        if found == self._read and not _unsettled(found):
            return False
        if self._waits(found):
            return False
        # Looked at first, read afterwards: a write in between shows as a change the next time.
        self._read = found
        try:
            return self._take(read_files(self._given))
        except InvalidKey as failure:
            why = failure.detail if failure.cause is None else f"{failure.detail}: {failure.cause}"
            self.problem = f"{why}; the previous keys stay in use"
            return False

    def _waits(self, found: list[Stamp]) -> bool:
        """Whether a file may still be in the middle of being written."""
        before, self._seen = self._seen, found
        if found == before or self._waited >= MAXIMUM_WAIT or not _in_place(before, found):
            self._waited = 0
            return False
        self._waited += 1
        return True

    def _take(self, files: Files) -> bool:
        changed = files != self._files
        if changed:
            self.keys = load_keys(self._given, files)
            self._files = files
        self.problem = None
        return changed


def _key_files(given: Authorization) -> tuple[Path, ...]:
    jwks = () if given.jwks_file is None else (given.jwks_file,)
    return (*given.verification_key_files, *jwks)


def read_files(given: Authorization) -> Files:
    """The contents of every file that holds verification keys.

    Raises:
        InvalidKey: a file is refused; one with a secret must be its owner's alone.
    """
    secret = spec_of(given.algorithm).family == "oct"
    return {path: read_key_file(path, private=secret) for path in _key_files(given)}


def _stamps(given: Authorization) -> list[Stamp]:
    return [_stamp(path) for path in _key_files(given)]


def _stamp(path: Path) -> Stamp:
    """What changes when a file does, without reading it; None: it cannot be seen."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_ctime_ns, found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


def _in_place(before: list[Stamp], found: list[Stamp]) -> bool:
    """Whether a file appeared, or changed and is still the same file."""
    return any(
        new is not None and new != old and (old is None or old[3:] == new[3:])
        for old, new in zip(before, found, strict=True)
    )


def _unsettled(found: list[Stamp]) -> bool:
    now = time.time_ns()
    return any(stamp is not None and abs(now - stamp[0]) < _UNSETTLED for stamp in found)


def load_keys(given: Authorization, files: Files) -> KeySet:
    """All verification keys of the configuration (spec.md "Authentication" 3) as one set.

    Args:
        given: `[authorization]`; JWT_VERIFICATION_KEY and JWT_JWKS_FILE are already in it.
        files: what `read_files` read.

    Raises:
        InvalidKey: a key is refused, or none is configured.
    """
    spec = spec_of(given.algorithm)
    texts = [
        (_entry(number, len(given.verification_keys)), text)
        for number, text in enumerate(given.verification_keys, start=1)
    ]
    texts += [
        (f"Key file {path}", files[path].decode("utf-8", "surrogateescape"))
        for path in given.verification_key_files
    ]
    in_turn = [key for label, text in texts for key in keys_from_text(text, spec, label)]
    if given.jwks_file is None and not in_turn:
        raise _no_keys()
    if given.jwks_file is None:
        return KeySet.of_keys(spec, in_turn)
    named = _from_file(given.jwks_file, files[given.jwks_file], spec)
    return named.joined(KeySet.of_keys(spec, in_turn)) if in_turn else named


def _entry(number: int, count: int) -> str:
    """Where a text was given; the environment's comes behind those of the configuration."""
    source = " (JWT_VERIFICATION_KEY, when set)" if number == count else ""
    return f"authorization.verification_keys entry {number}{source}"


def _from_file(path: Path, data: bytes, spec: Spec) -> KeySet:
    try:
        document = parse_object(data)
    except NotStrict as failure:
        raise InvalidKey(f"JWKS file {path} {failure}") from None
    try:
        return KeySet.from_jwks(document, algorithm=spec.name)
    except InvalidKey as failure:
        raise InvalidKey(
            f"JWKS file {path} is refused", cause=failure.detail, hint=failure.hint
        ) from None


def _no_keys() -> InvalidKey:
    return InvalidKey(
        "Authorization is on and no verification key is configured",
        hint="set authorization.verification_key_files, authorization.jwks_file, "
        "JWT_VERIFICATION_KEY or JWT_JWKS_FILE",
    )
