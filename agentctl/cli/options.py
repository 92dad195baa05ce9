"""Options that several commands share, and the values that they select."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from agentctl.cli.ids import ShortId
from agentctl.cli.show.output import CommonFormat, Format
from agentctl.errors import InvalidConfiguration, UsageError
from agentctl.extensions import name_products
from agentctl.interface import requests
from agentctl.interface.declarations import Option, Query, find_declared
from agentctl.light_dataclass import dataclass
from agentctl.records.kinds import ComponentKind, ComponentRef
from agentctl.records.strict import parse_json

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

_TOKEN_PLACES = "(- reads stdin)  [env: AGENTCTL_TOKEN]"


def complete_values(subject: str) -> Any:
    """Return the completion of a parameter with the ids or names of a subject.

    The group of the root finds the values: a completion opens a target, and a target has options.

    Args:
        subject: `agentctl.cli.completion.Subject`, or `component`: that of the group of commands.
    """

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        group = str(ctx.parent.info_name) if ctx.parent is not None else ""
        noun = group.removesuffix("s") if subject == "component" else subject
        root: Any = ctx.find_root().command
        return cast(list[str], root.complete_values(noun, ctx.params, incomplete))

    return complete


def build_option(annotation: object) -> Any:
    """Build the option of a field of a request, from the declarations in its annotation."""
    option, bounds = find_declared(annotation, Option), find_declared(annotation, Query)
    assert option is not None
    more: dict[str, Any] = {"case_sensitive": False} if option.any_case else {}
    if bounds is not None:
        more |= {"min": bounds.ge, "max": bounds.le}
    if option.noun is not None:
        more["autocompletion"] = complete_values(option.noun)
    return typer.Option(option.flag, metavar=option.metavar, help=option.help, **more)


def _target_option(*flags: str, **about: Any) -> Any:
    return typer.Option(*flags, rich_help_panel="Connection and identity", **about)


def build_id_option(noun: str, help: str | None = None) -> Any:
    """Return the option for the id of something, such as `--session`, which a shell completes."""
    return typer.Option(
        f"--{noun}",
        metavar="ID",
        help=help or f"{noun.title()} id",
        autocompletion=complete_values(noun),
    )


def _id_argument(noun: str, help: str) -> Any:
    return typer.Argument(
        metavar=f"{noun.upper()}_ID", help=help, autocompletion=complete_values(noun)
    )


def _age_option(flag: str, what: str) -> Any:
    text = f"Filter by age: {what} than AGE ago, such as 10m, 2h or 7d"
    return typer.Option(flag, metavar="AGE", help=text)


def _output_option(formats: str) -> Any:
    text = (
        f"Output format: {formats}  [env: AGENTCTL_OUTPUT; default: table at a terminal, else tsv]"
    )
    return typer.Option("--output", "-o", metavar="FORM", help=text)


Output = Annotated[CommonFormat | None, _output_option("table, wide, json, jsonl, tsv or name")]
TranscriptOutput = Annotated[
    Format | None, _output_option("table, text, markdown, json, jsonl, tsv or name")
]
Fields = Annotated[
    str | None,
    typer.Option(
        "--fields", metavar="FIELDS", help="Show only these fields, such as run_id,status,error"
    ),
]
Watch = Annotated[
    bool,
    typer.Option(
        "--watch", "-w", help="Show the list again and again until Ctrl-C; -o jsonl: its changes"
    ),
]
Every = Annotated[
    float | None,
    typer.Option(
        "--every",
        metavar="SECONDS",
        min=0.1,
        max=86_400,
        help="Seconds between two reads with --watch (default: 2)",
    ),
]
AllPages = Annotated[bool, typer.Option("--all", help="List every page, in the order of creation")]
Full = Annotated[bool, typer.Option("--full", help="Show whole tool calls, prompts and reasoning")]
Members = Annotated[bool, typer.Option("--members", help="Show the work of every member and step")]
Raw = Annotated[bool, typer.Option("--raw", help="Show answers as sent, not as Markdown")]
LocalTime = Annotated[
    bool, typer.Option("--local-time", help="Show times in the local time zone instead of UTC")
]
NoPager = Annotated[
    bool, typer.Option("--no-pager", help="Use no pager  [env: AGENTCTL_PAGER, default: less -FRX]")
]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Configuration file  [env: AGENTCTL_CONFIG]"),
]
LocalConfig = Annotated[
    Path | None,
    _target_option(
        "--config",
        metavar="FILE",
        help="Work locally with this configuration  [env: AGENTCTL_CONFIG]",
    ),
]
Url = Annotated[str | None, _target_option("--url", metavar="URL", help="Server URL")]
ContextName = Annotated[
    str | None,
    _target_option(
        "--context",
        metavar="NAME",
        help="Use this named server  [env: AGENTCTL_CONTEXT]",
        autocompletion=complete_values("context"),
    ),
]
TokenFile = Annotated[
    str | None,
    _target_option(
        "--token-file", metavar="FILE", help=f"File with the token for the server {_TOKEN_PLACES}"
    ),
]
GivenTokenFile = Annotated[
    str | None,
    typer.Option("--token-file", metavar="FILE", help=f"File with the token {_TOKEN_PLACES}"),
]
InsecureHttp = Annotated[
    bool,
    _target_option(
        "--insecure-http", help="Allow sending the token to another machine without encryption"
    ),
]
Timeout = Annotated[
    float | None,
    _target_option(
        "--timeout",
        metavar="SECONDS",
        min=0.1,
        max=86_400,
        help="Seconds to wait for the server to respond (default: 30)",
    ),
]
AsUser = Annotated[
    str | None,
    _target_option("--as-user", metavar="USER", help="Act as this user (local mode only)"),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation")]
DbId = Annotated[str | None, build_option(requests.DatabaseId)]
UserId = Annotated[str | None, build_option(requests.UserId)]
ToFile = Annotated[
    Path | None,
    typer.Option(
        "--to-file",
        metavar="FILE",
        help="New file to write to, readable only by its owner (- is stdout)",
    ),
]
UserOfData = Annotated[str, typer.Argument(metavar="USER", help="User id: the `sub` of tokens")]
ForeignDatabase = Annotated[
    str | None,
    _target_option(
        "--database",
        metavar="URL",
        help=f"Read this database of {name_products()}: a URL, or the path of a SQLite file",
    ),
]
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
OlderThan = Annotated[str | None, _age_option("--older-than", "created more")]
NewerThan = Annotated[str | None, _age_option("--newer-than", "created less")]
Idle = Annotated[str | None, _age_option("--idle", "last used more")]
UsedWithin = Annotated[str | None, _age_option("--used-within", "last used less")]


def check_list_options(context: typer.Context) -> None:
    """Check the options of a list that has `--all`.

    Raises:
        UsageError: with `--all`, an option selects one page, or an order in which rows change their
            places; with `--search`, an option selects another order than that of creation.
    """
    source = {name: context.get_parameter_source(name) for name in context.params}
    given = {name for name, each in source.items() if each and each.name == "COMMANDLINE"}
    is_by_use = "sort_by" in given and context.params["sort_by"] == "updated_at"
    if is_by_use and context.params.get("search") is not None:
        raise UsageError(
            "--search and --sort-by updated_at exclude each other",
            cause="a search finds sessions in the order of their creation",
        )
    if not context.params["all_pages"]:
        return
    for name in ("limit", "page", "watch"):
        if name in given:
            raise UsageError(f"--all and --{name} exclude each other")
    if is_by_use:
        raise UsageError(
            "--all and --sort-by updated_at exclude each other",
            cause="a row that changes meanwhile would change its place in the list",
        )


@dataclass(frozen=True, slots=True)
class ComponentChoice:
    """The options that name a component, of which a command takes at most one."""

    agent: AgentId = None
    team: TeamId = None
    workflow: WorkflowId = None

    def resolve(self) -> ComponentRef | None:
        """Return the component that an option names, None without one.

        Raises:
            UsageError: more than one option is given.
        """
        kinds: tuple[ComponentKind, ...] = ("agent", "team", "workflow")
        chosen = [(kind, value) for kind in kinds if (value := getattr(self, kind)) is not None]
        if len(chosen) > 1:
            raise UsageError("--agent, --team and --workflow exclude each other")
        return chosen[0] if chosen else None


NO_CHOICE = ComponentChoice()


def select_component(
    filter: requests.RunFilter, component: ComponentRef | None
) -> requests.RunFilter:
    """Return the filter for the runs of a component, of which `ComponentChoice` has the name.

    Raises:
        UsageError: the filter names a type or a component, too.
    """
    if component is None:
        return filter
    if filter.component_type is not None or filter.component_id is not None:
        raise UsageError("--agent, --team and --workflow exclude --type and --component")
    return replace(filter, component_type=component[0], component_id=component[1])


def parse_object(option: str, text: str | None) -> dict[str, Any] | None:
    """Return the JSON object of an option, None without the option.

    Raises:
        UsageError: the text is not a JSON object.
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
