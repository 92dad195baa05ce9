"""`agentctl runs`: the group, with the order of its commands in the help."""

from __future__ import annotations

from agentctl.cli.commands.runs import show
from agentctl.cli.commands.runs.cancel import cancel_runs
from agentctl.cli.commands.runs.messages import list_messages
from agentctl.cli.commands.runs.repeat import fork_run, retry_run
from agentctl.cli.commands.runs.send import send_message
from agentctl.cli.commands.runs.start import start_run
from agentctl.cli.help import CommandApp

app = CommandApp(
    help="Start, follow, steer, list, cancel and repeat runs.",
    epilog="Example: agentctl runs list --live",
)
for command, words in (
    (start_run, 'start --agent echo --message "hello"'),
    (show.list_runs, "list --live --older-than 10m"),
    (show.list_failures, "failures --newer-than 1d"),
    (show.get_run, "get RUN_ID"),
    (show.watch_run, "watch RUN_ID"),
    (show.wait_for_runs, "wait RUN_ID --wait 60"),
    (send_message, 'send RUN_ID "only trains"'),
    (list_messages, "messages RUN_ID"),
    (cancel_runs, 'cancel RUN_ID --reason "wrong question"'),
    (retry_run, "retry RUN_ID"),
    (fork_run, 'fork RUN_ID --at 4 --message "in French"'),
):
    app.command(words.partition(" ")[0], epilog=f"Example: agentctl runs {words}")(command)
