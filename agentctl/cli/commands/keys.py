"""`agentctl keys`: generate, list, publish and rotate signing keys.

A rotation has two steps, since no process runs in between: `keys rotate`, later
`keys rotate --finish`.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from agentctl.cli.durations import parse_option_until
from agentctl.cli.help import CommandApp, join_alternatives
from agentctl.cli.options import Config, Yes
from agentctl.cli.parameters import flag, option
from agentctl.cli.show.output import FieldsOutput, write_json, write_line
from agentctl.cli.show.table import Column, Columns, format_time, plain_columns
from agentctl.cli.show.terminal import confirm, note
from agentctl.config import find_config_file, load_settings
from agentctl.config.settings import Algorithm, Authorization, Settings
from agentctl.errors import Conflict, InvalidConfiguration, InvalidKey, UsageError
from agentctl.records.times import format_optional_time, format_rfc3339, format_span, now

if TYPE_CHECKING:
    from agentctl.auth.keys.rotation import JwksFile, Rotation
    from agentctl.auth.tokens.jws import KeySet

app = CommandApp(
    help="Generate, list, publish and rotate signing keys.",
    epilog="Example: agentctl keys generate --algorithm ES256 --out keys/signing.pem",
)

FETCH_SECONDS = 20.0
"""Seconds to wait for the keys of an identity provider."""

Row = dict[str, Any]

RemovalTimes = Mapping[str, int | None]
"""The times from which replaced keys can be removed, by thumbprint: microseconds UTC."""

_KEYS = Columns(
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

DEFAULT_OVERLAP = "1h"
"""The default lifetime of `token mint`."""

_ALGORITHMS = join_alternatives(get_args(Algorithm))

RELOAD_SECONDS = 5.0
"""Seconds within which a server reloads a changed file."""


@app.command("generate", epilog="Example: agentctl keys generate --algorithm ES256 --out es.pem")
def generate_key(
    algorithm: Algorithm = option(
        "--algorithm", "ALGORITHM", f"Signature algorithm: {_ALGORITHMS}", default="RS256"
    ),
    out: Path = option(
        "--out", "FILE", "File for the private key, mode 0600", default=Path("signing.pem")
    ),
    key_id: str = option("--key-id", "KID", "Key id (default: the thumbprint)", default=""),
) -> None:
    """Generate a key pair and print its key id.

    The public key is written next to the private key as NAME.pub.pem.
    """
    from agentctl.cli.files import write_key_pair

    pair = write_key_pair(out, algorithm)
    note(f"wrote {pair.private}, readable only by you")
    if pair.public is None:
        note("shared secret: a server that verifies tokens with it can also mint them")
    else:
        note(f"wrote {pair.public}, for servers that verify its tokens")

    try:
        config_file: Path | None = find_config_file(None).absolute()
    except InvalidConfiguration:
        config_file = None
    key_file = _toml_string(_relative_to_config(config_file, pair.private))
    public_file = _toml_string(_relative_to_config(config_file, pair.public or pair.private))

    note(f"to use it, add to {config_file or 'agentctl.toml'}:")
    note("  [authorization]")
    note(f"  algorithm = {_toml_string(algorithm)}")
    note(f"  verification_key_files = [{public_file}]")
    note("  [signing]")
    note(f"  key_file = {key_file}")
    if key_id:
        note(f"  key_id = {_toml_string(key_id)}")
    if algorithm == "EdDSA":
        note("or, to sign the audit log instead of tokens:")
        note("  [audit]")
        note(f"  key_file = {key_file}")

    write_line(key_id or pair.key_id)


def _relative_to_config(configuration: Path | None, path: Path) -> str:
    """Return a path as a configuration names it: relative to its folder, if it is below."""
    absolute_path = path.absolute()
    if configuration is None or not absolute_path.is_relative_to(configuration.parent):
        return str(absolute_path)
    return str(absolute_path.relative_to(configuration.parent))


def _toml_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@app.command("list", epilog="Example: agentctl keys list -o json")
def list_keys(out: FieldsOutput, config: Config = None) -> None:
    """List the keys that verify tokens, and mark the one that signs them.

    The keys of jwks_url and of an issuer are fetched. Unusable entries of a JWKS are listed with
    the reason, replaced keys with the time from which they can be removed.
    """
    settings = load_settings(config)
    if not settings.authorization.enabled:
        note("authorization is disabled: tokens are not verified")
    out.show_list(list(_list_verification_keys(settings)), _KEYS, "kid")


def _list_verification_keys(settings: Settings) -> Iterator[Row]:
    """Yield a row for each verification key, in the order in which the verifier tries them.

    A shared secret has no thumbprint: its hash would help to guess it.
    """
    from agentctl.auth.keys.files import read_private_key
    from agentctl.auth.keys.signing import signing_key_thumbprint

    signing_thumbprint = None
    with suppress(InvalidKey):
        private = read_private_key(settings.signing.key_file)
        signing_thumbprint = signing_key_thumbprint(private, settings.authorization.algorithm)

    for row in chain(_list_configured_keys(settings.authorization), _list_fetched_keys(settings)):
        row["signs"] = None
        if signing_thumbprint is not None and row["thumbprint"] is not None:
            row["signs"] = row["thumbprint"] == signing_thumbprint
        yield row


def _shorten_path(source: str) -> str:
    """Return a path relative to the current folder if that is shorter; other sources unchanged."""
    if not os.path.isabs(source):  # noqa: PTH117 - a source may be a URL
        return source
    return min(source, os.path.relpath(source), key=len)


def _list_configured_keys(table: Authorization) -> Iterator[Row]:
    from agentctl.auth.keys.keyring import load_key_set, read_key_files
    from agentctl.auth.keys.material import parse_keys
    from agentctl.auth.keys.rotation import JwksFile, open_published_files
    from agentctl.auth.tokens.algorithms import get_algorithm
    from agentctl.auth.tokens.jws import KeySet

    spec = get_algorithm(table.algorithm)
    for number, text in enumerate(table.verification_keys, start=1):
        source = f"authorization.verification_keys entry {number}"
        yield from _build_rows(source, KeySet.from_keys(spec, parse_keys(text, spec, source)), {})

    for path in table.verification_key_files:
        one_file = replace(
            table, verification_keys=(), verification_key_files=(path,), jwks_file=()
        )
        files = read_key_files(one_file)
        keys = load_key_set(one_file, files)
        published_files = open_published_files(one_file, files)
        # A shared secret cannot be rotated in its file.
        times = published_files[path].removal_times() if published_files else {}
        yield from _build_rows(str(path), keys, times)

    for path in table.jwks_file:
        one_file = replace(
            table, verification_keys=(), verification_key_files=(), jwks_file=(path,)
        )
        files = read_key_files(one_file)
        keys = load_key_set(one_file, files)
        yield from _build_jwks_rows(str(path), keys, JwksFile(files[path]))


def _list_fetched_keys(settings: Settings) -> Iterator[Row]:
    from agentctl.auth.keys.keyring import has_remote_keys
    from agentctl.auth.keys.remote import RemoteKeys
    from agentctl.auth.keys.signing import key_thumbprint

    table = settings.authorization
    if not has_remote_keys(table):
        return

    fetched_sets: list[KeySet | None] = []
    remote = RemoteKeys(table, fetched_sets.append)
    futures.wait([remote.refresh()], FETCH_SECONDS)
    state = remote.state
    note(state.describe(time.time()))

    keys = fetched_sets[-1] if fetched_sets else None
    if keys is None:
        reason = f"not fetched: {state.detail or 'no response in time'}"
        yield _build_row(state.source, table.algorithm, reason=reason)
        return

    for kid, key in keys.by_kid.items():
        thumbprint = key_thumbprint(key)
        yield _build_row(
            state.source, table.algorithm, kid=kid or thumbprint, used=True, thumbprint=thumbprint
        )
    for entry in keys.skipped:
        yield _build_row(state.source, table.algorithm, kid=entry.kid, reason=entry.reason)


def _build_row(
    source: str,
    algorithm: str | None,
    *,
    kid: str | None = None,
    used: bool = False,
    thumbprint: str | None = None,
    reason: str | None = None,
    use: str | None = None,
    removable_at: str | None = None,
) -> Row:
    return {
        "kid": kid,
        "algorithm": algorithm,
        "used": used,
        "source": source,
        "thumbprint": thumbprint,
        "reason": reason,
        "use": use,
        "removable_at": removable_at,
    }


def _build_rows(source: str, keys: KeySet, times: RemovalTimes) -> Iterator[Row]:
    from agentctl.auth.keys.signing import key_thumbprint

    for key in keys.keys:
        thumbprint = None if isinstance(key.material, bytes) else key_thumbprint(key)
        yield _build_row(
            source,
            key.spec.name,
            kid=thumbprint,
            used=True,
            thumbprint=thumbprint,
            removable_at=_format_removal(times, thumbprint),
        )


def _build_jwks_rows(source: str, keys: KeySet, file: JwksFile) -> Iterator[Row]:
    """Yield a row for each entry of a JWKS, also for an entry that is skipped."""
    from agentctl.auth.keys.rotation import entry_thumbprint

    times = file.removal_times()
    reasons = {entry.number: entry.reason for entry in keys.skipped}
    for number, raw_entry in enumerate(file.entries, start=1):
        entry = raw_entry if isinstance(raw_entry, dict) else {}
        reason = reasons.get(number)
        thumbprint = entry_thumbprint(entry)
        # A shared secret shows none: its hash would help to guess it.
        shown_thumbprint = None if entry.get("kty") == "oct" else thumbprint

        kid = entry.get("kid")
        algorithm = entry.get("alg")
        if reason is None:
            kid = kid or shown_thumbprint
            algorithm = keys.spec.name
        yield _build_row(
            source,
            algorithm,
            kid=kid or None,
            used=reason is None,
            thumbprint=shown_thumbprint,
            reason=reason,
            use=entry.get("use"),
            removable_at=_format_removal(times, thumbprint),
        )


def _format_removal(times: RemovalTimes, thumbprint: str | None) -> str | None:
    if thumbprint is None:
        return None
    return format_optional_time(times.get(thumbprint))


@app.command("jwks", epilog="Example: agentctl keys jwks > jwks.json")
def print_jwks(config: Config = None) -> None:
    """Print the public half of the signing key as a JWKS."""
    import orjson

    from agentctl.auth.keys.files import read_private_key
    from agentctl.auth.keys.signing import build_public_jwks

    settings = load_settings(config)
    private = read_private_key(settings.signing.key_file)
    jwks = build_public_jwks(private, settings.authorization.algorithm, settings.signing.key_id)
    write_json(orjson.dumps(jwks, option=orjson.OPT_INDENT_2))


@app.command("rotate", epilog="Example: agentctl keys rotate --overlap 8h")
def rotate_key(
    overlap: str | None = option(
        "--overlap",
        "TIME",
        f"Longest lifetime of tokens of the old key (default: {DEFAULT_OVERLAP})",
    ),
    wait: float = option(
        "--wait",
        "SECONDS",
        "Seconds to wait for the servers to load the new key",
        min=0,
        max=3_600,
        default=RELOAD_SECONDS,
    ),
    drop_old_private: bool = flag("--drop-old-private", "Delete the old private key"),
    finish: bool = flag("--finish", "Finish the rotation: remove the old public key"),
    yes: Yes = False,
    config: Config = None,
) -> None:
    """Replace the signing key; tokens of the old key stay valid until they expire.

    A rotation has two steps. The first adds the new public key to the file with the old one, waits
    for the servers to load it, and replaces the signing key. The second, --finish, removes the old
    public key; before the end of the overlap it needs a confirmation. Servers need no restart. The
    same command completes an interrupted step.
    """
    from agentctl.auth.keys.rotation import open_rotation

    if finish and (overlap is not None or drop_old_private):
        raise UsageError("--finish excludes --overlap and --drop-old-private")

    # The command for the next step, in hints.
    command = "agentctl keys rotate"
    if config:
        command = f"{command} --config {shlex.quote(str(config))}"

    with open_rotation(load_settings(config)) as rotation:
        if finish:
            _finish_rotation(rotation, command, yes=yes)
        else:
            _start_rotation(
                rotation, command, overlap or DEFAULT_OVERLAP, wait, keep=not drop_old_private
            )


def _start_rotation(
    rotation: Rotation, command: str, overlap: str, wait: float, *, keep: bool
) -> None:
    """Publish the new key, wait for the servers, and replace the signing key.

    Args:
        command: the command line without options, for hints.
        keep: keep the old private key in another file.
    """
    span = parse_option_until("--overlap", overlap)

    if rotation.removable:
        latest = _format_moment(max(rotation.removable.values()))
        raise Conflict(
            "The previous rotation is not finished",
            cause=f"tokens of the replaced key can be valid until {latest}",
            hint=f"{command} --finish; before that time with --yes",
        )

    rotation.check()
    if rotation.unfinished:
        note("resuming an interrupted rotation")

    remove_after = now() + int((span.total_seconds() + wait) * 1_000_000)
    new_thumbprint = rotation.publish_new_key(remove_after)
    for path in rotation.publishing_files:
        note(f"added the new public key to {path}")

    # A server that does not know the new key yet would reject the tokens that it signs.
    if wait:
        try:
            note(f"waiting {wait:g} s for the servers to load it")
            time.sleep(wait)
        except KeyboardInterrupt:
            note(f"interrupted: the old key still signs; complete the rotation with: {command}")
            raise

    backup = rotation.activate_new_key(keep=keep)
    note(f"the new key signs tokens now: {new_thumbprint}")
    if backup is None:
        note("the old private key was deleted")
    else:
        note(f"the old private key is kept in {backup}; no server needs it")
    note(f"the old public key {rotation.old_thumbprint} verifies tokens until you remove it")
    note(f"remove it after {_format_moment(remove_after)} with: {command} --finish")
    write_line(new_thumbprint)


def _finish_rotation(rotation: Rotation, command: str, *, yes: bool) -> None:
    """Remove the old public keys; before the end of the overlap after a confirmation."""
    if not rotation.removable:
        if rotation.unfinished:
            raise Conflict("The old key still signs: the rotation is incomplete", hint=command)
        raise Conflict("There is no rotation to finish", hint=f"start one with: {command}")

    latest = max(rotation.removable.values())
    seconds = (latest - now()) / 1_000_000
    if seconds > 0:
        note(
            f"tokens of the old key can be valid until {_format_moment(latest)}, "
            f"for {format_span(seconds)}"
        )
        confirm("Remove the old public key now?", yes=yes)

    rotation.remove_old_keys()
    note(f"removed; servers reject its tokens within {RELOAD_SECONDS:g} s")
    for thumbprint in rotation.removable:
        write_line(thumbprint)


def _format_moment(moment: int) -> str:
    return format_time(format_rfc3339(moment))
