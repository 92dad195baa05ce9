"""Approvals for people: columns, and the call that a decision is about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentctl.cli.show.columns import format_distance
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.records.kinds import Record

SHOWN_HASH = 8
"""Hexadecimal digits of a hash in a question; `--hash` needs as many."""

APPROVAL = plain_columns(
    "approval_id", "kind", "status", "execution", "policy", "run_id", "root_run_id", "session_id",
    "component_type", "component_id", "user_id", "tool_call_id", "tool_name", "question",
    "arguments", "arguments_hash", "approved_arguments", "approved_arguments_hash", "schema",
    "answer", "note", "result", "created_at", "expires_at", "decided_at", "decided_by",
    "executing_at", "executed_at", "request_id",
)  # fmt: skip

APPROVALS = Columns(
    tsv=APPROVAL,
    table=[
        Column("approval_id", heading="id", look="id"),
        Column("kind"),
        Column("status", style=lambda row: "yellow" if row.get("status") == "pending" else ""),
        Column("execution", style=lambda row: "red" if row.get("execution") == "unknown" else ""),
        Column("tool_name", heading="tool", look="text"),
        Column("component_id", heading="component"),
        Column("user_id", heading="user"),
        Column("age", lambda row: format_distance(row.get("created_at")), right=True),
    ],
)


def list_fields(approval: Record) -> Sequence[Column]:
    """Return the columns of an approval for a table, with a line for each argument."""
    at = next(at for at, column in enumerate(APPROVAL) if column.name == "arguments")
    return [*APPROVAL[:at], *map(_build_argument, approval["arguments"]), *APPROVAL[at:]]


def _build_argument(name: str) -> Column:
    return Column(f"arguments.{name}", lambda row: _format_value(row["arguments"].get(name)))


def describe_call(approval: Record, edited: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Yield the lines about a call, or about a question, that a person decides about.

    Args:
        approval: its record, or its part of the event of a pause, which has fewer fields.
        edited: the new arguments; the lines then have the difference.
    """
    component = approval.get("component_id")
    where = f" of {approval['component_type']} {component}" if component else ""
    yield f"{approval['kind']} {approval['approval_id']}{where}"
    facts = [
        ("tool", approval["tool_name"]),
        ("question", approval.get("question")),
        ("user", approval.get("user_id")),
        ("run", approval.get("run_id")),
        ("age", format_distance(approval.get("created_at"))),
    ]
    before = approval.get("arguments") or {}
    facts += [
        (f"argument {name}", _describe_argument(name, before, edited))
        for name in dict.fromkeys([*before, *(edited or ())])
    ]
    facts.append(("hash", approval["arguments_hash"]))
    known = [(label, str(value)) for label, value in facts if value]
    width = max(len(label) for label, _ in known)
    for label, value in known:
        yield f"  {label:<{width}}  {value}"


def _describe_argument(
    name: str, before: Mapping[str, Any], edited: Mapping[str, Any] | None
) -> str:
    old = _format_value(before[name]) if name in before else "(missing)"
    if edited is None or (name in before and name in edited and before[name] == edited[name]):
        return old
    return f"{old} -> {_format_value(edited[name]) if name in edited else '(removed)'}"


def _format_value(value: object) -> str:
    import orjson

    return orjson.dumps(value).decode()
