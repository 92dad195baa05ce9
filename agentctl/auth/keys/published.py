"""Files of verification keys as a rotation edits them: PEM keys one below the other, or a JWKS.

A key that signs no more is marked with the time from which it may be removed. Whoever verifies does
not see the mark: text outside of PEM blocks (RFC 7468 2) and members of a JWK that nobody knows
(RFC 7517 4) mean nothing to them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentctl.auth.keys.generate import build_jwk, encode_public_pem, key_thumbprint
from agentctl.auth.keys.material import parse_keys
from agentctl.auth.keys.signing import SigningKey
from agentctl.auth.tokens.algorithms import AlgorithmSpec, get_algorithm
from agentctl.auth.tokens.jwk import jwk_thumbprint as jwk_thumbprint
from agentctl.auth.tokens.strict import parse_object
from agentctl.errors import InvalidKey
from agentctl.records.times import format_rfc3339, parse_rfc3339

if TYPE_CHECKING:
    from agentctl.config.settings import Authorization

__all__ = [
    "REMOVE_AFTER_MEMBER",
    "JwksFile",
    "PemFile",
    "PublishedKeyFile",
    "entry_thumbprint",
    "open_published_files",
]

REMOVE_AFTER_MEMBER = "agentctl_remove_after"
"""The member of a JWK that is the mark."""

_REMOVE_AFTER_LINE = "agentctl: remove after "
_BLOCK = re.compile(
    rf"(?:^{_REMOVE_AFTER_LINE}(?P<mark>\S+)\r?\n)?"
    r"(?P<pem>-----BEGIN (?P<kind>[A-Z0-9 ]+)-----(?:[^-]|-(?!----))*+-----END (?P=kind)-----"
    r"(?:\r?\n)?)",
    re.MULTILINE,
)


class PemFile:
    """A file of PEM public keys.

    Args:
        data: its bytes, which `keyring.load_keys` takes.
        spec: the algorithm of its keys.
    """

    def __init__(self, data: bytes, spec: AlgorithmSpec) -> None:
        self._text = data.decode("utf-8", "surrogateescape")
        self._spec = spec

    def removal_times(self) -> dict[str, int | None]:
        """Its keys by thumbprint: from when each may be removed, in microseconds; None: not yet."""
        blocks = _BLOCK.finditer(self._text)
        return {self._thumbprint(block["pem"]): _parse_mark(block["mark"]) for block in blocks}

    def with_new_key(self, old: str, new: SigningKey, remove_after: int) -> bytes:
        """Its bytes with one key marked, and the public key of another one in it."""

        def mark(block: re.Match[str]) -> str:
            if self._thumbprint(block["pem"]) != old:
                return block[0]
            return f"{_REMOVE_AFTER_LINE}{format_rfc3339(remove_after)}\n{block['pem']}"

        text = _BLOCK.sub(mark, self._text)
        first = (
            ""
            if key_thumbprint(new) in self.removal_times()
            else encode_public_pem(new).decode("ascii")
        )
        return _encode_text(first + text)

    def without_keys(self, thumbprints: Collection[str]) -> bytes:
        """Its bytes without some keys."""

        def kept(block: re.Match[str]) -> str:
            return "" if self._thumbprint(block["pem"]) in thumbprints else block[0]

        return _encode_text(_BLOCK.sub(kept, self._text))

    def _thumbprint(self, pem: str) -> str:
        (key,) = parse_keys(pem, self._spec, "A key")
        return key_thumbprint(key)


class JwksFile:
    """A JWKS file.

    Args:
        data: its bytes, which `keyring.load_keys` takes.
    """

    def __init__(self, data: bytes) -> None:
        self._document = parse_object(data)

    @property
    def entries(self) -> list[dict[str, Any]]:
        """Its entries as they stand there."""
        entries: list[dict[str, Any]] = self._document["keys"]
        return entries

    def removal_times(self) -> dict[str, int | None]:
        """As `PemFile.marks`."""
        return {
            name: _parse_mark(entry.get(REMOVE_AFTER_MEMBER))
            for entry in self.entries
            if (name := entry_thumbprint(entry)) is not None
        }

    def with_new_key(self, old: str, new: SigningKey, remove_after: int) -> bytes:
        """As `PemFile.rotated`."""
        entries = [
            {**entry, REMOVE_AFTER_MEMBER: format_rfc3339(remove_after)}
            if entry_thumbprint(entry) == old
            else entry
            for entry in self.entries
        ]
        if key_thumbprint(new) not in self.removal_times():
            entries.append(build_jwk(new))
        return self._encode(entries)

    def without_keys(self, thumbprints: Collection[str]) -> bytes:
        """As `PemFile.without`."""
        return self._encode(
            [entry for entry in self.entries if entry_thumbprint(entry) not in thumbprints]
        )

    def _encode(self, entries: list[dict[str, Any]]) -> bytes:
        return json.dumps({**self._document, "keys": entries}, indent=2).encode("ascii") + b"\n"


PublishedKeyFile = PemFile | JwksFile


def open_published_files(
    given: Authorization, files: Mapping[Path, bytes]
) -> dict[Path, PublishedKeyFile]:
    """The files of verification keys in which a key can take the place of another.

    A file of `verification_key_files` that is a shared secret is none: it has room for one.

    Args:
        given: `[authorization]`.
        files: what `keyring.read_files` read and `keyring.load_keys` took.
    """
    spec = get_algorithm(given.algorithm)
    found: dict[Path, PublishedKeyFile] = {}
    if spec.family != "oct":
        found.update({path: PemFile(files[path], spec) for path in given.verification_key_files})
    if given.jwks_file is not None:
        found[given.jwks_file] = JwksFile(files[given.jwks_file])
    return found


def entry_thumbprint(entry: Mapping[str, Any]) -> str | None:
    """The thumbprint of an entry of a JWKS; None for one of a kind that has none."""
    with suppress(InvalidKey, UnicodeEncodeError):
        return jwk_thumbprint(entry)
    return None


def _parse_mark(mark: object) -> int | None:
    if mark is None:
        return None
    try:
        return parse_rfc3339(str(mark))
    except ValueError:
        raise InvalidKey(
            "The time from which a key may be removed is not one of RFC 3339"
        ) from None


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
