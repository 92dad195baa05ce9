"""`agentctl sessions`: the group, with the order of its commands in the help."""

from __future__ import annotations

from agentctl.cli.commands.sessions.change import (
    delete_sessions,
    hold_sessions,
    import_sessions,
    prune_sessions,
    release_sessions,
    rename_session,
    summarize_session,
)
from agentctl.cli.commands.sessions.show import (
    export_sessions,
    get_session,
    list_session_runs,
    list_sessions,
)
from agentctl.cli.help import CommandApp

app = CommandApp(
    help="List, show, export, import, rename, summarize, hold, prune and delete sessions.",
    epilog="Example: agentctl sessions list --type agent --limit 5",
)
for command, words in (
    (export_sessions, "export s1 --format markdown"),
    (import_sessions, "import sessions.jsonl"),
    (list_sessions, "list --type agent --limit 5"),
    (get_session, "get s1 --last 3"),
    (list_session_runs, "runs s1"),
    (rename_session, 'rename s1 "Trip to Rome"'),
    (summarize_session, "summarize s1"),
    (hold_sessions, 'hold s1 --reason "case 17"'),
    (release_sessions, "release s1"),
    (prune_sessions, "prune --idle 90d --export archive"),
    (delete_sessions, "delete s1 --yes"),
):
    app.command(words.partition(" ")[0], epilog=f"Example: agentctl sessions {words}")(command)
