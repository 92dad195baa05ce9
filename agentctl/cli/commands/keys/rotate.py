"""`agentctl keys rotate`: replace the signing key.

A rotation has two steps, since no process runs in between: `keys rotate`, later
`keys rotate --finish`.
"""

from __future__ import annotations

import shlex
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from agentctl.cli.options import Config, Yes
from agentctl.cli.show.output import write_line
from agentctl.cli.show.terminal import confirm, note
from agentctl.errors import Conflict, UsageError

if TYPE_CHECKING:
    from agentctl.auth.keys.rotation import Rotation

DEFAULT_OVERLAP = "1h"
"""The default lifetime of `token mint`."""

RELOAD_SECONDS = 5.0
"""Seconds within which a server reloads a changed file."""


def rotate_key(
    overlap: Annotated[
        str | None,
        typer.Option(
            "--overlap",
            metavar="TIME",
            help=f"Longest lifetime of tokens of the old key (default: {DEFAULT_OVERLAP})",
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0,
            max=3_600,
            help="Seconds to wait for the servers to load the new key",
        ),
    ] = RELOAD_SECONDS,
    drop_old_private: Annotated[
        bool, typer.Option("--drop-old-private", help="Delete the old private key")
    ] = False,
    finish: Annotated[
        bool, typer.Option("--finish", help="Finish the rotation: remove the old public key")
    ] = False,
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
    from agentctl.config import load_settings

    if finish and (overlap is not None or drop_old_private):
        raise UsageError("--finish excludes --overlap and --drop-old-private")
    again = "agentctl keys rotate" + (f" --config {shlex.quote(str(config))}" if config else "")
    with open_rotation(load_settings(config)) as rotation:
        if finish:
            _finish_rotation(rotation, again, yes=yes)
        else:
            _start_rotation(
                rotation, again, overlap or DEFAULT_OVERLAP, wait, keep=not drop_old_private
            )


def _start_rotation(
    rotation: Rotation, again: str, overlap: str, wait: float, *, keep: bool
) -> None:
    from agentctl.cli.durations import parse_until
    from agentctl.records.times import now

    span = parse_until(overlap, now=datetime.now(UTC))
    if rotation.removable:
        latest = _format_moment(max(rotation.removable.values()))
        raise Conflict(
            "The previous rotation is not finished",
            cause=f"tokens of the replaced key can be valid until {latest}",
            hint=f"{again} --finish; before that time with --yes",
        )
    rotation.check()
    if rotation.unfinished:
        note("resuming an interrupted rotation")
    remove_after = now() + int((span.total_seconds() + wait) * 1_000_000)
    new = rotation.publish_new_key(remove_after)
    for path in rotation.publishing_files:
        note(f"added the new public key to {path}")
    if wait:
        note(f"waiting {wait:g} s for the servers to load it")
        try:
            time.sleep(wait)
        except KeyboardInterrupt:
            note(f"interrupted: the old key still signs; complete the rotation with: {again}")
            raise
    aside = rotation.activate_new_key(keep=keep)
    note(f"the new key signs tokens now: {new}")
    kept = "was deleted" if aside is None else f"is kept in {aside}; no server needs it"
    note(f"the old private key {kept}")
    note(f"the old public key {rotation.old_thumbprint} verifies tokens until you remove it")
    note(f"remove it after {_format_moment(remove_after)} with: {again} --finish")
    write_line(new)


def _finish_rotation(rotation: Rotation, again: str, *, yes: bool) -> None:
    from agentctl.records.times import format_span, now

    if not rotation.removable:
        if rotation.unfinished:
            raise Conflict("The old key still signs: the rotation is incomplete", hint=again)
        raise Conflict("There is no rotation to finish", hint=f"start one with: {again}")
    latest = max(rotation.removable.values())
    left = (latest - now()) / 1_000_000
    if left > 0:
        note(
            f"tokens of the old key can be valid until {_format_moment(latest)}, "
            f"for {format_span(left)}"
        )
        confirm("Remove the old public key now?", yes=yes)
    rotation.remove_old_keys()
    note(f"removed; servers reject its tokens within {RELOAD_SECONDS:g} s")
    for thumbprint in rotation.removable:
        write_line(thumbprint)


def _format_moment(moment: int) -> str:
    from agentctl.cli.show.table import format_time
    from agentctl.records.times import format_rfc3339

    return format_time(format_rfc3339(moment))
