"""Key rotation: replaces the signing key without rejecting valid tokens.

A rotation has three steps. It adds the new public key to the files that verifiers watch. When they
have loaded it, the new private key replaces the old one. When every token of the old key has
expired, its public key is removed. Each step replaces files by a rename. After an interruption
between two steps all tokens still verify, and the rotation can be started again.

The edited files have several PEM keys, or a JWKS. The previous signing key gets a mark with the
time from which it may be removed. Verifiers ignore the mark: text outside of PEM blocks (RFC 7468
2) and unknown members of a JWK (RFC 7517 4) have no meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from agentctl.auth.keys import files
from agentctl.auth.keys.files import read_private_key
from agentctl.auth.keys.keyring import load_key_set, read_key_files
from agentctl.auth.keys.material import PEM_BLOCK, parse_keys
from agentctl.auth.keys.signing import (
    SigningKey,
    build_jwk,
    encode_public_pem,
    generate_key,
    key_thumbprint,
    load_signing_key,
)
from agentctl.auth.tokens.algorithms import AlgorithmSpec, get_algorithm
from agentctl.auth.tokens.jwk import jwk_thumbprint
from agentctl.config.settings import Authorization, Settings
from agentctl.errors import Conflict, InvalidKey
from agentctl.records.strict import parse_document
from agentctl.records.times import format_rfc3339, parse_rfc3339

REMOVE_AFTER_MEMBER = "agentctl_remove_after"
"""The member of a JWK with the mark."""

_REMOVE_AFTER_LINE = "agentctl: remove after "
_BLOCK = re.compile(
    rf"(?:^{_REMOVE_AFTER_LINE}(?P<mark>\S+)\r?\n)?(?P<pem>{PEM_BLOCK}(?:\r?\n)?)", re.MULTILINE
)


class PemFile:
    """A file of PEM public keys.

    Args:
        data: the content of the file, which `keyring.load_key_set` accepts.
    """

    def __init__(self, data: bytes, spec: AlgorithmSpec) -> None:
        self._text = data.decode("utf-8", "surrogateescape")
        self._spec = spec

    def removal_times(self) -> dict[str, int | None]:
        """Return the time from which each key may be removed, by thumbprint.

        Times are microseconds since the epoch; None for a key without a mark.
        """
        blocks = _BLOCK.finditer(self._text)
        return {self._thumbprint(block["pem"]): _parse_mark(block["mark"]) for block in blocks}

    def with_new_key(self, old: str, new: SigningKey, remove_after: int) -> bytes:
        """Return the content with a mark for key `old` and with the public key of `new`."""

        def mark(block: re.Match[str]) -> str:
            if self._thumbprint(block["pem"]) != old:
                return block[0]
            return f"{_REMOVE_AFTER_LINE}{format_rfc3339(remove_after)}\n{block['pem']}"

        text = _BLOCK.sub(mark, self._text)
        first = ""
        if key_thumbprint(new) not in self.removal_times():
            first = encode_public_pem(new).decode("ascii")
        return _encode_text(first + text)

    def without_keys(self, thumbprints: Collection[str]) -> bytes:
        """Return the content without some keys."""

        def drop(block: re.Match[str]) -> str:
            return "" if self._thumbprint(block["pem"]) in thumbprints else block[0]

        return _encode_text(_BLOCK.sub(drop, self._text))

    def _thumbprint(self, pem: str) -> str:
        (key,) = parse_keys(pem, self._spec, "A key")
        return key_thumbprint(key)


class JwksFile:
    """A JWKS file."""

    def __init__(self, data: bytes) -> None:
        self._document = parse_document(data)

    @property
    def entries(self) -> list[Any]:
        """The entries of the file, unchanged; an entry of another program can be any value."""
        entries: list[Any] = self._document["keys"]
        return entries

    def removal_times(self) -> dict[str, int | None]:
        """Return the same as `PemFile.removal_times`; entries without a thumbprint are left out."""
        times = dict[str, int | None]()
        for entry in self.entries:
            thumbprint = entry_thumbprint(entry)
            if thumbprint is not None:
                times[thumbprint] = _parse_mark(entry.get(REMOVE_AFTER_MEMBER))
        return times

    def with_new_key(self, old: str, new: SigningKey, remove_after: int) -> bytes:
        """Return the content with a mark for key `old` and with an entry for key `new`."""
        entries = list[Any]()
        for entry in self.entries:
            if entry_thumbprint(entry) == old:
                entries.append({**entry, REMOVE_AFTER_MEMBER: format_rfc3339(remove_after)})
            else:
                entries.append(entry)
        if key_thumbprint(new) not in self.removal_times():
            entries.append(build_jwk(new))
        return self._encode(entries)

    def without_keys(self, thumbprints: Collection[str]) -> bytes:
        """Return the content without some keys."""
        return self._encode(
            [entry for entry in self.entries if entry_thumbprint(entry) not in thumbprints]
        )

    def _encode(self, entries: list[Any]) -> bytes:
        return json.dumps({**self._document, "keys": entries}, indent=2).encode("ascii") + b"\n"


PublishedKeyFile = PemFile | JwksFile


def open_published_files(
    authorization: Authorization, files: Mapping[Path, bytes]
) -> dict[Path, PublishedKeyFile]:
    """Return the files of verification keys that can contain several keys.

    A file of `verification_key_files` with a shared secret cannot.
    """
    spec = get_algorithm(authorization.algorithm)
    published_files = dict[Path, PublishedKeyFile]()

    if spec.family != "oct":
        for path in authorization.verification_key_files:
            published_files[path] = PemFile(files[path], spec)
    for path in authorization.jwks_file:
        published_files[path] = JwksFile(files[path])

    return published_files


def entry_thumbprint(entry: object) -> str | None:
    """Return the thumbprint of an entry of a JWKS; None if it has none."""
    if not isinstance(entry, Mapping):
        return None
    with suppress(InvalidKey, UnicodeEncodeError):
        return jwk_thumbprint(entry)
    return None


def _parse_mark(mark: object) -> int | None:
    if mark is None:
        return None
    try:
        return parse_rfc3339(str(mark))
    except ValueError:
        raise InvalidKey("The time from which a key may be removed is not in RFC 3339") from None


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


@contextmanager
def open_rotation(settings: Settings) -> Iterator[Rotation]:
    """Lock the folder of the signing key and yield the rotation of a configuration.

    Raises:
        Conflict: another process rotates these keys.
        InvalidKey: a key is rejected.
    """
    with files.lock_folder(settings.signing.key_file.parent):
        yield Rotation(settings)


class Rotation:
    """The signing key, and the files that publish its public key.

    Attributes:
        old_thumbprint: the thumbprint of the signing key at the start.
        removable: earlier signing keys by thumbprint, with the time from which each may be
            removed, in microseconds since the epoch.
        unfinished: True if an interrupted rotation has created a new key that does not sign yet.

    Raises:
        InvalidKey: a key is rejected.
    """

    def __init__(self, settings: Settings) -> None:
        self._authorization = settings.authorization
        self._key_id = settings.signing.key_id
        self._spec = get_algorithm(self._authorization.algorithm)
        self._key_file = settings.signing.key_file.resolve()
        self._next_file = self._key_file.with_name(f"{self._key_file.name}.next")

        self._signing = load_signing_key(read_private_key(self._key_file), self._spec)
        self.old_thumbprint = key_thumbprint(self._signing)

        self._files = read_key_files(self._authorization)
        load_key_set(self._authorization, self._files)
        self._published = open_published_files(self._authorization, self._files)

        marks = {
            name: moment
            for file in self._published.values()
            for name, moment in file.removal_times().items()
            if moment is not None
        }

        self.removable = {name: at for name, at in marks.items() if name != self.old_thumbprint}
        self.unfinished = self.old_thumbprint in marks or self._next_file.exists()

    def check(self) -> None:
        """Reject a configuration that cannot be rotated, before any change.

        Raises:
            Conflict: the previous rotation is not finished.
            InvalidKey: the public key is not in a file that can contain a second key.
        """
        if self.removable:
            raise Conflict("The previous rotation is not finished")

        configured = self._authorization.verification_keys
        keys = [key for text in configured for key in parse_keys(text, self._spec, "A key")]
        if self.old_thumbprint in map(key_thumbprint, keys):
            raise InvalidKey(
                "The verification key is in the configuration itself, which servers read once",
                hint="move it to a file, add that to verification_key_files, restart the servers",
            )

        publishing_files = self.publishing_files
        if not publishing_files and self._spec.family == "oct":
            raise InvalidKey(
                "A file in verification_key_files has one shared secret, a rotation needs two",
                hint="store the secrets in a JWKS (jwks_file), or sign with a key pair",
            )
        if not publishing_files:
            raise InvalidKey(
                f"No verification key file has the public key of {self._key_file}",
                hint="add it to verification_key_files or to the JWKS: "
                "`agentctl keys jwks` prints it",
            )

        is_in_jwks = any(isinstance(self._published[path], JwksFile) for path in publishing_files)
        if self._key_id and is_in_jwks:
            raise InvalidKey(
                f"The new key would have the kid {self._key_id!r} of the old one in the same JWKS",
                hint="remove key_id from [signing]: the kid of a key is then its thumbprint",
            )

    def publish_new_key(self, remove_after: int) -> str:
        """Generate the new key and publish it; the old key still signs.

        Args:
            remove_after: the time when every token of the old key has expired, in microseconds
                since the epoch.

        Returns:
            The thumbprint of the new key; an interrupted rotation has it already.

        Raises:
            InvalidKey: a file cannot be written or the new set is not valid; the file is unchanged.
        """
        new = self._load_or_generate_key()

        changed = {
            path: self._published[path].with_new_key(self.old_thumbprint, new, remove_after)
            for path in self.publishing_files
        }

        keys = load_key_set(self._authorization, {**self._files, **changed}).keys
        if self.old_thumbprint not in map(key_thumbprint, keys):
            raise InvalidKey(
                "The entry of the signing key has no kid: next to another entry it is skipped",
                hint=f'give it "kid": "{self.old_thumbprint}" in the JWKS',
            )

        self._write(changed)
        return key_thumbprint(new)

    def activate_new_key(self, *, keep: bool) -> Path | None:
        """Replace the old private key with the new one, after `publish_new_key`.

        Args:
            keep: keep the old key under another name in the same folder.

        Returns:
            The path of the old key, or None without `keep`.

        Raises:
            InvalidKey: a file cannot be written; the old key still signs.
        """
        backup = None
        if keep:
            backup = self._key_file.with_stem(f"{self._key_file.stem}.{self.old_thumbprint[:8]}")

        try:
            if backup is not None:
                files.link_old_file(self._key_file, backup)
            files.move_file(self._next_file, self._key_file)
        except OSError as failure:
            detail = f"The new key cannot replace {self._key_file}"
            raise files.build_file_error(detail, failure) from None

        return backup

    def remove_old_keys(self) -> None:
        """Remove the keys in `removable` from the files.

        Raises:
            InvalidKey: a file cannot be written or no key would be left; the file is unchanged.
        """
        changed = {
            path: file.without_keys(self.removable)
            for path, file in self._published.items()
            if not self.removable.keys().isdisjoint(file.removal_times())
        }
        load_key_set(self._authorization, {**self._files, **changed})
        self._write(changed)

    @property
    def publishing_files(self) -> list[Path]:
        """The files that publish the signing key."""
        return [
            path
            for path, file in self._published.items()
            if self.old_thumbprint in file.removal_times()
        ]

    def _load_or_generate_key(self) -> SigningKey:
        # An interrupted rotation may have published the public key of this file already.
        with suppress(InvalidKey):
            return load_signing_key(read_private_key(self._next_file), self._spec)

        old_key = self._signing.material
        if isinstance(old_key, RSAPrivateKey):
            data = generate_key(self._spec.name, rsa_bits=old_key.key_size)
        else:
            data = generate_key(self._spec.name)

        try:
            self._next_file.unlink(missing_ok=True)
            files.write_with_mode_of(self._next_file, data, self._key_file)
        except OSError as failure:
            raise files.build_file_error(f"{self._next_file} cannot be written", failure) from None

        return load_signing_key(data, self._spec)

    def _write(self, changed: Mapping[Path, bytes]) -> None:
        for path, data in changed.items():
            files.replace_file(path, data)
