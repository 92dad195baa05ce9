"""`agentctl init`: a configuration and a key pair to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentctl.cli.show.terminal import note

EXAMPLE = "agentctl init my-server"

_ALGORITHM = "RS256"
_NEXT_STEPS = """
next, in one terminal:
{folder}  agentctl serve
and in another:
{folder}  export AGENTCTL_TOKEN=$(agentctl token mint --sub me --scope teams:read)
  agentctl teams list --url http://127.0.0.1:7777
"""


def init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory to write to; created if missing")
    ] = Path(),
) -> None:
    """Write a sample configuration and a key pair.

    Existing files are never overwritten.
    """
    from agentctl import config
    from agentctl.cli.files import (
        check_absent,
        create_directory,
        create_file,
        public_path,
        write_key_pair,
    )

    settings = directory / "agentctl.toml"
    private = directory / "keys" / "signing.pem"
    check_absent(settings, private, public_path(private))
    create_directory(directory)
    create_file(settings, config.SAMPLE_CONFIG.encode())
    try:
        pair = write_key_pair(private, _ALGORITHM)
    except BaseException:
        settings.unlink(missing_ok=True)
        raise
    for path in (settings, pair.private, pair.public):
        note(f"wrote {path}")
    _note_next_steps(directory)


def _note_next_steps(directory: Path) -> None:
    import shlex

    here = directory.resolve() == Path.cwd()
    folder = "" if here else f"  cd {shlex.quote(str(directory))}\n"
    for line in _NEXT_STEPS.format(folder=folder).splitlines():
        note(line)
