"""The command tree. A command is imported when it is used: imports are most of a start-up."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentctl import __version__
from agentctl.cli.help import COLOR_HELP, CommandApp, When
from agentctl.cli.io import current_io
from agentctl.cli.report import Group, RootGroup

if TYPE_CHECKING:
    from agentctl.cli.completion import Subject

_COMMANDS = {
    "init": ("init:init", "Write a configuration and a key pair"),
    "serve": ("serve:serve", "Start the server"),
    "console": ("console:console", "Open the console in a browser with a link that signs in"),
    "doctor": ("doctor.command:doctor", "Check the installation, or a server, and suggest fixes"),
    "login": ("login:login", "Sign in to a server through its identity provider"),
    "logout": (
        "logout:logout",
        "Sign out: revoke the tokens at the provider and delete the local copies",
    ),
    "agents": ("components:build_group", "List and show the configured agents"),
    "teams": ("components:build_group", "List and show the configured teams"),
    "workflows": ("components:build_group", "List and show the configured workflows"),
    "runs": ("runs:app", "Start, follow, steer, list, cancel and repeat runs"),
    "chat": ("chat:chat", "Chat with an agent, team or workflow"),
    "sessions": (
        "sessions:app",
        "List, show, export, import, rename, summarize, hold, prune and delete sessions",
    ),
    "approvals": ("approvals:app", "List and decide pending approvals"),
    "usage": (
        "usage:show_usage",
        "Show tokens and cost of finished runs by day, user, component, model or session",
    ),
    "halt": ("halt:halt", "Stop work for everybody until it is resumed"),
    "halts": ("halts:app", "List and show halts of agents, tools, models, users or everything"),
    "resume": ("resume:resume", "End a halt; its work continues unless another halt stops it"),
    "users": ("users:app", "Export and erase the data of a person"),
    "accounts": ("accounts:app", "Create, list and revoke service accounts"),
    "files": ("files:app", "Upload, list, show, download and delete files"),
    "memories": ("memories:app", "List, change, delete, export and import memories of users"),
    "db": ("db:app", "Inspect, migrate, index, back up, restore and copy databases"),
    "audit": ("audit:app", "Search, follow, export and verify the audit log"),
    "webhooks": ("webhooks:app", "List and test webhooks, and redeliver events"),
    "mcp": ("mcp:app", "List and check the MCP servers of the configuration"),
    "keys": ("keys:app", "Generate, list, publish and rotate signing keys"),
    "token": ("token:app", "Mint, inspect and verify tokens"),
    "auth": ("auth:app", "Show your identity and explain access decisions"),
    "config": ("config:app", "Show and validate the configuration"),
    "context": ("context:app", "Manage named servers and select the current one"),
    "api": ("api:call_api", "Send a request to the server and print the body of its response"),
    "version": (
        "version:show_version",
        "Show the versions of agentctl and, with --url or a context, of the server",
    ),
    "help": ("help:show_help", "Show a help topic or the help of a command"),
}
"""Commands and groups in the order of the help, each with its module and the object in it, and the
first sentence of its help: so the help of the root imports no command. Extensions add commands to
groups.

`build_group` is a function that builds a group from its name: several groups share its commands.
"""

_SECTIONS = {
    "init": "Start",
    "agents": "Work",
    "usage": "Money and people",
    "db": "Operate",
    "config": "Set up",
}
"""The headings of the help, each before a command."""

_PACKAGE = "agentctl.cli.commands."


class _LazyCommands(Mapping[str, Any]):
    """The commands of the root or of a group by name, imported on first use.

    Args:
        names: their names, in the order of the help.
        load: imports the command of a name.
    """

    def __init__(self, names: Collection[str], load: Callable[[str], Any]) -> None:
        self._names = names
        self._load = load
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _LazyRootGroup(RootGroup):
    """The root group, which imports its commands on use."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _LazyCommands(_COMMANDS, _load_command)  # type: ignore[assignment]

    def complete_values(
        self, subject: Subject, parameters: Mapping[str, Any], incomplete: str
    ) -> list[str]:
        """Return the values of a parameter, for a shell; see `completion.complete`."""
        from agentctl.cli.completion import complete

        return complete(subject, parameters, incomplete)

    def summarize_commands(self) -> list[tuple[str, str]]:
        return [(name, sentence) for name, (_, sentence) in _COMMANDS.items()]

    def list_sections(self) -> dict[str, list[tuple[str, str]]]:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, sentence in self.summarize_commands():
            heading = _SECTIONS.get(name) or next(reversed(sections))
            sections.setdefault(heading, []).append((name, sentence))
        return sections


app = typer.Typer(
    name="agentctl",
    cls=_LazyRootGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Get started: agentctl serve --demo",
)


def _load_command(name: str) -> Any:
    """Import a command or a group of the root."""
    place, _ = _COMMANDS[name]
    module, target = _import_place(_PACKAGE + place)
    if place.endswith(":build_group"):
        target = target(name)
    if not isinstance(target, typer.Typer):
        return _build_command(name, target, module.EXAMPLE, getattr(module, "HELP", None))

    stem = CommandApp(rich_markup_mode=None, add_completion=False)
    stem.add_typer(target, name=name, cls=Group)
    group = typer.main.get_group(stem).commands[name]
    places: Mapping[str, tuple[str, str]] | None = getattr(module, "COMMANDS", None)
    if places is not None:
        load = functools.partial(_load_member, name, module.__name__, places)
        group.commands = _LazyCommands(places, load)  # type: ignore[attr-defined]
    return group


def _load_member(group: str, package: str, places: Mapping[str, tuple[str, str]], name: str) -> Any:
    """Import a command of a group whose package names its commands in `COMMANDS`."""
    place, words = places[name]
    _, function = _import_place(f"{package}.{place}")
    return _build_command(name, function, f"agentctl {group} {words}")


def _import_place(place: str) -> tuple[Any, Any]:
    """Return a module, and the object in it, of a place such as `package.module:name`."""
    file, _, attribute = place.partition(":")
    module = import_module(file)
    return module, getattr(module, attribute)


def _build_command(name: str, function: Any, example: str, text: str | None = None) -> Any:
    stem = CommandApp(rich_markup_mode=None, add_completion=False)
    stem.command(name, epilog=f"Example: {example}", help=text)(function)
    return typer.main.get_command(stem)


def _print_version(is_given: bool) -> None:
    if is_given:
        out = current_io().out
        out.write(f"agentctl {__version__}\n")
        out.flush()
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
