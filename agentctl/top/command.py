"""`agentctl top`: watch the live runs on a full screen, and cancel them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from agentctl.cli.io import current_io
from agentctl.cli.options import NO_CHOICE, ComponentChoice, UserId
from agentctl.cli.parameters import flag, option
from agentctl.cli.target import Target, with_target
from agentctl.errors import AgentctlError, UsageError
from agentctl.interface.requests import RunFilter

if TYPE_CHECKING:
    from agentctl.top.app import TopApp

EXAMPLE = "agentctl top --url http://127.0.0.1:7777"

LOCAL_SECONDS = 1.0
"""Default of --every for the local databases."""

REMOTE_SECONDS = 2.0
"""Default of --every for a server."""


@with_target()
async def show_top(
    target: Target,
    choice: ComponentChoice = NO_CHOICE,
    user: UserId = None,
    every: float | None = option(
        "--every",
        "SECONDS",
        "Seconds between two readings (default: 1 locally, 2 on a server)",
        min=0.2,
        max=3600,
    ),
    read_only: bool = flag("--read-only", "Cancel nothing"),
) -> None:
    """Watch live runs on a full screen, and cancel them.

    Arrow keys select a run, c cancels it, / filters; the last line of the screen
    has all keys. Needs the extra `top`.
    """
    io = current_io()
    if not (io.stdin_is_terminal and io.out_is_terminal):
        raise UsageError("top needs a terminal", hint="elsewhere use: agentctl runs list --live")
    seconds = every or (LOCAL_SECONDS if target.local is not None else REMOTE_SECONDS)
    kind, component_id = choice.resolve() or (None, None)
    wanted = RunFilter(component_type=kind, component_id=component_id, user_id=user)
    caller, reason = await _describe_caller(target)
    app = create_app(
        target,
        wanted,
        every=seconds,
        caller=caller,
        read_only="--read-only" if read_only else reason,
    )
    # A note on stderr would be written into the screen.
    was_quiet = io.quiet
    io.quiet = True
    try:
        await app.feed.refresh()
        await app.run_async()
    finally:
        io.quiet = was_quiet
    if app.return_code:
        raise typer.Exit(app.return_code)


def create_app(
    target: Target, wanted: RunFilter, *, every: float, caller: str = "", read_only: str = ""
) -> TopApp:
    """Create the screen; UsageError if Textual is not installed."""
    from importlib.util import find_spec

    from agentctl.config.extras import build_extra_command

    if find_spec("textual") is None:
        raise UsageError(
            "top needs the package textual", hint=f"install it: {build_extra_command('top')}"
        )
    from agentctl.top.app import TopApp
    from agentctl.top.feed import RunFeed
    from agentctl.top.head import ScreenSettings
    from agentctl.top.views import ComponentsView, RunsView, SessionsView, WorkersView

    feed = RunFeed(target.operations, wanted)
    views = (
        RunsView(feed),
        SessionsView(target.operations, wanted),
        ComponentsView(target.operations, feed),
        WorkersView(target.operations),
    )
    return TopApp(target, feed, views, ScreenSettings(every, caller, read_only))


async def _describe_caller(target: Target) -> tuple[str, str]:
    if target.local is not None:
        return "", ""
    try:
        me: dict[str, Any] = dict((await target.operations.get_me()).value)
    except AgentctlError:
        return "", ""
    caller = f"{me['principal']}{' (admin)' if me['admin'] else ''}"
    operations = me.get("operations")
    cancels = ("cancel_agent_run", "cancel_team_run", "cancel_workflow_run")
    if not isinstance(operations, list) or any(name in operations for name in cancels):
        return caller, ""
    return caller, "the token needs a scope such as agents:run"
