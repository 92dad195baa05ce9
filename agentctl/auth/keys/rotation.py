"""Another key takes the place of the one that signs, and nobody's token dies of it.

First the new public key goes into the files that verifiers watch, beside the old one; then, once
they have had the time to take it up, the new private key takes the old one's place; at last, once
every token of the old key has expired, its public key is removed. Each step is one file that is
replaced whole. Whoever breaks off between two of them leaves keys that work, and can begin again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from agentctl.auth.keys import files
from agentctl.auth.keys.files import read_private_key
from agentctl.auth.keys.generate import generate_key, key_thumbprint
from agentctl.auth.keys.keyring import load_key_set, read_key_files
from agentctl.auth.keys.material import parse_keys
from agentctl.auth.keys.published import JwksFile, open_published_files
from agentctl.auth.keys.signing import SigningKey, load_signing_key
from agentctl.auth.tokens.algorithms import get_algorithm
from agentctl.auth.tokens.jws import KeySet
from agentctl.errors import Conflict, InvalidKey

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

__all__ = ["Rotation", "open_rotation"]


@contextmanager
def open_rotation(settings: Settings) -> Iterator[Rotation]:
    """The keys of a configuration, for one process at a time to change.

    Raises:
        Conflict: another process changes them.
        InvalidKey: a key is refused.
    """
    with files.lock_folder(settings.signing.key_file.parent):
        yield Rotation(settings)


class Rotation:
    """The signing key, and the files that publish its public key.

    Args:
        settings: the configuration.

    Attributes:
        old: the thumbprint of the key that signed when this was made.
        removable: keys that sign no more, by thumbprint: from when each may be removed, in
            microseconds since the epoch.
        unfinished: a new key was made, and perhaps published, and does not sign yet.

    Raises:
        InvalidKey: a key is refused.
    """

    def __init__(self, settings: Settings) -> None:
        self._given = settings.authorization
        self._key_id = settings.signing.key_id
        self._spec = get_algorithm(self._given.algorithm)
        self._key_file = settings.signing.key_file.resolve()
        self._next_file = self._key_file.with_name(f"{self._key_file.name}.next")
        self._signing = load_signing_key(read_private_key(self._key_file), self._spec)
        self.old_thumbprint = key_thumbprint(self._signing)
        self._files = read_key_files(self._given)
        load_key_set(self._given, self._files)
        self._published = open_published_files(self._given, self._files)
        marks = {
            name: moment
            for file in self._published.values()
            for name, moment in file.removal_times().items()
            if moment is not None
        }
        self.removable = {name: at for name, at in marks.items() if name != self.old_thumbprint}
        self.unfinished = self.old_thumbprint in marks or self._next_file.exists()

    def check(self) -> None:
        """Refuse what cannot be rotated, before anything is changed.

        Raises:
            Conflict: the last rotation is not finished.
            InvalidKey: the public key of the signing key is not where another one can be put.
        """
        if self.removable:
            raise Conflict("The rotation before this one is not finished")
        if any(self._is_ours(text) for text in self._given.verification_keys):
            raise InvalidKey(
                "The key to verify with stands in the configuration itself, which is read once",
                hint="put it into a file, name that in verification_key_files, and restart servers",
            )
        homes = self.publishing_files
        if not homes:
            raise self._unpublished_error()
        if self._key_id and any(isinstance(self._published[path], JwksFile) for path in homes):
            raise InvalidKey(
                f"A new key would be named {self._key_id!r} like the old one, in the same JWKS",
                hint="remove key_id from [signing]: each key is named by its thumbprint then",
            )

    def publish(self, remove_after: int) -> str:
        """Make the new key and put its public key beside the old one, which still signs.

        Args:
            remove_after: when every token of the old key has expired, in microseconds.

        Returns:
            The thumbprint of the new key: that of a rotation that was broken off, if there was one.

        Raises:
            InvalidKey: a file cannot be written, or the set would be refused; that file is as it
                was.
        """
        new = self._load_or_generate_key()
        changed = {
            path: self._published[path].with_new_key(self.old_thumbprint, new, remove_after)
            for path in self.publishing_files
        }
        self._check_old_key_kept(load_key_set(self._given, {**self._files, **changed}))
        self._write(changed)
        return key_thumbprint(new)

    def activate_new_key(self, *, keep: bool) -> Path | None:
        """Put the new private key into the place of the old one. `publish` comes before.

        Args:
            keep: leave the old one beside it, under another name, instead of deleting it.

        Returns:
            Where the old one is.

        Raises:
            InvalidKey: a file cannot be written; the old key still signs.
        """
        aside = (
            self._key_file.with_stem(f"{self._key_file.stem}.{self.old_thumbprint[:8]}")
            if keep
            else None
        )
        try:
            if aside is not None:
                files.link_old_file(self._key_file, aside)
            files.move_file(self._next_file, self._key_file)
        except OSError as failure:
            raise InvalidKey(
                f"The new key cannot take the place of {self._key_file}",
                cause=os.strerror(failure.errno or 0),
            ) from None
        return aside

    def retire(self) -> None:
        """Remove what is removable from the files.

        Raises:
            InvalidKey: a file cannot be written, or no key would be left; that file is as it was.
        """
        changed = {
            path: file.without_keys(self.removable)
            for path, file in self._published.items()
            if not self.removable.keys().isdisjoint(file.removal_times())
        }
        load_key_set(self._given, {**self._files, **changed})
        self._write(changed)

    @property
    def publishing_files(self) -> list[Path]:
        """The files that publish the signing key."""
        return [
            path
            for path, file in self._published.items()
            if self.old_thumbprint in file.removal_times()
        ]

    def _is_ours(self, text: str) -> bool:
        found = parse_keys(text, self._spec, "A key")
        return any(key_thumbprint(key) == self.old_thumbprint for key in found)

    def _unpublished_error(self) -> InvalidKey:
        if self._spec.family == "oct":
            return InvalidKey(
                "A file in verification_key_files holds one shared secret, a rotation needs two",
                hint="keep the secrets in a JWKS (jwks_file), or sign with a key pair",
            )
        return InvalidKey(
            f"No file that servers watch has the public key of {self._key_file}",
            hint="add it to verification_key_files or to the JWKS: `agentctl keys jwks` prints it",
        )

    def _load_or_generate_key(self) -> SigningKey:
        """The key of a rotation that was broken off, else another one."""
        with suppress(InvalidKey):
            return load_signing_key(read_private_key(self._next_file), self._spec)
        old = self._signing.material
        bits = {"rsa_bits": old.key_size} if isinstance(old, RSAPrivateKey) else {}
        data = generate_key(self._spec.name, **bits)
        try:
            self._next_file.unlink(missing_ok=True)
            files.write_with_mode_of(self._next_file, data, self._key_file)
        except OSError as failure:
            raise InvalidKey(
                f"{self._next_file} cannot be written", cause=os.strerror(failure.errno or 0)
            ) from None
        return load_signing_key(data, self._spec)

    def _check_old_key_kept(self, keys: KeySet) -> None:
        """Hold a new set to what the old key still has to verify.

        Raises:
            InvalidKey: the old key would be left out.
        """
        if self.old_thumbprint not in map(key_thumbprint, keys.keys):
            raise InvalidKey(
                "The entry of the signing key has no kid: beside another one it is left out",
                hint=f'give it "kid": "{self.old_thumbprint}" in the JWKS',
            )

    def _write(self, changed: Mapping[Path, bytes]) -> None:
        for path, data in changed.items():
            files.replace_file(path, data)
