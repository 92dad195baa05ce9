"""`agentctl keys jwks`: the public half of the signing key as a JWKS."""

from __future__ import annotations

from agentctl.cli.options import Config
from agentctl.cli.show.output import write_json


def print_jwks(config: Config = None) -> None:
    """Print the public half of the signing key as a JWKS."""
    import orjson

    from agentctl.auth.keys.files import read_private_key
    from agentctl.auth.keys.generate import build_public_jwks
    from agentctl.config import load_settings

    settings = load_settings(config)
    private = read_private_key(settings.signing.key_file)
    jwks = build_public_jwks(private, settings.authorization.algorithm, settings.signing.key_id)
    write_json(orjson.dumps(jwks, option=orjson.OPT_INDENT_2))
