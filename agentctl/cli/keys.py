"""`agentctl keys`: keys that sign tokens, and keys that verify them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentctl.cli.options import Config, Output
from agentctl.cli.output import Column, chosen_format, show_list, write_bytes, write_line
from agentctl.cli.terminal import note
from agentctl.config.settings import Algorithm

if TYPE_CHECKING:
    from agentctl.auth.jws import KeySet
    from agentctl.auth.material import VerificationKey
    from agentctl.config.settings import Authorization

__all__ = ["app"]

app = typer.Typer(
    help="Make keys, list and publish them",
    epilog="Example: agentctl keys generate --algorithm ES256 --out keys/signing.pem",
)

_COLUMNS = [
    Column("kid"),
    Column("algorithm"),
    Column("used"),
    Column("source"),
    Column("thumbprint"),
    Column("reason"),
]
_DEFAULT_OUT = Path("signing.pem")


@app.command("generate", epilog="Example: agentctl keys generate --algorithm ES256 --out es.pem")
def generate_key(
    algorithm: Annotated[
        Algorithm, typer.Option("--algorithm", help="What the key signs with")
    ] = "RS256",
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="File for the private key, mode 0600")
    ] = _DEFAULT_OUT,
    key_id: Annotated[
        str, typer.Option("--key-id", metavar="KID", help="Its name; default: the thumbprint")
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
        verification = f'verification_key_files = ["{pair.private}"]'
    else:
        note(f"wrote {pair.public}, for whoever verifies its tokens")
        verification = f'verification_key_files = ["{pair.public}"]'
    note(f'to use it: [authorization] algorithm = "{algorithm}", {verification}')
    named = f', key_id = "{key_id}"' if key_id else ""
    note(f'           [signing] key_file = "{pair.private}"{named}')
    write_line(key_id or pair.key_id)


@app.command("list", epilog="Example: agentctl keys list -o json")
def list_keys(config: Config = None, output: Output = None) -> None:
    """List the keys that verify tokens.

    Entries of a JWKS that are left out are listed with the reason.
    """
    from agentctl.config import load
    from agentctl.records.document import document_of

    form = chosen_format(output)
    given = load(config).authorization
    if not given.enabled:
        note("authorization is off: tokens are not verified")
    rows = [row for source, keys in _sources(given) for row in _rows(source, keys)]
    show_list(document_of(rows), _COLUMNS, form, id_field="kid")


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


def _sources(given: Authorization) -> Iterator[tuple[str, KeySet]]:
    """Every source of verification keys by itself, in the order in which they are tried."""
    from dataclasses import replace

    from agentctl.auth.algorithms import spec_of
    from agentctl.auth.jws import KeySet
    from agentctl.auth.keyring import load_keys, read_files
    from agentctl.auth.keys import read_public_keys
    from agentctl.auth.material import keys_from_text

    spec = spec_of(given.algorithm)
    for number, text in enumerate(given.verification_keys, start=1):
        source = f"authorization.verification_keys entry {number}"
        yield source, KeySet.of_keys(spec, keys_from_text(text, spec, source))
    for path in given.verification_key_files:
        yield str(path), KeySet.of_keys(spec, read_public_keys(path, given.algorithm))
    if given.jwks_file is not None:
        alone = replace(given, verification_keys=(), verification_key_files=())
        yield str(given.jwks_file), load_keys(alone, read_files(alone))


def _rows(source: str, keys: KeySet) -> Iterator[dict[str, Any]]:
    for key in keys.keys:
        yield {
            "kid": key.kid,
            "algorithm": key.spec.name,
            "used": True,
            "source": source,
            "thumbprint": _thumbprint(key),
            "reason": None,
        }
    for entry in keys.left_out:
        yield {
            "kid": entry.kid,
            "algorithm": None,
            "used": False,
            "source": source,
            "thumbprint": None,
            "reason": entry.reason,
        }


def _thumbprint(key: VerificationKey) -> str | None:
    """None for a shared secret: the hash of one that can be guessed would give it away."""
    from agentctl.auth.keys import thumbprint_of

    return None if isinstance(key.material, bytes) else thumbprint_of(key)
