"""`agentctl keys rotate`: another key signs, and the tokens of the old one live to their end.

There is no process that could come back later, so it has two steps: the second one is --finish.
"""

from __future__ import annotations

import shlex
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentctl.cli.options import Config, Yes
from agentctl.cli.output import write_line
from agentctl.cli.terminal import confirm, note
from agentctl.errors import Conflict, UsageFailed

if TYPE_CHECKING:
    from agentctl.auth.rotation import Rotation

__all__ = ["rotate_key"]

OVERLAP = "1h"
"""As long as `token mint` makes a token good for."""

TAKEN_UP_SECONDS = 5.0
"""Within so many seconds a server takes up a file that changed."""


def rotate_key(
    overlap: Annotated[
        str | None,
        typer.Option(
            "--overlap",
            metavar="TIME",
            help="How long tokens of the old key are good for at most, 1h unless told otherwise",
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0,
            max=3_600,
            help="How long to let servers take up the new key before it signs",
        ),
    ] = TAKEN_UP_SECONDS,
    drop_old_private: Annotated[
        bool,
        typer.Option("--drop-old-private", help="Delete the old private key, else it is kept"),
    ] = False,
    finish: Annotated[
        bool, typer.Option("--finish", help="Remove the old public key: end the rotation")
    ] = False,
    yes: Yes = False,
    config: Config = None,
) -> None:
    """Sign with a new key, and keep the old public key until its tokens have expired.

    Two steps, since nothing runs in between. The first puts a new public key into the file that
    has the old one, waits until servers have taken it up, and makes the new key the one of
    [signing]. The second, --finish, removes the old public key; before the overlap is over it asks.
    No server is restarted. What was broken off is completed by the same command.
    """
    from agentctl.auth.rotation import rotating
    from agentctl.config import load

    if finish and (overlap is not None or drop_old_private):
        raise UsageFailed("--finish goes without --overlap and --drop-old-private")
    again = "agentctl keys rotate" + (f" --config {shlex.quote(str(config))}" if config else "")
    with rotating(load(config)) as rotation:
        if finish:
            _finish(rotation, again, yes=yes)
        else:
            _begin(rotation, again, overlap or OVERLAP, wait, keep=not drop_old_private)


def _begin(rotation: Rotation, again: str, overlap: str, wait: float, *, keep: bool) -> None:
    from agentctl.cli.durations import parse_until
    from agentctl.records.times import now

    span = parse_until(overlap, now=datetime.now(UTC))
    if rotation.removable:
        raise _unfinished(rotation, again)
    rotation.check()
    if rotation.unfinished:
        note("going on with a rotation that was broken off")
    remove_after = now() + int((span.total_seconds() + wait) * 1_000_000)
    new = rotation.publish(remove_after)
    for path in rotation.homes:
        note(f"put the new public key into {path}, beside the old one")
    _wait(wait, again)
    aside = rotation.switch(keep=keep)
    note(f"tokens are signed with the new key now: {new}")
    _say_what_is_left(rotation.old, aside, remove_after, again)
    write_line(new)


def _wait(seconds: float, again: str) -> None:
    if not seconds:
        return
    note(f"waiting {seconds:g} s for servers to take it up")
    try:
        time.sleep(seconds)
    except KeyboardInterrupt:
        note(f"interrupted: the old key still signs; to complete this: {again}")
        raise


def _say_what_is_left(old: str, aside: Path | None, remove_after: int, again: str) -> None:
    kept = "was deleted" if aside is None else f"is kept in {aside}; no server needs it"
    note(f"the old private key {kept}")
    note(f"the old public key, {old}, verifies tokens until you remove it")
    note(f"after {_at(remove_after)}: {again} --finish")


def _unfinished(rotation: Rotation, again: str) -> Conflict:
    latest = _at(max(rotation.removable.values()))
    return Conflict(
        "The rotation before this one is not finished",
        cause=f"the key that it replaced may be removed after {latest}",
        hint=f"{again} --finish; before that time with --yes",
    )


def _finish(rotation: Rotation, again: str, *, yes: bool) -> None:
    from agentctl.cli.durations import spoken
    from agentctl.records.times import now

    if not rotation.removable:
        if rotation.unfinished:
            raise Conflict("The old key still signs: the rotation is half done", hint=again)
        raise Conflict("There is no rotation to finish", hint=f"to begin one: {again}")
    latest = max(rotation.removable.values())
    left = (latest - now()) / 1_000_000
    if left > 0:
        note(f"tokens of the old key may be good until {_at(latest)}, for another {spoken(left)}")
        confirm("Remove the old public key now?", yes=yes)
    rotation.retire()
    note("removed; servers refuse tokens of it within 5 s")
    for thumbprint in rotation.removable:
        write_line(thumbprint)


def _at(moment: int) -> str:
    from agentctl.cli.table import short_time
    from agentctl.records.times import rfc3339

    return short_time(rfc3339(moment))
