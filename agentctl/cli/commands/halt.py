"""`agentctl halt` and `agentctl resume`: stop work for everybody, and let it continue."""

from __future__ import annotations

from datetime import timedelta

from agentctl.cli.commands.halts import HALT_FIELDS
from agentctl.cli.durations import parse_option_until
from agentctl.cli.parameters import flag, option
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target
from agentctl.errors import NotFound, UsageError
from agentctl.interface.requests.halts import NewHalt
from agentctl.records.halts import HaltScope
from agentctl.records.times import format_rfc3339, now

EXAMPLE = 'agentctl halt --agent writer --reason "It mails customers twice" --until 2h'


@with_target()
async def halt(
    target: Target,
    out: CommandOutput,
    agent: str | None = option("--agent", "ID", "Halt the runs of an agent"),
    team: str | None = option("--team", "ID", "Halt the runs of a team, with its members"),
    workflow: str | None = option("--workflow", "ID", "Halt the runs of a workflow"),
    tool: str | None = option("--tool", "NAME", "Halt the calls of a tool by all agents"),
    model: str | None = option("--model", "ID", "Halt the calls of a model of the configuration"),
    user: str | None = option("--user", "USER", "Halt the runs of a user"),
    all: bool = flag("--all", "Halt everything"),
    reason: str | None = option(
        "--reason", "TEXT", "Reason, shown to everyone whose work it stops; required"
    ),
    until: str | None = option(
        "--until", "TIME", "End automatically: in 15m, 2h or 7d, or at a time in RFC 3339"
    ),
    stop_running: bool = flag("--stop-running", "Cancel the runs in its scope"),
) -> None:
    """Stop work for everybody until it is resumed.

    When the command returns, no server starts another model call or tool call in the scope. New
    runs are refused; all other work waits.
    """
    scope_ids: dict[HaltScope, str | None] = {
        "agent": agent,
        "team": team,
        "workflow": workflow,
        "tool": tool,
        "model": model,
        "user": user,
    }
    scopes: list[HaltScope] = [
        scope for scope, scope_id in scope_ids.items() if scope_id is not None
    ]
    if all:
        scopes.append("all")

    if len(scopes) != 1:
        problem = "nothing to halt is given"
        if scopes:
            problem = f"--{scopes[0]} and --{scopes[1]} cannot be used together"
        raise UsageError(
            problem, hint="give one of: --agent, --team, --workflow, --tool, --model, --user, --all"
        )
    if reason is None or not reason.strip():
        raise UsageError("a halt needs a reason", hint='give it with: --reason "TEXT"')

    (scope,) = scopes
    request = NewHalt(
        scope,
        reason,
        scope_id=scope_ids.get(scope),
        until=None if until is None else _find_time(until),
        stop_running=stop_running,
    )
    try:
        document = await target.operations.halts.create(request)
    except NotFound as failure:
        failure.detail = f"{failure.detail}: {request.scope_id}"
        list_command = "config show" if scope == "model" else f"{scope}s list"
        failure.hint = f"list them with: {target.command(list_command)}"
        raise

    record = document.value
    out.show_record(document, HALT_FIELDS, "halt_id")
    place = scope if request.scope_id is None else f"{scope} {request.scope_id}"
    target.report_done(f"halted {place}")
    if stop_running:
        note(f"  runs to cancel: {record['cancelled_runs']}")
    note(f"  end it with: {target.command('resume ' + record['halt_id'])}")


def _find_time(text: str) -> str:
    """Return the time of `--until` as RFC 3339."""
    span = parse_option_until("--until", text)
    return format_rfc3339(now() + span // timedelta(microseconds=1))
