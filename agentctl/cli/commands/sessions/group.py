"""`agentctl sessions`: the group with its commands, each in a module of its name."""

from __future__ import annotations

from agentctl.cli.commands.sessions.delete import delete_sessions
from agentctl.cli.commands.sessions.export import export_sessions
from agentctl.cli.commands.sessions.get import get_session
from agentctl.cli.commands.sessions.hold import hold_sessions
from agentctl.cli.commands.sessions.imports import import_sessions
from agentctl.cli.commands.sessions.list import list_sessions
from agentctl.cli.commands.sessions.prune import prune_sessions
from agentctl.cli.commands.sessions.release import release_sessions
from agentctl.cli.commands.sessions.rename import rename_session
from agentctl.cli.commands.sessions.runs import list_session_runs
from agentctl.cli.commands.sessions.stat import show_statistics
from agentctl.cli.commands.sessions.summarize import summarize_session
from agentctl.cli.help import CommandApp

app = CommandApp(
    help="List, show, measure, export, import, rename, summarize, hold, prune and delete sessions.",
    epilog="Example: agentctl sessions list --type agent --limit 5",
)
for command, words in (
    (export_sessions, "export s1 --format markdown"),
    (import_sessions, "import sessions.jsonl"),
    (show_statistics, "stat --by day --newer-than 7d"),
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
