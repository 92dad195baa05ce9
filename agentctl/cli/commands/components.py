"""The commands of `agentctl agents`, `teams` and `workflows`: the configured components.

They share one declaration: `build_group` puts the noun into it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any

from agentctl.cli.help import CommandApp, F
from agentctl.cli.lists import ListOutput
from agentctl.cli.parameters import argument, complete_values
from agentctl.cli.show.output import CommandOutput, FieldsOutput, write_line
from agentctl.cli.show.table import Column
from agentctl.cli.target import Target, with_target
from agentctl.interface.requests import DiffFilter, VersionFilter
from agentctl.records.components import ChangeRecord, VersionPage
from agentctl.records.document import Document
from agentctl.records.kinds import KINDS, ComponentKind, Record

ComponentId = Annotated[
    str, argument("ID", "Component id", autocompletion=complete_values("component"))
]

_EXAMPLES: dict[ComponentKind, str] = {"agent": "echo", "team": "duo", "workflow": "relay"}
"""Component ids of the demo, so that the examples work."""


def _format_model(record: Record) -> object:
    model = record.get("model") or {}
    return model.get("name") or model.get("model")


def _format_members(record: Record) -> str:
    members = record.get("members") or []
    return ", ".join(str(member.get("agent_id") or member.get("team_id")) for member in members)


def _format_names(record: Record, field: str, separator: str) -> str:
    return separator.join(str(part.get("name")) for part in record.get(field) or [])


_COLUMNS: dict[ComponentKind, list[Column]] = {
    "agent": [
        Column("model", _format_model),
        Column("tools", lambda record: _format_names(record, "tools", ", "), look="text"),
    ],
    "team": [
        Column("mode"),
        Column("model", _format_model),
        Column("members", _format_members, look="text"),
    ],
    "workflow": [
        Column("steps", lambda record: _format_names(record, "steps", " > "), look="text")
    ],
}


_VERSIONS = [
    Column("version"),
    Column("first_seen_at"),
    Column("is_current"),
    Column("configuration", look="text"),
]


def describe_changes(changes: Iterable[ChangeRecord]) -> Iterator[str]:
    """Yield the lines that show the differences of two versions."""
    from difflib import unified_diff

    for change in changes:
        yield str(change["path"])
        before = _split_value(change["before"])
        after = _split_value(change["after"])
        for line in list(unified_diff(before, after, n=1, lineterm=""))[2:]:
            if not line.startswith("@@"):
                yield f"  {line[:1]} {line[1:]}"


def _split_value(value: Any) -> list[str]:
    if value is None:
        return []
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return text.splitlines() or [""]


def build_group(path: str) -> CommandApp:
    """Return the group of one kind of component.

    Args:
        path: the name of the group: `agents`, `teams` or `workflows`.
    """
    kind = next(kind for kind, names in KINDS.items() if names.path == path)
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

    def command(name: str, help: str, example: str) -> Callable[[F], F]:
        """Add a command to the group, with the words of its example."""
        return group.command(name, help=help, epilog=f"Example: agentctl {names.path} {example}")

    @command("list", f"List the {names.path} that you can read.", "list")
    @with_target(reads="components")
    async def list_components(target: Target, out: FieldsOutput) -> None:
        document = await target.operations.components.list(kind)
        out.show_list(document, columns, names.id_field)

    @command("get", f"Show one {kind}.", f"get {_EXAMPLES[kind]}")
    @with_target(reads="components")
    async def get_component(target: Target, out: FieldsOutput, component_id: ComponentId) -> None:
        document = await target.operations.components.get(kind, component_id)
        all_columns = [*columns, Column("session_table"), Column("db_id")]
        if kind != "team":
            all_columns.append(Column("input_schema", look="text"))
        out.show_record(document, all_columns, names.id_field)

    @command(
        "versions", f"List the versions of one {kind}, newest first.", f"versions {_EXAMPLES[kind]}"
    )
    @with_target()
    async def list_versions(
        target: Target, out: ListOutput, component_id: ComponentId, filter: VersionFilter
    ) -> None:
        async def read(filter: VersionFilter) -> Document[VersionPage]:
            return await target.operations.components.list_versions(kind, component_id, filter)

        await out.show(target, read, filter, _VERSIONS, "version", noun="versions")

    @command(
        "diff",
        f"Show the differences between two versions of one {kind} (default: the two newest).",
        f"diff {_EXAMPLES[kind]}",
    )
    @with_target()
    async def show_diff(
        target: Target,
        out: CommandOutput,
        component_id: ComponentId,
        before: str | None = argument("OLD", "Earlier version", default=None),
        after: str | None = argument("NEW", "Later version", default=None),
    ) -> None:
        document = await target.operations.components.compare_versions(
            kind, component_id, DiffFilter(before, after)
        )
        if not out.is_table:
            out.show_record(document, [Column("changes")], "changes")
            return
        for line in describe_changes(document.value["changes"]):
            write_line(line)

    return group
