"""Options that more than one command has, each written once.

Which component is meant: `--agent`, `--team` or `--workflow`, or what a run says of itself.

A configuration that need not be there: for commands that say more with one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from agentctl.cli.show.output import Format
from agentctl.errors import InvalidConfiguration, UsageError
from agentctl.operations import MAXIMUM_LIMIT
from agentctl.records.kinds import KINDS, ComponentKind

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

__all__ = [
    "AgentId",
    "AsUser",
    "ComponentRef",
    "Config",
    "ContextName",
    "Cursor",
    "DbId",
    "GivenTokenFile",
    "InsecureHttp",
    "KindOption",
    "Limit",
    "LocalConfig",
    "NewerThan",
    "OlderThan",
    "Output",
    "PageNumber",
    "RunId",
    "SessionOption",
    "SortOrder",
    "TableName",
    "TeamId",
    "TokenFile",
    "Url",
    "UserId",
    "WorkflowId",
    "Yes",
    "component_of_run",
    "find_component",
    "load_optional_settings",
    "resolve_admin_scope",
    "resolve_component",
]

_TOKEN_PLACES = "- for stdin  [env: AGENTCTL_TOKEN]"


def _target_option(*flags: str, **about: Any) -> Any:
    """An option that says where a command talks, and as whom: a section of its own in the help."""
    return typer.Option(*flags, rich_help_panel="Where and as whom", **about)


Output = Annotated[
    Format | None,
    typer.Option(
        "--output", "-o",
        metavar="FORM",
        help="Form of the output: table, json, jsonl, tsv or name"
        "  [env: AGENTCTL_OUTPUT; default: table on a terminal, else tsv]",
    ),
]  # fmt: skip
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Read this configuration  [env: AGENTCTL_CONFIG]"
    ),
]
LocalConfig = Annotated[
    Path | None,
    _target_option(
        "--config", metavar="FILE", help="Work locally with this file  [env: AGENTCTL_CONFIG]"
    ),
]
Url = Annotated[str | None, _target_option("--url", metavar="URL", help="Talk to this server")]
ContextName = Annotated[
    str | None,
    _target_option(
        "--context", metavar="NAME", help="Talk to the server of this name  [env: AGENTCTL_CONTEXT]"
    ),
]
TokenFile = Annotated[
    str | None,
    _target_option(
        "--token-file", metavar="FILE", help=f"Read the token for it here, {_TOKEN_PLACES}"
    ),
]
GivenTokenFile = Annotated[
    str | None,
    typer.Option("--token-file", metavar="FILE", help=f"Read the token here, {_TOKEN_PLACES}"),
]
InsecureHttp = Annotated[
    bool, _target_option("--insecure-http", help="Send the token unencrypted to another machine")
]
AsUser = Annotated[
    str | None,
    _target_option("--as-user", metavar="USER", help="Locally: see and own what this user does"),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for a confirmation")]
DbId = Annotated[
    str | None, typer.Option("--db", metavar="ID", help="Id of the database, else the first one")
]
TableName = Annotated[str | None, typer.Option("--table", metavar="NAME", help="Name of the table")]
UserId = Annotated[str | None, typer.Option("--user", metavar="USER", help="Only of this user")]
KindOption = Annotated[
    ComponentKind | None,
    typer.Option("--type", metavar="TYPE", help="Only of this type: agent, team or workflow"),
]
Limit = Annotated[
    int,
    typer.Option("--limit", metavar="NUMBER", min=1, max=MAXIMUM_LIMIT, help="How many at most"),
]
PageNumber = Annotated[
    int, typer.Option("--page", metavar="NUMBER", min=1, help="Which page of them")
]
Cursor = Annotated[
    str | None, typer.Option("--cursor", metavar="CURSOR", help="Go on where an answer ended")
]
SortOrder = Annotated[
    Literal["asc", "desc"],
    typer.Option("--sort-order", metavar="ORDER", help="Newest first, desc, or oldest first, asc"),
]
AgentId = Annotated[str | None, typer.Option("--agent", metavar="ID", help="Id of the agent")]
TeamId = Annotated[str | None, typer.Option("--team", metavar="ID", help="Id of the team")]
WorkflowId = Annotated[
    str | None, typer.Option("--workflow", metavar="ID", help="Id of the workflow")
]
SessionOption = Annotated[
    str | None, typer.Option("--session", metavar="ID", help="Id of the session")
]
RunId = Annotated[str, typer.Argument(metavar="RUN_ID", help="Id of the run")]
OlderThan = Annotated[
    str | None,
    typer.Option(
        "--older-than", metavar="AGE", help="Only what was created longer ago: 10m, 2h, 7d"
    ),
]
NewerThan = Annotated[
    str | None,
    typer.Option(
        "--newer-than", metavar="AGE", help="Only what was created since: 10m, 2h, 7d ago"
    ),
]


ComponentRef = tuple[ComponentKind, str]


def resolve_component(
    agent: str | None, team: str | None, workflow: str | None
) -> ComponentRef | None:
    """The component of the options; None when none of them is given.

    Raises:
        UsageFailed: more than one is given.
    """
    values: dict[ComponentKind, str | None] = {"agent": agent, "team": team, "workflow": workflow}
    given = [(kind, value) for kind, value in values.items() if value is not None]
    if len(given) > 1:
        raise UsageError("a run is of one component: --agent, --team or --workflow")
    return given[0] if given else None


def find_component(record: Mapping[str, Any]) -> ComponentRef | None:
    """The component that the record of a session or run names; None when it names none."""
    for names in KINDS.values():
        if record.get(names.id_field):
            return names.kind, cast(str, record[names.id_field])
    return None


def component_of_run(run: Mapping[str, Any]) -> ComponentRef:
    """The component that a run record names.

    Raises:
        UsageFailed: it names none.
    """
    named = find_component(run)
    if named is not None:
        return named
    raise UsageError(
        "the server does not say which component the run is of",
        hint="name it: --agent ID, --team ID or --workflow ID, with --session ID",
    )


def load_optional_settings(config: Path | None) -> tuple[Settings | None, str | None]:
    """The configuration, or why there is none. One that is named has to be good.

    Raises:
        InvalidConfiguration: `config` names one that is not.
    """
    from agentctl.config import load_settings

    try:
        return load_settings(config), None
    except InvalidConfiguration as failure:
        if config is not None:
            raise
        return None, failure.detail


def resolve_admin_scope(settings: Settings | None) -> str:
    """The scope that allows everything, by default without a configuration."""
    from agentctl.config.settings import Authorization

    return (Authorization() if settings is None else settings.authorization).admin_scope
