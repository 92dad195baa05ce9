"""`agentctl db`: the group with its commands, each in a module of its name."""

from __future__ import annotations

from agentctl.cli.commands.db.backup import back_up
from agentctl.cli.commands.db.backups import list_backups
from agentctl.cli.commands.db.check import check
from agentctl.cli.commands.db.copy import copy
from agentctl.cli.commands.db.index import index
from agentctl.cli.commands.db.migrate import migrate
from agentctl.cli.commands.db.restore import restore
from agentctl.cli.commands.db.settle import settle
from agentctl.cli.commands.db.status import show_status
from agentctl.cli.help import CommandApp

app = CommandApp(
    help="Inspect, migrate, check, index, back up, restore and copy databases.",
    epilog="Example: agentctl db status",
)
for command, words in (
    (show_status, "status -o json"),
    (migrate, "migrate --dry-run"),
    (check, "check --db main"),
    (back_up, "backup /backups/agentctl-2026-11-20.db"),
    (list_backups, "backups --check"),
    (restore, "restore /backups/agentctl-2026-11-20.db --replace"),
    (settle, "settle --yes"),
    (copy, "copy --from main --to postgresql://agentctl@db/agentctl"),
    (index, "index --db main"),
):
    app.command(words.partition(" ")[0], epilog=f"Example: agentctl db {words}")(command)
