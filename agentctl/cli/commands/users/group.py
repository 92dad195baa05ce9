"""`agentctl users`: the group with its commands, each in a module of its name."""

from __future__ import annotations

from agentctl.cli.commands.users.erase import erase_user
from agentctl.cli.commands.users.export import export_user
from agentctl.cli.help import CommandApp

app = CommandApp(
    help="Export and erase the data of a person.",
    epilog="Example: agentctl users export ada --out ada.zip",
)
for command, words in (
    (export_user, "export ada --out ada.zip"),
    (erase_user, "erase ada --dry-run"),
):
    app.command(words.partition(" ")[0], epilog=f"Example: agentctl users {words}")(command)
