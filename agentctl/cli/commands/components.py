"""`agentctl agents`, `teams` and `workflows`: the configured components."""

from __future__ import annotations

from typing import Annotated

import typer

from agentctl.cli.help import CommandApp
from agentctl.cli.options import Fields, Output, complete_values
from agentctl.cli.show.output import resolve_format, show_list, show_record
from agentctl.cli.show.table import Column
from agentctl.cli.target import Target, with_target
from agentctl.records.kinds import KINDS, ComponentKind, Record

ComponentId = Annotated[
    str,
    typer.Argument(metavar="ID", help="Component id", autocompletion=complete_values("component")),
]


def _format_model(record: Record) -> object:
    model = record.get("model") or {}
    return model.get("name") or model.get("model")


def _format_members(record: Record) -> str:
    members = record.get("members") or []
    return ", ".join(str(each.get("agent_id") or each.get("team_id")) for each in members)


def _format_steps(record: Record) -> str:
    return " > ".join(str(step.get("name")) for step in record.get("steps") or [])


def _format_tools(record: Record) -> str:
    return ", ".join(str(tool.get("name")) for tool in record.get("tools") or [])


_COLUMNS: dict[ComponentKind, list[Column]] = {
    "agent": [Column("model", _format_model), Column("tools", _format_tools, look="text")],
    "team": [
        Column("mode"),
        Column("model", _format_model),
        Column("members", _format_members, look="text"),
    ],
    "workflow": [Column("steps", _format_steps, look="text")],
}


_EXAMPLES: dict[ComponentKind, str] = {"agent": "echo", "team": "duo", "workflow": "relay"}
"""Component ids of the demo, so that the examples work."""


def _build_group(kind: ComponentKind) -> CommandApp:
    names = KINDS[kind]
    columns = [
        Column(names.id_field),
        Column("name"),
        *_COLUMNS[kind],
        Column("description", look="text"),
    ]
    group = CommandApp(
        help=f"List and show the configured {names.path}.",
        epilog=f"Example: agentctl {names.path} list",
    )

    @group.command(
        "list",
        help=f"List the {names.path} that you can read.",
        epilog=f"Example: agentctl {names.path} list",
    )
    @with_target()
    async def list_components(target: Target, output: Output = None, fields: Fields = None) -> None:
        form = resolve_format(output)
        document = await target.operations.get_components(kind)
        show_list(document, columns, form, id_field=names.id_field, fields=fields)

    @group.command(
        "get",
        help=f"Show one {kind}.",
        epilog=f"Example: agentctl {names.path} get {_EXAMPLES[kind]}",
    )
    @with_target()
    async def get_component(
        target: Target,
        component_id: ComponentId,
        output: Output = None,
        fields: Fields = None,
    ) -> None:
        form = resolve_format(output)
        document = await target.operations.get_component(kind, component_id)
        shown = [*columns, Column("session_table"), Column("db_id")]
        show_record(document, shown, form, id_field=names.id_field, fields=fields)

    return group


agents = _build_group("agent")
teams = _build_group("team")
workflows = _build_group("workflow")
