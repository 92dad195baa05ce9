"""The keys that the configuration names, and whether their files have changed since."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from agentctl.auth.keys.files import read_key_file
from agentctl.auth.keys.material import parse_keys
from agentctl.auth.tokens.algorithms import AlgorithmSpec, get_algorithm
from agentctl.auth.tokens.jws import KeySet
from agentctl.auth.tokens.strict import NotStrict, parse_object
from agentctl.errors import InvalidKey

if TYPE_CHECKING:
    from agentctl.config.settings import Authorization

__all__ = ["MAXIMUM_POLLS", "Keyring", "load_key_set", "read_key_files"]

MAXIMUM_POLLS = 3
"""Looks at files that are being written before they are read all the same."""

KeyFiles = dict[Path, bytes]
FileStamp = tuple[int, int, int, int, int] | None

_RECENT_NANOSECONDS = 2_000_000_000
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
        self._read = self._seen = _stamp_files(given)
        self._waited = 0
        self._files = read_key_files(given)
        self.keys = load_key_set(given, self._files)
        self.problem: str | None = None

    def reload(self) -> bool:
        """Look at the files, and read them if they changed; True when other keys are in use now.

        A set that is refused changes nothing but `problem`.
        """
        found = _stamp_files(self._given)
        if found == self._read and not _is_recent(found):
            return False
        if self._must_wait(found):
            return False
        # Looked at first, read afterwards: a write in between shows as a change the next time.
        self._read = found
        try:
            return self._take(read_key_files(self._given))
        except InvalidKey as failure:
            why = failure.detail if failure.cause is None else f"{failure.detail}: {failure.cause}"
            self.problem = f"{why}; the previous keys stay in use"
            return False

    def _must_wait(self, found: list[FileStamp]) -> bool:
        """Whether a file may still be in the middle of being written."""
        before, self._seen = self._seen, found
        if (
            found == before
            or self._waited >= MAXIMUM_POLLS
            or not _is_written_in_place(before, found)
        ):
            self._waited = 0
            return False
        self._waited += 1
        return True

    def _take(self, files: KeyFiles) -> bool:
        changed = files != self._files
        if changed:
            self.keys = load_key_set(self._given, files)
            self._files = files
        self.problem = None
        return changed


def _key_files(given: Authorization) -> tuple[Path, ...]:
    jwks = () if given.jwks_file is None else (given.jwks_file,)
    return (*given.verification_key_files, *jwks)


def read_key_files(given: Authorization) -> KeyFiles:
    """The contents of every file that holds verification keys.

    Raises:
        InvalidKey: a file is refused; one with a secret must be its owner's alone.
    """
    secret = get_algorithm(given.algorithm).family == "oct"
    return {path: read_key_file(path, private=secret) for path in _key_files(given)}


def _stamp_files(given: Authorization) -> list[FileStamp]:
    return [_stamp_file(path) for path in _key_files(given)]


def _stamp_file(path: Path) -> FileStamp:
    """What changes when a file does, without reading it; None: it cannot be seen."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_ctime_ns, found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


def _is_written_in_place(before: list[FileStamp], found: list[FileStamp]) -> bool:
    """Whether a file appeared, or changed and is still the same file."""
    return any(
        new is not None and new != old and (old is None or old[3:] == new[3:])
        for old, new in zip(before, found, strict=True)
    )


def _is_recent(found: list[FileStamp]) -> bool:
    now = time.time_ns()
    return any(stamp is not None and abs(now - stamp[0]) < _RECENT_NANOSECONDS for stamp in found)


def load_key_set(given: Authorization, files: KeyFiles) -> KeySet:
    """All verification keys of the configuration (spec.md "Authentication" 3) as one set.

    Args:
        given: `[authorization]`; JWT_VERIFICATION_KEY and JWT_JWKS_FILE are already in it.
        files: what `read_files` read.

    Raises:
        InvalidKey: a key is refused, or none is configured.
    """
    spec = get_algorithm(given.algorithm)
    texts = [
        (_entry_label(number, len(given.verification_keys)), text)
        for number, text in enumerate(given.verification_keys, start=1)
    ]
    texts += [
        (f"Key file {path}", files[path].decode("utf-8", "surrogateescape"))
        for path in given.verification_key_files
    ]
    in_turn = [key for label, text in texts for key in parse_keys(text, spec, label)]
    if given.jwks_file is None and not in_turn:
        raise _missing_keys()
    if given.jwks_file is None:
        return KeySet.from_keys(spec, in_turn)
    named = _load_jwks_file(given.jwks_file, files[given.jwks_file], spec)
    return named.merge(KeySet.from_keys(spec, in_turn)) if in_turn else named


def _entry_label(number: int, count: int) -> str:
    """Where a text was given; the environment's comes behind those of the configuration."""
    source = " (JWT_VERIFICATION_KEY, when set)" if number == count else ""
    return f"authorization.verification_keys entry {number}{source}"


def _load_jwks_file(path: Path, data: bytes, spec: AlgorithmSpec) -> KeySet:
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


def _missing_keys() -> InvalidKey:
    return InvalidKey(
        "Authorization is on and no verification key is configured",
        hint="set authorization.verification_key_files, authorization.jwks_file, "
        "JWT_VERIFICATION_KEY or JWT_JWKS_FILE",
    )
