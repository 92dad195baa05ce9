"""`agentctl sessions`: the group, with the order of its commands in the help."""

from __future__ import annotations

from agentctl.cli.commands.sessions import change, show
from agentctl.cli.help import CommandApp

app = CommandApp(
    help="List, show, export, import, rename, summarize, hold, prune and delete sessions.",
    epilog="Example: agentctl sessions list --type agent --limit 5",
)
for command, words in (
    (show.export_sessions, "export s1 --format markdown"),
    (change.import_sessions, "import sessions.jsonl"),
    (show.list_sessions, "list --type agent --limit 5"),
    (show.get_session, "get s1 --last 3"),
    (show.list_session_runs, "runs s1"),
    (change.rename_session, 'rename s1 "Trip to Rome"'),
    (change.summarize_session, "summarize s1"),
    (change.hold_sessions, 'hold s1 --reason "case 17"'),
    (change.release_sessions, "release s1"),
    (change.prune_sessions, "prune --idle 90d --export archive"),
    (change.delete_sessions, "delete s1 --yes"),
):
    app.command(words.partition(" ")[0], epilog=f"Example: agentctl sessions {words}")(command)
