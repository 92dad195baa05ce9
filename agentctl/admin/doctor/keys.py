"""Checks of the verification keys and the signing key."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from agentctl.admin.doctor.files import check_permissions
from agentctl.admin.doctor.finding import Finding, from_failure, note, ok, wrong
from agentctl.auth.keys.files import read_private_key
from agentctl.auth.keys.keyring import has_remote_keys, load_key_set, read_key_files
from agentctl.auth.keys.rotation import open_published_files
from agentctl.auth.keys.signing import SigningKey, key_thumbprint, load_signing_key
from agentctl.auth.tokens.algorithms import get_algorithm
from agentctl.auth.tokens.jws import KeySet
from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Settings
from agentctl.errors import InvalidKey
from agentctl.records.times import format_rfc3339, now

_CHECK = "keys"


def check_keys(settings: Settings) -> Iterator[Finding]:
    """Check the verification keys, the signing key, and an unfinished rotation."""
    authorization, signing = settings.authorization, settings.signing.key_file
    for path in (*authorization.verification_key_files, *authorization.jwks_file):
        yield from check_permissions(_CHECK, path, "the verification keys in")
    keys = None
    if authorization.enabled:
        try:
            keys = load_key_set(authorization, read_key_files(authorization))
        except InvalidKey as failure:
            yield from_failure(_CHECK, failure)
        else:
            yield from _check_verification_keys(settings, keys)

    yield from check_permissions(_CHECK, signing, "the signing key")
    if not signing.exists():
        yield ok(_CHECK, f"there is no {signing}: tokens are minted elsewhere")
        return
    if not os.access(signing, os.R_OK):
        yield ok(_CHECK, f"this user cannot read {signing}, which a server does not need")
        return
    try:
        key = load_signing_key(read_private_key(signing), get_algorithm(authorization.algorithm))
    except InvalidKey as failure:
        yield from_failure(_CHECK, failure)
        return
    yield ok(_CHECK, f"{signing} signs with {authorization.algorithm}; only its owner may read it")
    if keys is not None:
        yield from _check_signing_key(settings, key, keys)


def _check_verification_keys(settings: Settings, keys: KeySet) -> Iterator[Finding]:
    count, remote = len(keys.keys), has_remote_keys(settings.authorization)
    number = "1 key verifies" if count == 1 else f"{count} keys verify"
    if count or not remote:
        yield ok(_CHECK, f"{number} {keys.spec.name} tokens")
    if remote:
        yield _check_remote_keys(settings)
    for entry in keys.skipped:
        name = "without kid" if entry.kid is None else f"{entry.kid!r}"
        yield note(_CHECK, f"JWKS key {name} is skipped: {entry.reason}", "agentctl keys list")


def _check_remote_keys(settings: Settings) -> Finding:
    verifier = Verifier(settings)
    verifier.fetch_remote_keys()
    state = verifier.remote_state
    assert state is not None
    if state.error is None:
        return ok(_CHECK, state.describe(time.time()))
    text = f"the keys of {state.source} cannot be fetched: {state.detail} ({state.error})"
    return wrong(_CHECK, text, "correct jwks_url or issuer in [authorization]")


def has_third_party_keys(settings: Settings) -> bool:
    """Return True if the JWKS has keys that are not the current or a replaced signing key."""
    authorization = settings.authorization
    if not authorization.enabled or has_remote_keys(authorization):
        return authorization.enabled
    if not authorization.jwks_file:
        return False
    try:
        files = read_key_files(authorization)
        load_key_set(authorization, files)
        opened = open_published_files(authorization, files)
        marks = {
            name: mark
            for path in authorization.jwks_file
            for name, mark in opened[path].removal_times().items()
        }
        key = load_signing_key(
            read_private_key(settings.signing.key_file), get_algorithm(authorization.algorithm)
        )
    except InvalidKey:
        return True
    ours = {key_thumbprint(key)} | {name for name, mark in marks.items() if mark is not None}
    return not marks.keys() <= ours


def _check_signing_key(settings: Settings, key: SigningKey, keys: KeySet) -> Iterator[Finding]:
    authorization, ours = settings.authorization, key_thumbprint(key)
    if ours not in map(key_thumbprint, keys.keys):
        text = (
            f"the server rejects tokens that {settings.signing.key_file} signs: it has other keys"
        )
        remedy = "agentctl keys jwks prints its public key, for jwks_file in [authorization]"
        yield note(_CHECK, text, remedy)
    try:
        files = open_published_files(authorization, read_key_files(authorization)).values()
        marks = {
            name: mark for file in files for name, mark in file.removal_times().items() if mark
        }
    except InvalidKey as failure:
        yield from_failure(_CHECK, failure)
        return
    if marks.pop(ours, None) is not None:
        yield note(_CHECK, "a key rotation was interrupted", "agentctl keys rotate")
    for name, mark in marks.items():
        remedy = "agentctl keys rotate --finish"
        if mark <= now():
            yield note(_CHECK, f"the replaced key {name} still verifies tokens", remedy)
        else:
            yield ok(
                _CHECK, f"the replaced key {name} verifies tokens until {format_rfc3339(mark)}"
            )
