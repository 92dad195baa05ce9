"""Options that several commands share, and the values that they select."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from agentctl.cli.ids import ShortId
from agentctl.cli.parameters import (
    argument,
    build_id_option,
    build_option,
    complete_values,
    flag,
    option,
)
from agentctl.errors import InvalidConfiguration, NotFound, UsageError
from agentctl.interface import requests
from agentctl.records.kinds import ComponentKind, ComponentRef
from agentctl.records.strict import parse_json
from agentctl.records.text import find_json_problem

if TYPE_CHECKING:
    from agentctl.config.settings import Database, Settings

F = TypeVar("F")

_TOKEN_PLACES = "(- reads stdin)  [env: AGENTCTL_TOKEN]"

AnyDatabase = Annotated[str | None, option("--db", "ID", "Database id (default: all databases)")]


def _id_argument(noun: str, help: str) -> Any:
    return argument(f"{noun.upper()}_ID", help, autocompletion=complete_values(noun))


_PANEL = "Connection and identity"
_of_target = partial(option, rich_help_panel=_PANEL)

Config = Annotated[
    Path | None, option("--config", "FILE", "Configuration file  [env: AGENTCTL_CONFIG]")
]
LocalConfig = Annotated[
    Path | None,
    _of_target("--config", "FILE", "Work locally with this configuration  [env: AGENTCTL_CONFIG]"),
]
Url = Annotated[str | None, _of_target("--url", "URL", "Server URL")]
ContextName = Annotated[
    str | None,
    _of_target(
        "--context",
        "NAME",
        "Use this named server  [env: AGENTCTL_CONTEXT]",
        autocompletion=complete_values("context"),
    ),
]
TokenFile = Annotated[
    str | None,
    _of_target("--token-file", "FILE", f"File with the token for the server {_TOKEN_PLACES}"),
]
GivenTokenFile = Annotated[
    str | None, option("--token-file", "FILE", f"File with the token {_TOKEN_PLACES}")
]
InsecureHttp = Annotated[
    bool,
    flag(
        "--insecure-http",
        "Allow sending the token to another machine without encryption",
        rich_help_panel=_PANEL,
    ),
]
Timeout = Annotated[
    float | None,
    _of_target(
        "--timeout",
        "SECONDS",
        "Seconds to wait for the server to respond (default: 30)",
        min=0.1,
        max=86_400,
    ),
]
AsUser = Annotated[
    str | None, _of_target("--as-user", "USER", "Act as this user (local mode only)")
]
Yes = Annotated[bool, flag("--yes -y", "Skip the confirmation")]
DbId = Annotated[str | None, build_option(requests.DatabaseId)]
UserId = Annotated[str | None, build_option(requests.UserId)]
ToFile = Annotated[
    Path | None,
    option("--to-file", "FILE", "New file to write to, readable only by its owner (- is stdout)"),
]
UserOfData = Annotated[str, argument("USER", "User id: the `sub` of tokens")]
AgentId = Annotated[str | None, build_id_option("agent")]
TeamId = Annotated[str | None, build_id_option("team")]
WorkflowId = Annotated[str | None, build_id_option("workflow")]
SessionOption = Annotated[str | None, ShortId("session"), build_id_option("session")]
SessionId = Annotated[str, ShortId("session"), _id_argument("session", "Session id")]
SessionIds = Annotated[list[str], ShortId("session"), _id_argument("session", "Session ids")]
OptionalSessionIds = Annotated[
    list[str] | None, ShortId("session"), _id_argument("session", "Session ids")
]
RunId = Annotated[str, ShortId("run"), _id_argument("run", "Run id")]
RunIds = Annotated[list[str], ShortId("run"), _id_argument("run", "Run ids")]
OptionalRunIds = Annotated[list[str] | None, ShortId("run"), _id_argument("run", "Run ids")]


def check_list_options(context: typer.Context) -> None:
    """Check the options of a list that has `--all`.

    Raises:
        UsageError: with `--all`, an option selects one page, or an order in which rows change their
            places; with `--search`, an option selects another order than the order of creation.
    """
    given_names = set[str]()
    for name in context.params:
        source = context.get_parameter_source(name)
        if source and source.name == "COMMANDLINE":
            given_names.add(name)

    is_by_use = "sort_by" in given_names and context.params["sort_by"] == "updated_at"
    if is_by_use and context.params.get("search") is not None:
        raise UsageError(
            "--search and --sort-by updated_at cannot be used together",
            cause="a search finds sessions in the order of their creation",
        )

    if not context.params["all_pages"]:
        return
    for name in ("limit", "page", "watch"):
        if name in given_names:
            raise UsageError(f"--all and --{name} cannot be used together")
    if is_by_use:
        raise UsageError(
            "--all and --sort-by updated_at cannot be used together",
            cause="a row that changes meanwhile would change its place in the list",
        )


@dataclass(frozen=True, slots=True)
class ComponentChoice:
    """The options that name a component; a command takes at most one of them."""

    agent: AgentId = None
    team: TeamId = None
    workflow: WorkflowId = None

    def resolve(self) -> ComponentRef | None:
        """Return the component that an option names; None without such an option."""
        kinds: tuple[ComponentKind, ...] = ("agent", "team", "workflow")
        chosen_components: list[ComponentRef] = []
        for kind in kinds:
            component_id = getattr(self, kind)
            if component_id is not None:
                chosen_components.append((kind, component_id))

        if len(chosen_components) > 1:
            raise UsageError("--agent, --team and --workflow cannot be used together")
        return chosen_components[0] if chosen_components else None


NO_CHOICE = ComponentChoice()


def select_component(filter: F, component: ComponentRef | None) -> F:
    """Return the filter for the runs of a component, which the options of `ComponentChoice` name.

    Raises:
        UsageError: the filter has a component already.
    """
    if component is None:
        return filter

    values: Any = filter
    if values.component_type is not None or values.component_id is not None:
        raise UsageError("--agent, --team and --workflow exclude --type and --component")
    kind, component_id = component
    changed_filter: F = replace(values, component_type=kind, component_id=component_id)
    return changed_filter


def parse_object(option: str, text: str | None) -> dict[str, Any] | None:
    """Return the JSON object of an option; None if it is not given.

    Raises:
        UsageError: it has any other text.
    """
    if text is None:
        return None

    try:
        value = parse_json(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UsageError(
            f"{option} must be a JSON object", hint=f"""quote it: {option} '{{"key": "value"}}'"""
        )

    problem = find_json_problem(value)
    if problem:
        raise UsageError(f"{option} {problem}")
    return value


def load_optional_settings(config: Path | None) -> tuple[Settings | None, str | None]:
    """Load the configuration for a command that works without one too.

    Returns:
        The settings, or None and the reason.

    Raises:
        InvalidConfiguration: `config` names a file that cannot be used.
    """
    from agentctl.config import load_settings

    try:
        return load_settings(config), None
    except InvalidConfiguration as failure:
        if config is not None:
            raise
        return None, failure.detail


def resolve_admin_scope(settings: Settings | None) -> str:
    """Return the admin scope of the settings, without settings the default."""
    from agentctl.config.settings import Authorization

    return (Authorization() if settings is None else settings.authorization).admin_scope


@dataclass(frozen=True, slots=True)
class OneDatabase:
    """The options that select a database, by default the first one."""

    config: Config = None
    db: DbId = None

    def load(self) -> tuple[Settings, Sequence[Database]]:
        """Return the settings, and the databases that the options select.

        The configuration is loaded without a log, because the command reports the failure.
        """
        from agentctl.cli.log import discard_log
        from agentctl.config import load_settings

        discard_log()
        settings = load_settings(self.config)
        return settings, find_databases(settings, self.db)


@dataclass(frozen=True, slots=True)
class AllDatabases(OneDatabase):
    """The options that select one database, by default all of them."""

    db: AnyDatabase = None


def find_databases(settings: Settings, db: str | None) -> Sequence[Database]:
    """Return all databases, or the one with this id; NotFound if there is none."""
    entries = [entry for entry in settings.databases if db in (None, entry.id)]
    if not entries:
        ids = ", ".join(entry.id for entry in settings.databases)
        raise NotFound(f"Database {db!r} not found", hint=f"configured databases: {ids}")
    return entries
