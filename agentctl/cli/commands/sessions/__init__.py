"""`agentctl sessions`: the group, with the order of its commands in the help."""

from __future__ import annotations

from agentctl.cli.help import CommandApp

app = CommandApp(
    help="List, show, export, import, rename, summarize, hold, prune and delete sessions.",
    epilog="Example: agentctl sessions list --type agent --limit 5",
)

COMMANDS = {
    "export": ("export:export_sessions", "export s1 --format markdown"),
    "import": ("change:import_sessions", "import sessions.jsonl"),
    "list": ("show:list_sessions", "list --type agent --limit 5"),
    "get": ("show:get_session", "get s1 --last 3"),
    "runs": ("show:list_session_runs", "runs s1"),
    "rename": ("change:rename_session", 'rename s1 "Trip to Rome"'),
    "summarize": ("change:summarize_session", "summarize s1"),
    "hold": ("change:hold_sessions", 'hold s1 --reason "case 17"'),
    "release": ("change:release_sessions", "release s1"),
    "prune": ("change:prune_sessions", "prune --idle 90d --export archive"),
    "delete": ("change:delete_sessions", "delete s1 --yes"),
}
"""The commands in the order of the help, each with its module and function, and an example.

They are imported on use: the commands that change sessions take longer than a read of one.
"""
