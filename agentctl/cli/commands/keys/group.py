"""`agentctl keys`: the group with its commands, each in a module of its name."""

from __future__ import annotations

from agentctl.cli.commands.keys.generate import generate_key
from agentctl.cli.commands.keys.jwks import print_jwks
from agentctl.cli.commands.keys.list import list_keys
from agentctl.cli.commands.keys.rotate import rotate_key
from agentctl.cli.help import CommandApp

app = CommandApp(
    help="Generate, list, publish and rotate signing keys.",
    epilog="Example: agentctl keys generate --algorithm ES256 --out keys/signing.pem",
)
for command, words in (
    (generate_key, "generate --algorithm ES256 --out es.pem"),
    (list_keys, "list -o json"),
    (print_jwks, "jwks > jwks.json"),
    (rotate_key, "rotate --overlap 8h"),
):
    app.command(words.partition(" ")[0], epilog=f"Example: agentctl keys {words}")(command)
