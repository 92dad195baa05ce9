"""Load the verification keys of the configuration, and reload changed key files."""

from __future__ import annotations

import logging
import time
from functools import reduce
from pathlib import Path
from typing import NamedTuple

from agentctl.auth.keys.files import read_key_file
from agentctl.auth.keys.material import VerificationKey, parse_keys
from agentctl.auth.tokens.algorithms import AlgorithmSpec, get_algorithm
from agentctl.auth.tokens.jws import KeySet
from agentctl.config.settings import Authorization
from agentctl.errors import InvalidKey
from agentctl.records.strict import NotStrict, parse_document

MAXIMUM_POLLS = 3
"""Polls that wait for a file to be written completely, before it is read anyway."""

_log = logging.getLogger("agentctl.auth")

KeyFiles = dict[Path, bytes]
"""The content of key files by their paths."""

_RECENT_NANOSECONDS = 2_000_000_000
"""A file that changed within this time may change again without a new time stamp."""


class _FileStamp(NamedTuple):
    """The state of a file, which differs after a change; times are nanoseconds since the epoch."""

    changed_at: int
    modified_at: int
    size: int
    inode: int
    device: int


class Keyring:
    """The key set in use and the state of its files.

    A file that was replaced by a rename is complete and is read at once. A file that is written in
    place is read after it did not change between two polls, or after MAXIMUM_POLLS polls, so that
    a half-written file is not used.

    Attributes:
        keys: the last valid key set; it is replaced and never modified.
        problem: the reason why the current files are not in use, or None.

    Raises:
        InvalidKey: a key is rejected, or there is none.
    """

    def __init__(self, authorization: Authorization) -> None:
        self._authorization = authorization

        # The stamps are older than the content: the next poll detects a write in between.
        self._read_stamps = _stamp_files(authorization)
        self._polled_stamps = self._read_stamps
        self._polls_waited = 0

        self._files = read_key_files(authorization)
        self.keys = load_key_set(authorization, self._files)
        log_faults(self.keys, "the key files")
        self.problem: str | None = None

    def reload(self) -> bool:
        """Poll the files and load changed files; return True if other keys are in use now.

        If the files are rejected, the keys stay and `problem` is set.
        """
        stamps = _stamp_files(self._authorization)
        if stamps == self._read_stamps and not _has_recent_change(stamps):
            return False

        earlier_stamps = self._polled_stamps
        self._polled_stamps = stamps
        if self._polls_waited < MAXIMUM_POLLS and _is_written_in_place(earlier_stamps, stamps):
            self._polls_waited += 1
            return False

        self._polls_waited = 0
        # The stamps are older than the content: the next poll detects a write in between.
        self._read_stamps = stamps

        try:
            files = read_key_files(self._authorization)
            changed = files != self._files
            if changed:
                self.keys = load_key_set(self._authorization, files)
                log_faults(self.keys, "the key files")
        except InvalidKey as failure:
            self.problem = f"{failure.detail_with_cause}; the previous keys stay in use"
            return False

        self._files = files
        self.problem = None
        return changed


def _key_files(authorization: Authorization) -> tuple[Path, ...]:
    return (*authorization.verification_key_files, *authorization.jwks_file)


def read_key_files(authorization: Authorization) -> KeyFiles:
    """Read all files with verification keys.

    Raises:
        InvalidKey: a file is rejected, or other users can read a file with a secret.
    """
    has_secrets = get_algorithm(authorization.algorithm).family == "oct"
    return {path: read_key_file(path, private=has_secrets) for path in _key_files(authorization)}


def _stamp_files(authorization: Authorization) -> list[_FileStamp | None]:
    return [_stamp_file(path) for path in _key_files(authorization)]


def _stamp_file(path: Path) -> _FileStamp | None:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return _FileStamp(
        changed_at=status.st_ctime_ns,
        modified_at=status.st_mtime_ns,
        size=status.st_size,
        inode=status.st_ino,
        device=status.st_dev,
    )


def _is_written_in_place(before: list[_FileStamp | None], after: list[_FileStamp | None]) -> bool:
    """Return True if a file is new or changed since the last poll, and was not replaced."""
    for old, new in zip(before, after, strict=True):
        if new is None or new == old:
            continue
        # A rename puts another file at the path: it is complete.
        was_replaced = old is not None and (old.inode, old.device) != (new.inode, new.device)
        if not was_replaced:
            return True
    return False


def _has_recent_change(stamps: list[_FileStamp | None]) -> bool:
    now = time.time_ns()
    return any(
        stamp is not None and abs(now - stamp.changed_at) < _RECENT_NANOSECONDS for stamp in stamps
    )


def log_faults(keys: KeySet, source: str) -> None:
    """Warn of each entry of a loaded key set that is left out and that someone has to correct."""
    for entry in keys.faults:
        _log.warning("%s of %s is left out: %s", entry.label, source, entry.reason)


def has_remote_keys(authorization: Authorization) -> bool:
    """Return True if keys are fetched over HTTP (`auth.keys.remote`)."""
    return bool(authorization.jwks_url) or authorization.oidc_discovery


def load_key_set(authorization: Authorization, files: KeyFiles) -> KeySet:
    """Load all configured verification keys as one set (docs/contract.md "Authentication").

    Args:
        authorization: `[authorization]`, including JWT_VERIFICATION_KEY and JWT_JWKS_FILE.
        files: the result of `read_key_files`.

    Raises:
        InvalidKey: a key is rejected, or none is configured and none is fetched over HTTP.
    """
    spec = get_algorithm(authorization.algorithm)

    unnamed_keys = list[VerificationKey]()
    for number, text in enumerate(authorization.verification_keys, start=1):
        label = _label_entry(number, len(authorization.verification_keys))
        unnamed_keys += parse_keys(text, spec, label)
    for path in authorization.verification_key_files:
        text = files[path].decode("utf-8", "surrogateescape")
        unnamed_keys += parse_keys(text, spec, f"Key file {path}")

    sets = [_load_jwks_file(path, files[path], spec) for path in authorization.jwks_file]
    if unnamed_keys:
        sets.append(KeySet.from_keys(spec, unnamed_keys))

    if not sets and not has_remote_keys(authorization):
        raise InvalidKey(
            "Authorization is on, but no verification key is configured",
            hint="set authorization.verification_key_files, authorization.jwks_file, "
            "JWT_VERIFICATION_KEY or JWT_JWKS_FILE",
        )
    return reduce(KeySet.merge, sets or [KeySet(spec, {})])


def _label_entry(number: int, count: int) -> str:
    # The key of the variable is added after those of the configuration file.
    source = " (JWT_VERIFICATION_KEY, when set)" if number == count else ""
    return f"authorization.verification_keys entry {number}{source}"


def _load_jwks_file(path: Path, data: bytes, spec: AlgorithmSpec) -> KeySet:
    try:
        document = parse_document(data)
    except NotStrict as failure:
        raise InvalidKey(f"JWKS file {path} {failure}") from None
    try:
        return KeySet.from_jwks(document, algorithm=spec.name)
    except InvalidKey as failure:
        raise InvalidKey(
            f"JWKS file {path} is not valid", cause=failure.detail_with_cause, hint=failure.hint
        ) from None
