"""`agentctl keys`: keys that sign tokens, and keys that verify them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from agentctl.cli import rotate
from agentctl.cli.help import Branch, any_of
from agentctl.cli.options import Config, Output
from agentctl.cli.output import chosen_format, show_list, write_bytes, write_line
from agentctl.cli.table import Column, Columns
from agentctl.cli.terminal import note
from agentctl.config.settings import Algorithm
from agentctl.errors import InvalidConfiguration

if TYPE_CHECKING:
    from agentctl.cli.keypair import KeyPair

__all__ = ["app"]

app = Branch(
    help="Make keys, list, publish and rotate them.",
    epilog="Example: agentctl keys generate --algorithm ES256 --out keys/signing.pem",
)

_COLUMNS = Columns(
    tsv=[
        Column("kid"),
        Column("algorithm"),
        Column("used"),
        Column("source"),
        Column("thumbprint"),
        Column("reason"),
        Column("use"),
        Column("signs"),
        Column("removable_at"),
    ],
    table=[
        Column("kid"),
        Column("used"),
        Column("algorithm"),
        Column("use"),
        Column("signs"),
        Column("source", lambda row: _near(row["source"]), look="whole"),
        Column("reason", look="whole"),
        Column("removable_at"),
    ],
)
_DEFAULT_OUT = Path("signing.pem")


@app.command("generate", epilog="Example: agentctl keys generate --algorithm ES256 --out es.pem")
def generate_key(
    algorithm: Annotated[
        Algorithm,
        typer.Option(
            "--algorithm",
            metavar="ALGORITHM",
            help=f"What the key signs with: {any_of(get_args(Algorithm))}",
        ),
    ] = "RS256",
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="File for the private key, mode 0600")
    ] = _DEFAULT_OUT,
    key_id: Annotated[
        str, typer.Option("--key-id", metavar="KID", help="Its name, else the thumbprint")
    ] = "",
) -> None:
    """Make a key pair and print its key id.

    The private key goes to the file, the public one beside it as NAME.pub.pem.
    """
    from agentctl.cli.keypair import write_key_pair

    pair = write_key_pair(out, algorithm)
    note(f"wrote {pair.private}, which nobody else may read")
    if pair.public is None:
        note("a shared secret: whoever verifies tokens with it can also mint them")
    else:
        note(f"wrote {pair.public}, for whoever verifies its tokens")
    for line in _how_to_use(pair, algorithm, key_id):
        note(line)
    write_line(key_id or pair.key_id)


def _how_to_use(pair: KeyPair, algorithm: str, key_id: str) -> Iterator[str]:
    """Lines of the configuration; they are right from whatever folder this is run in."""
    from agentctl.config import find

    try:
        file: Path | None = find(None).absolute()
    except InvalidConfiguration:
        file = None
    yield f"to use it, in {file or 'agentctl.toml'}:"
    yield "  [authorization]"
    yield f"  algorithm = {_toml(algorithm)}"
    yield f"  verification_key_files = [{_toml(_named_in(file, pair.public or pair.private))}]"
    yield "  [signing]"
    yield f"  key_file = {_toml(_named_in(file, pair.private))}"
    if key_id:
        yield f"  key_id = {_toml(key_id)}"


def _named_in(configuration: Path | None, path: Path) -> str:
    """How a configuration names a file: relative to its own folder where it lies below."""
    whole = path.absolute()
    if configuration is None or not whole.is_relative_to(configuration.parent):
        return str(whole)
    return str(whole.relative_to(configuration.parent))


def _toml(text: str) -> str:
    """A string of TOML, which one of JSON is too."""
    import json

    return json.dumps(text, ensure_ascii=False)


@app.command("list", epilog="Example: agentctl keys list -o json")
def list_keys(config: Config = None, output: Output = None) -> None:
    """List the keys that verify tokens, and which of them is the one that signs.

    Entries of a JWKS that are left out are listed with the reason, keys that a rotation replaced
    with the time from which they may be removed.
    """
    from agentctl.cli.keylist import key_rows
    from agentctl.config import load
    from agentctl.records.document import document_of

    form = chosen_format(output)
    settings = load(config)
    if not settings.authorization.enabled:
        note("authorization is off: tokens are not verified")
    show_list(document_of(list(key_rows(settings))), _COLUMNS, form, id_field="kid")


@app.command("jwks", epilog="Example: agentctl keys jwks > jwks.json")
def print_jwks(config: Config = None) -> None:
    """Print the public half of the signing key as a JWKS."""
    import orjson

    from agentctl.auth.keys import public_jwks, read_private_key
    from agentctl.config import load

    settings = load(config)
    private = read_private_key(settings.signing.key_file)
    jwks = public_jwks(private, settings.authorization.algorithm, settings.signing.key_id)
    write_bytes(orjson.dumps(jwks, option=orjson.OPT_INDENT_2))


app.command("rotate", epilog="Example: agentctl keys rotate --overlap 8h")(rotate.rotate_key)


def _near(source: str) -> str:
    """A file as seen from here, when that is shorter."""
    seen = os.path.relpath(source) if os.path.isabs(source) else source  # noqa: PTH117 - text
    return min(source, seen, key=len)
