"""`agentctl db`: the group, with the order of its commands in the help."""

from __future__ import annotations

from agentctl.cli.commands.db.backups import back_up, copy, restore, settle
from agentctl.cli.commands.db.maintenance import index, migrate, show_status
from agentctl.cli.help import CommandApp

app = CommandApp(
    help="Inspect, migrate, index, back up, restore and copy databases.",
    epilog="Example: agentctl db status",
)
for command, words in (
    (show_status, "status -o json"),
    (migrate, "migrate --dry-run"),
    (back_up, "backup /backups/agentctl-2026-11-20.db"),
    (restore, "restore /backups/agentctl-2026-11-20.db --replace"),
    (settle, "settle --yes"),
    (copy, "copy --from main --to postgresql://agentctl@db/agentctl"),
    (index, "index --db main"),
):
    app.command(words.partition(" ")[0], epilog=f"Example: agentctl db {words}")(command)
