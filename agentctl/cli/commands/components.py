"""`agentctl agents`, `teams` and `workflows`: what is configured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from agentctl.cli.help import Branch
from agentctl.cli.options import Output
from agentctl.cli.show.output import chosen_format, show_list, show_record
from agentctl.cli.show.table import Column
from agentctl.cli.target import Door, with_door
from agentctl.records.kinds import KINDS, Kind

__all__ = ["agents", "teams", "workflows"]

Record = Mapping[str, Any]
ComponentId = Annotated[str, typer.Argument(metavar="ID", help="Its id, as in the list")]


def _model(record: Record) -> object:
    model = record.get("model") or {}
    return model.get("name") or model.get("model")


def _members(record: Record) -> str:
    members = record.get("members") or []
    return ", ".join(str(each.get("agent_id") or each.get("team_id")) for each in members)


def _steps(record: Record) -> str:
    return " > ".join(str(step.get("name")) for step in record.get("steps") or [])


def _tools(record: Record) -> str:
    return ", ".join(str(tool.get("name")) for tool in record.get("tools") or [])


_COLUMNS: dict[Kind, list[Column]] = {
    "agent": [Column("model", _model), Column("tools", _tools, look="text")],
    "team": [Column("mode"), Column("model", _model), Column("members", _members, look="text")],
    "workflow": [Column("steps", _steps, look="text")],
}


_EXAMPLES: dict[Kind, str] = {"agent": "echo", "team": "duo", "workflow": "relay"}
"""Ids of the demo, for examples that work."""


def _group(kind: Kind) -> Branch:
    names = KINDS[kind]
    columns = [
        Column(names.id_field),
        Column("name"),
        *_COLUMNS[kind],
        Column("description", look="text"),
    ]
    group = Branch(
        help=f"Show the configured {names.path}.", epilog=f"Example: agentctl {names.path} list"
    )

    @group.command(
        "list",
        help=f"List the {names.path} that you may read.",
        epilog=f"Example: agentctl {names.path} list",
    )
    @with_door()
    async def list_components(door: Door, output: Output = None) -> None:
        form = chosen_format(output)
        document = await door.operations.get_components(kind)
        show_list(document, columns, form, id_field=names.id_field)

    @group.command(
        "get",
        help=f"Show one {kind}.",
        epilog=f"Example: agentctl {names.path} get {_EXAMPLES[kind]}",
    )
    @with_door()
    async def get_component(
        door: Door,
        component_id: ComponentId,
        output: Output = None,
    ) -> None:
        form = chosen_format(output)
        document = await door.operations.get_component(kind, component_id)
        shown = [*columns, Column("session_table"), Column("db_id")]
        show_record(document, shown, form, id_field=names.id_field)

    return group


agents = _group("agent")
teams = _group("team")
workflows = _group("workflow")
