"""The tree of commands: one line a group. What a group does is in the module of its name."""

from __future__ import annotations

from typing import Annotated

import typer

from agentctl import __version__
from agentctl.cli.edge import Group, Root

__all__ = ["app"]

app = typer.Typer(
    name="agentctl",
    cls=Root,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Try: agentctl serve --demo, then agentctl teams list",
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


# While the modules land one by one.
from importlib import import_module  # noqa
from agentctl.cli import components, runs, sessions  # noqa

app.add_typer(components.agents, name="agents", cls=Group)
app.add_typer(components.teams, name="teams", cls=Group)
app.add_typer(components.workflows, name="workflows", cls=Group)
app.add_typer(sessions.app, name="sessions", cls=Group)
app.add_typer(runs.app, name="runs", cls=Group)
for _name in ("token", "keys", "config", "context"):
    try:
        app.add_typer(import_module(f"agentctl.cli.{_name}").app, name=_name, cls=Group)
    except ModuleNotFoundError:
        continue
for _name in ("init", "serve"):
    try:
        app.command(_name)(getattr(import_module(f"agentctl.cli.{_name}"), _name))
    except ModuleNotFoundError:
        continue
