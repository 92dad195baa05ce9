"""`agentctl keys generate`: generate a key pair."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from agentctl.cli.help import join_alternatives
from agentctl.cli.show.output import write_line
from agentctl.cli.show.terminal import note
from agentctl.config.settings import Algorithm
from agentctl.errors import InvalidConfiguration


def generate_key(
    algorithm: Annotated[
        Algorithm,
        typer.Option(
            "--algorithm",
            metavar="ALGORITHM",
            help=f"Signature algorithm: {join_alternatives(get_args(Algorithm))}",
        ),
    ] = "RS256",
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="File for the private key, mode 0600")
    ] = Path("signing.pem"),
    key_id: Annotated[
        str, typer.Option("--key-id", metavar="KID", help="Key id (default: the thumbprint)")
    ] = "",
) -> None:
    """Generate a key pair and print its key id.

    The public key is written next to the private key as NAME.pub.pem.
    """
    from agentctl.cli.files import write_key_pair
    from agentctl.config import find_config_file

    pair = write_key_pair(out, algorithm)
    note(f"wrote {pair.private}, readable only by you")
    if pair.public is None:
        note("shared secret: a server that verifies tokens with it can also mint them")
    else:
        note(f"wrote {pair.public}, for servers that verify its tokens")
    try:
        file: Path | None = find_config_file(None).absolute()
    except InvalidConfiguration:
        file = None
    note(f"to use it, add to {file or 'agentctl.toml'}:")
    note("  [authorization]")
    note(f"  algorithm = {_toml_string(algorithm)}")
    verification = _relative_to_config(file, pair.public or pair.private)
    note(f"  verification_key_files = [{_toml_string(verification)}]")
    note("  [signing]")
    note(f"  key_file = {_toml_string(_relative_to_config(file, pair.private))}")
    if key_id:
        note(f"  key_id = {_toml_string(key_id)}")
    if algorithm == "EdDSA":
        note("or, to sign the audit log instead of tokens:")
        note("  [audit]")
        note(f"  key_file = {_toml_string(_relative_to_config(file, pair.private))}")
    write_line(key_id or pair.key_id)


def _relative_to_config(configuration: Path | None, path: Path) -> str:
    whole = path.absolute()
    if configuration is None or not whole.is_relative_to(configuration.parent):
        return str(whole)
    return str(whole.relative_to(configuration.parent))


def _toml_string(text: str) -> str:
    import json

    return json.dumps(text, ensure_ascii=False)
