"""`agentctl keys list`: the keys that verify tokens, and the one that signs them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from agentctl.cli.options import Config, Fields, Output
from agentctl.cli.show.output import resolve_format, show_list
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.show.terminal import note
from agentctl.errors import InvalidKey

if TYPE_CHECKING:
    from agentctl.auth.keys.published import JwksFile
    from agentctl.auth.tokens.jws import KeySet
    from agentctl.config.settings import Authorization, Settings

FETCH_SECONDS = 20.0
"""Seconds to wait for the keys of an identity provider."""

Row = dict[str, Any]
RemovalTimes = Mapping[str, int | None]
"""The times from which replaced keys can be removed, by thumbprint: microseconds UTC."""


def _shorten_path(source: str) -> str:
    seen = os.path.relpath(source) if os.path.isabs(source) else source  # noqa: PTH117 - text
    return min(source, seen, key=len)


_COLUMNS = Columns(
    tsv=[
        *plain_columns("kid", "algorithm", "used", "source", "thumbprint"),
        *plain_columns("reason", "use", "signs", "removable_at"),
    ],
    table=[
        *plain_columns("kid", "used", "algorithm", "use", "signs"),
        Column("source", lambda row: _shorten_path(row["source"]), look="whole"),
        Column("reason", look="whole"),
        Column("removable_at"),
    ],
)


def list_keys(config: Config = None, output: Output = None, fields: Fields = None) -> None:
    """List the keys that verify tokens, and mark the one that signs them.

    The keys of jwks_url and of an issuer are fetched. Unusable entries of a JWKS are listed with
    the reason, replaced keys with the time from which they can be removed.
    """
    from agentctl.config import load_settings

    output_format = resolve_format(output)
    settings = load_settings(config)
    if not settings.authorization.enabled:
        note("authorization is disabled: tokens are not verified")
    show_list(
        list(list_verification_keys(settings)),
        _COLUMNS,
        output_format,
        id_field="kid",
        fields=fields,
    )


def list_verification_keys(settings: Settings) -> Iterator[Row]:
    """Yield a row for each verification key, in the order in which the verifier tries them.

    A shared secret has no thumbprint: its hash would help to guess it.

    Raises:
        InvalidKey: a key is invalid.
    """
    from agentctl.auth.keys.files import read_private_key
    from agentctl.auth.keys.generate import signing_key_thumbprint

    signing = None
    with suppress(InvalidKey):
        private = read_private_key(settings.signing.key_file)
        signing = signing_key_thumbprint(private, settings.authorization.algorithm)
    for row in chain(_list_configured_keys(settings.authorization), _list_fetched_keys(settings)):
        name = row["thumbprint"]
        row["signs"] = None if signing is None or name is None else name == signing
        yield row


def _list_configured_keys(table: Authorization) -> Iterator[Row]:
    from agentctl.auth.keys.keyring import load_key_set, read_key_files
    from agentctl.auth.keys.material import parse_keys
    from agentctl.auth.keys.published import JwksFile, open_published_files
    from agentctl.auth.tokens.algorithms import get_algorithm
    from agentctl.auth.tokens.jws import KeySet

    spec = get_algorithm(table.algorithm)
    for number, text in enumerate(table.verification_keys, start=1):
        source = f"authorization.verification_keys entry {number}"
        yield from _build_rows(source, KeySet.from_keys(spec, parse_keys(text, spec, source)), {})
    for path in table.verification_key_files:
        alone = replace(table, verification_keys=(), verification_key_files=(path,), jwks_file=None)
        files = read_key_files(alone)
        keys = load_key_set(alone, files)
        edited = open_published_files(alone, files)
        yield from _build_rows(str(path), keys, edited[path].removal_times() if edited else {})
    if table.jwks_file is not None:
        alone = replace(table, verification_keys=(), verification_key_files=())
        files = read_key_files(alone)
        keys = load_key_set(alone, files)
        yield from _build_jwks_rows(str(table.jwks_file), keys, JwksFile(files[table.jwks_file]))


def _list_fetched_keys(settings: Settings) -> Iterator[Row]:
    from agentctl.auth.keys.generate import key_thumbprint
    from agentctl.auth.keys.keyring import has_remote_keys
    from agentctl.auth.keys.remote import RemoteKeys

    table = settings.authorization
    if not has_remote_keys(table):
        return
    fetched: list[KeySet | None] = []
    remote = RemoteKeys(table, fetched.append)
    futures.wait([remote.refresh()], FETCH_SECONDS)
    state = remote.state
    note(state.describe(time.time()))
    row: Row = {
        "kid": None, "algorithm": table.algorithm, "used": False, "source": state.source,
        "thumbprint": None, "reason": None, "use": None, "removable_at": None,
    }  # fmt: skip
    keys = fetched[-1] if fetched else None
    if keys is None:
        yield row | {"reason": f"not fetched: {state.detail or 'no response in time'}"}
        return
    for kid, key in keys.by_kid.items():
        name = key_thumbprint(key)
        yield row | {"kid": kid or name, "used": True, "thumbprint": name}
    for skipped in keys.skipped:
        yield row | {"kid": skipped.kid, "reason": skipped.reason}


def _build_rows(source: str, keys: KeySet, times: RemovalTimes) -> Iterator[Row]:
    from agentctl.auth.keys.generate import key_thumbprint

    for key in keys.keys:
        name = None if isinstance(key.material, bytes) else key_thumbprint(key)
        yield {
            "kid": name,
            "algorithm": key.spec.name,
            "used": True,
            "source": source,
            "thumbprint": name,
            "reason": None,
            "use": None,
            "removable_at": _format_removal(times, name),
        }


def _build_jwks_rows(source: str, keys: KeySet, file: JwksFile) -> Iterator[Row]:
    from agentctl.auth.keys.published import entry_thumbprint
    from agentctl.auth.tokens.jwk import reason_to_skip

    times = file.removal_times()
    reasons = [reason_to_skip(entry, keys.spec, "") for entry in file.entries]
    nameless = keys.skipped[len(list(filter(None, reasons))) :]
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
            "removable_at": _format_removal(times, whole),
        }


def _format_removal(times: RemovalTimes, thumbprint: str | None) -> str | None:
    from agentctl.records.times import format_rfc3339

    moment = None if thumbprint is None else times.get(thumbprint)
    return None if moment is None else format_rfc3339(moment)
