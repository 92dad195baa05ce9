"""The verification keys of a configuration as `agentctl keys list` shows them, a row each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentctl.errors import InvalidKey

if TYPE_CHECKING:
    from agentctl.auth.jws import KeySet
    from agentctl.auth.publishing import JwksFile
    from agentctl.config.settings import Authorization, Settings

__all__ = ["key_rows"]

Row = dict[str, Any]
Marks = Mapping[str, int | None]


def key_rows(settings: Settings) -> Iterator[Row]:
    """Every key, by source in the order in which these are tried.

    A shared secret has no thumbprint here: the hash of one that can be guessed gives it away.

    Raises:
        InvalidKey: a key is refused.
    """
    signing = _signing_thumbprint(settings)
    for row in _all(settings.authorization):
        name = row["thumbprint"]
        row["signs"] = None if signing is None or name is None else name == signing
        yield row


def _all(given: Authorization) -> Iterator[Row]:
    from agentctl.auth.algorithms import spec_of
    from agentctl.auth.jws import KeySet
    from agentctl.auth.keyring import load_keys, read_files
    from agentctl.auth.material import keys_from_text
    from agentctl.auth.publishing import JwksFile, published

    spec = spec_of(given.algorithm)
    for number, text in enumerate(given.verification_keys, start=1):
        source = f"authorization.verification_keys entry {number}"
        yield from _rows(source, KeySet.of_keys(spec, keys_from_text(text, spec, source)), {})
    for path in given.verification_key_files:
        alone = replace(given, verification_keys=(), verification_key_files=(path,), jwks_file=None)
        files = read_files(alone)
        found = load_keys(alone, files)
        edited = published(alone, files)
        yield from _rows(str(path), found, edited[path].marks() if edited else {})
    if given.jwks_file is not None:
        alone = replace(given, verification_keys=(), verification_key_files=())
        files = read_files(alone)
        found = load_keys(alone, files)
        yield from _jwks_rows(str(given.jwks_file), found, JwksFile(files[given.jwks_file]))


def _rows(source: str, keys: KeySet, marks: Marks) -> Iterator[Row]:
    from agentctl.auth.keys import thumbprint_of

    for key in keys.keys:
        name = None if isinstance(key.material, bytes) else thumbprint_of(key)
        yield {
            "kid": name,
            "algorithm": key.spec.name,
            "used": True,
            "source": source,
            "thumbprint": name,
            "reason": None,
            "use": None,
            "removable_at": _time(marks, name),
        }


def _jwks_rows(source: str, keys: KeySet, file: JwksFile) -> Iterator[Row]:
    from agentctl.auth.jwk import left_out
    from agentctl.auth.publishing import entry_thumbprint

    marks = file.marks()
    reasons = [left_out(entry, keys.spec, "") for entry in file.entries]
    nameless = keys.left_out[len(list(filter(None, reasons))) :]
    for entry, why in zip(file.entries, reasons, strict=True):
        kid, whole = entry.get("kid"), entry_thumbprint(entry)
        name = None if entry["kty"] == "oct" else whole
        if why is None and kid not in keys.by_kid:
            why = nameless[0].reason
        yield {
            "kid": kid or (name if why is None else None),
            "algorithm": keys.spec.name if why is None else entry.get("alg"),
            "used": why is None,
            "source": source,
            "thumbprint": name,
            "reason": why,
            "use": entry.get("use"),
            "removable_at": _time(marks, whole),
        }


def _time(marks: Marks, thumbprint: str | None) -> str | None:
    from agentctl.records.times import rfc3339

    moment = None if thumbprint is None else marks.get(thumbprint)
    return None if moment is None else rfc3339(moment)


def _signing_thumbprint(settings: Settings) -> str | None:
    """That of the key of [signing]; None where there is none, or none that can be used."""
    from agentctl.auth.keys import read_private_key, thumbprint

    try:
        private = read_private_key(settings.signing.key_file)
        return thumbprint(private, settings.authorization.algorithm)
    except InvalidKey:
        return None
