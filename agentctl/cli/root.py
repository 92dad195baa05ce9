"""The command tree. A command is imported when it is used: imports are most of a start-up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer

from agentctl import __version__
from agentctl.cli.common import COLOR_HELP, When
from agentctl.cli.help import CommandApp
from agentctl.cli.io import current_io
from agentctl.cli.report import Group, RootGroup

_COMMANDS = {
    "init": "init:init",
    "serve": "serve:serve",
    "console": "console:console",
    "doctor": "doctor:doctor",
    "token": "token:app",
    "keys": "keys:app",
    "agents": "components:agents",
    "teams": "components:teams",
    "workflows": "components:workflows",
    "sessions": "sessions.list:app",
    "runs": "runs.list:app",
    "top": "top:show_top",
    "memories": "memories:app",
    "mcp": "mcp:app",
    "accounts": "accounts:app",
    "auth": "auth:app",
    "db": "db:app",
    "audit": "audit:app",
    "api": "api:call_api",
    "context": "context:app",
    "config": "config:app",
    "version": "version:show_version",
    "help": "help:show_help",
}
"""Commands and groups in the order of the help, each with its module and the object in it."""

_HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


class _LazyCommands(Mapping[str, Any]):
    """The commands of the root by name, imported on first use."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load_command(name, _COMMANDS[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


class _LazyRootGroup(RootGroup):
    """The root group, which imports its commands on use."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _LazyCommands()  # type: ignore[assignment]


app = typer.Typer(
    name="agentctl",
    cls=_LazyRootGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=_HELP_OPTIONS,
    epilog="Get started: agentctl serve --demo",
)


def _load_command(name: str, place: str) -> Any:
    file, _, attribute = place.partition(":")
    module = import_module(f"agentctl.cli.commands.{file}")
    found = getattr(module, attribute)
    stem = CommandApp(rich_markup_mode=None, add_completion=False)
    if not isinstance(found, typer.Typer):
        stem.command(name, epilog=f"Example: {module.EXAMPLE}")(found)
        return typer.main.get_command(stem)
    stem.add_typer(found, name=name, cls=Group)
    return typer.main.get_group(stem).commands[name]


def _print_version(wanted: bool) -> None:
    if wanted:
        current_io().out.write(f"agentctl {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version"),
    ] = False,
    color: Annotated[When, typer.Option("--color", metavar="WHEN", help=COLOR_HELP)] = "auto",
) -> None:
    """Run and administer a server for agents, teams and workflows."""
    current_io().color = color
