"""The tree of commands: one line a group. What a group does is in the module of its name."""

from __future__ import annotations

from typing import Annotated

import typer

from agentctl import __version__
from agentctl.cli import components, config, context, keys, runs, sessions, token
from agentctl.cli.edge import Group, Root
from agentctl.cli.init import init
from agentctl.cli.serve import serve

__all__ = ["app"]

app = typer.Typer(
    name="agentctl",
    cls=Root,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="To begin with: agentctl serve --demo",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"agentctl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version"),
    ] = False,
) -> None:
    """Serve agents, teams and workflows, and administer such a server, here or remotely."""


app.command(epilog="Example: agentctl init my-server")(init)
app.command(epilog="Example: agentctl serve --demo")(serve)
app.add_typer(token.app, name="token", cls=Group)
app.add_typer(keys.app, name="keys", cls=Group)
app.add_typer(components.agents, name="agents", cls=Group)
app.add_typer(components.teams, name="teams", cls=Group)
app.add_typer(components.workflows, name="workflows", cls=Group)
app.add_typer(sessions.app, name="sessions", cls=Group)
app.add_typer(runs.app, name="runs", cls=Group)
app.add_typer(context.app, name="context", cls=Group)
app.add_typer(config.app, name="config", cls=Group)
