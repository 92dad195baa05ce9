"""Files of verification keys that a rotation edits: several PEM keys, or a JWKS.

The previous signing key gets a mark with the time from which it may be removed. Verifiers ignore
the mark: text outside of PEM blocks (RFC 7468 2) and unknown members of a JWK (RFC 7517 4) have no
meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentctl.auth.keys.generate import build_jwk, encode_public_pem, key_thumbprint
from agentctl.auth.keys.material import PEM_BLOCK, parse_keys
from agentctl.auth.keys.signing import SigningKey
from agentctl.auth.tokens.algorithms import AlgorithmSpec, get_algorithm
from agentctl.auth.tokens.jwk import jwk_thumbprint
from agentctl.errors import InvalidKey
from agentctl.records.strict import parse_object
from agentctl.records.times import format_rfc3339, parse_rfc3339

if TYPE_CHECKING:
    from agentctl.config.settings import Authorization

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
        spec: the algorithm of its keys.
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
        first = (
            ""
            if key_thumbprint(new) in self.removal_times()
            else encode_public_pem(new).decode("ascii")
        )
        return _encode_text(first + text)

    def without_keys(self, thumbprints: Collection[str]) -> bytes:
        """Return the content without some keys."""

        def kept(block: re.Match[str]) -> str:
            return "" if self._thumbprint(block["pem"]) in thumbprints else block[0]

        return _encode_text(_BLOCK.sub(kept, self._text))

    def _thumbprint(self, pem: str) -> str:
        (key,) = parse_keys(pem, self._spec, "A key")
        return key_thumbprint(key)


class JwksFile:
    """A JWKS file.

    Args:
        data: the content of the file, which `keyring.load_key_set` accepts.
    """

    def __init__(self, data: bytes) -> None:
        self._document = parse_object(data)

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The entries of the file, unchanged."""
        entries: list[dict[str, Any]] = self._document["keys"]
        return entries

    def removal_times(self) -> dict[str, int | None]:
        return {
            name: _parse_mark(entry.get(REMOVE_AFTER_MEMBER))
            for entry in self.entries
            if (name := entry_thumbprint(entry)) is not None
        }

    def with_new_key(self, old: str, new: SigningKey, remove_after: int) -> bytes:
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
        return self._encode(
            [entry for entry in self.entries if entry_thumbprint(entry) not in thumbprints]
        )

    def _encode(self, entries: list[dict[str, Any]]) -> bytes:
        return json.dumps({**self._document, "keys": entries}, indent=2).encode("ascii") + b"\n"


PublishedKeyFile = PemFile | JwksFile


def open_published_files(
    authorization: Authorization, files: Mapping[Path, bytes]
) -> dict[Path, PublishedKeyFile]:
    """Return the files of verification keys that can contain several keys.

    A file of `verification_key_files` with a shared secret cannot.

    Args:
        authorization: `[authorization]`.
        files: the result of `keyring.read_key_files`, which `keyring.load_key_set` accepts.
    """
    spec = get_algorithm(authorization.algorithm)
    opened: dict[Path, PublishedKeyFile] = {}
    if spec.family != "oct":
        opened.update(
            {path: PemFile(files[path], spec) for path in authorization.verification_key_files}
        )
    if authorization.jwks_file is not None:
        opened[authorization.jwks_file] = JwksFile(files[authorization.jwks_file])
    return opened


def entry_thumbprint(entry: Mapping[str, Any]) -> str | None:
    """Return the thumbprint of an entry of a JWKS; None for a key type without one."""
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
