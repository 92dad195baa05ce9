"""Approvals for people: options, columns, the call to decide about, and questions at a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import orjson

from agentctl.cli.ids import choose_id
from agentctl.cli.io import read_text_or_stdin
from agentctl.cli.own_approvals import decide, find_reader
from agentctl.cli.parameters import argument, complete_values, option
from agentctl.cli.show.columns import format_distance
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.show.terminal import ask, check_confirmable, confirm, note
from agentctl.cli.target import Target
from agentctl.errors import (
    AgentctlError,
    ConfirmationDeclined,
    Conflict,
    NotFound,
    UsageError,
    WaitsForDecision,
)
from agentctl.interface.requests import MAXIMUM_LIMIT, MINIMUM_ID_PREFIX, SUMMARY_VIEW, Page
from agentctl.interface.requests.approvals import ApprovalFilter, Ruling
from agentctl.records.approvals import VERBS, ApprovalRecord, Verb
from agentctl.records.kinds import Record
from agentctl.records.phase import describe_wait
from agentctl.records.strict import parse_json
from agentctl.records.text import find_json_problem

SHOWN_HASH = 8
"""Hexadecimal digits of a hash in a question; `--hash` needs as many."""

ApprovalId = Annotated[
    str, argument("APPROVAL_ID", "Approval id", autocompletion=complete_values("approval"))
]
Note = Annotated[str | None, option("--note", "TEXT", "Note, at most 500 characters")]
SeenHash = Annotated[
    str | None,
    option(
        "--hash",
        "HASH",
        f"Hash of the call, {SHOWN_HASH} characters or more; skips the confirmation",
    ),
]

_HASH = re.compile(f"[0-9a-f]{{{SHOWN_HASH},64}}")

COMMANDS = {"approval": "approve", "input": "answer", "external": "complete", "outcome": "get"}
"""The command for each kind of approval."""

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

_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "string": str,
    "array": list,
    "object": dict,
}
"""The types of values by the names of JSON Schema."""

Schema = Mapping[str, Any]
"""A JSON Schema."""


async def find_approval(target: Target, text: str, db: str | None) -> ApprovalRecord:
    """Return the approval that an id, or its first 8 characters or more, names.

    Raises:
        NotFound: there is no such approval.
        UsageError: the ids of several approvals begin with the text.
    """
    rows: Sequence[ApprovalRecord] = []
    if len(text) >= MINIMUM_ID_PREFIX:
        prefix_filter = ApprovalFilter(id_prefix=text, db_id=db, page=Page(limit=MAXIMUM_LIMIT))
        # Without a reader the list of the server raises the error of the missing scope.
        read = await find_reader(target) or target.operations.approvals.list
        rows = (await read(prefix_filter)).value["data"]

    candidates = {
        row["approval_id"]: f"{row['status']}  {row['tool_name']}  {row['created_at']}"
        for row in rows
    }
    approval_id = choose_id("approvals", text, candidates)

    for row in rows:
        if row["approval_id"] == approval_id:
            return row
    raise NotFound("Approval not found")


def confirm_call(
    target: Target,
    approval: ApprovalRecord,
    question: str,
    *,
    seen_hash: str | None,
    yes: bool,
    edited: Mapping[str, Any] | None = None,
) -> None:
    """Show a call and ask, unless `--hash` or `--yes` is given.

    The answer about a decided approval comes from the server, without a question.

    Raises:
        UsageError: `seen_hash` is too short or no hash, or there is no terminal for the question.
        Conflict: the hash belongs to another call.
        ConfirmationDeclined: the answer was no.
    """
    look = target.command(f"approvals get {approval['approval_id']}")
    if seen_hash is not None:
        digits = seen_hash.removeprefix("sha256:").lower()
        if not _HASH.fullmatch(digits):
            raise UsageError(
                f"--hash must be {SHOWN_HASH} to 64 hexadecimal digits",
                hint=f"copy the hash from: {look}",
            )
        if not approval["arguments_hash"].removeprefix("sha256:").startswith(digits):
            raise Conflict("--hash belongs to a different call", hint=f"look at it with: {look}")

    is_confirmed = yes or seen_hash is not None or approval["status"] != "pending"
    hint = "pass --hash HASH, the one of the call that you have seen, or --yes"
    check_confirmable(yes=is_confirmed, hint=hint)
    if not is_confirmed or edited is not None:
        show_call(approval, edited)
    confirm(question, yes=is_confirmed)


def show_call(approval: Mapping[str, Any], edited: Mapping[str, Any] | None = None) -> None:
    """Write the call or the question of an approval to stderr, see `describe_call`."""
    for line in describe_call(dict(approval), edited):
        note(line)


def name_command(target: Target, approval: Mapping[str, Any]) -> str:
    """Return the command line that decides about an approval."""
    verb = COMMANDS[approval["kind"]]
    return target.command(f"approvals {verb} {approval['approval_id']}")


async def send_ruling(
    target: Target, approval: ApprovalRecord, ruling: Ruling, out: CommandOutput
) -> None:
    """Decide about an approval and report it."""
    document = await decide(target, approval, ruling)
    decided = document.value
    if not out.is_table:
        out.show_record(document, APPROVAL, "approval_id")
    target.report_done(f"{decided['status']}: {decided['kind']} of {decided['tool_name']}")

    # A server claims the next leg; a local command does not execute it.
    if target.local is None:
        return
    run_id = decided["root_run_id"]
    run = (await target.operations.runs.get(run_id, form=SUMMARY_VIEW)).value
    if run["status"] == "PAUSED":
        note(f"run {run_id} still waits for {describe_wait(run['approvals'])}")
    else:
        note(f"a server continues run {run_id}")


def parse_value(text: str, schema: Mapping[str, Any] | None) -> Any:
    """Return the value of a text: JSON, or the text itself.

    Args:
        schema: JSON Schema of the value; a string needs no quotes.
    """
    schema = schema or {}
    if text in (schema.get("enum") or ()):
        return text

    try:
        value = parse_json(text)
    except ValueError:
        return text
    if schema.get("type") == "string" and not isinstance(value, str):
        # The text 12 is a string for such a schema.
        return text
    return value


def read_value(option: str, text: str) -> str:
    """Return the text of an option; `-` reads it from stdin, `@FILE` from a file."""
    if not text.startswith("@"):
        return read_text_or_stdin(text, option)
    try:
        return Path(text[1:]).read_text("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"{option}: the file {text[1:]} cannot be read as text") from None


def check_decidable(approval: ApprovalRecord, verb: Verb, target: Target) -> None:
    """Refuse a command that does not fit the kind of an approval."""
    kind = approval["kind"]
    if verb not in VERBS[kind]:
        raise UsageError(
            f"the approval is of the kind {kind}", hint=f"use: {name_command(target, approval)}"
        )


async def read_pending(target: Target, run_id: str) -> list[Mapping[str, Any]] | None:
    """Return the pending approvals of a run and its members, oldest first.

    The result is None if the caller may not read them.
    """
    pending_filter = ApprovalFilter(
        run_id=run_id, status="pending", page=Page(limit=MAXIMUM_LIMIT, sort_order="asc")
    )
    try:
        read = await find_reader(target)
        if read is None:
            return None
        page = (await read(pending_filter)).value
    except AgentctlError:
        return None
    return [dict(row) for row in page["data"]]


def build_waiting(
    target: Target, run_id: str, approvals: Sequence[Mapping[str, Any]]
) -> WaitsForDecision:
    """Return the error of a command whose run waits for people."""
    # The approvals in the event of a pause have no status: all of them are pending.
    pending = [row for row in approvals if row.get("status") in (None, "pending")]
    needs_approver = any(row.get("policy") == "other" for row in pending)

    hint = f"list its approvals with: {target.command(f'approvals list --run {run_id}')}"
    if len(pending) == 1:
        hint = f"decide with: {name_command(target, pending[0])}"
    return WaitsForDecision(
        f"run {run_id} waits for {describe_wait(pending)}",
        cause="another person has to decide" if needs_approver else None,
        hint=hint,
    )


def list_fields(approval: Record) -> Sequence[Column]:
    """Return the columns of an approval for a table, with a line for each argument."""
    index = next(index for index, column in enumerate(APPROVAL) if column.name == "arguments")
    argument_columns = map(_build_argument_column, approval["arguments"])
    return [*APPROVAL[:index], *argument_columns, *APPROVAL[index:]]


def _build_argument_column(name: str) -> Column:
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
    arguments = approval.get("arguments") or {}
    for name in dict.fromkeys([*arguments, *(edited or ())]):
        facts.append((f"argument {name}", _describe_argument(name, arguments, edited)))
    facts.append(("hash", approval["arguments_hash"]))

    known_facts = [(label, str(value)) for label, value in facts if value]
    width = max(len(label) for label, _ in known_facts)
    for label, value in known_facts:
        yield f"  {label:<{width}}  {value}"


def _describe_argument(
    name: str, arguments: Mapping[str, Any], edited: Mapping[str, Any] | None
) -> str:
    """Return the value of an argument; with edited arguments also the new value if it differs."""
    old_text = _format_value(arguments[name]) if name in arguments else "(missing)"
    if edited is None:
        return old_text
    if name not in edited:
        return f"{old_text} -> (removed)"
    if name in arguments and arguments[name] == edited[name]:
        return old_text
    return f"{old_text} -> {_format_value(edited[name])}"


def _format_value(value: object) -> str:
    return orjson.dumps(value).decode()


def ask_value(
    label: str, schema: Schema | None, present_values: Mapping[str, Any] | None = None
) -> Any:
    """Ask for a value; for each property if the schema is the schema of an object.

    Args:
        present_values: the values of the properties, which an empty line keeps.

    Raises:
        ConfirmationDeclined: the input has ended.
    """
    schema = schema or {}
    properties = schema.get("properties")
    is_object = schema.get("type") == "object"
    if not is_object or not isinstance(properties, Mapping) or not properties:
        if present_values is not None:
            return _ask_one(label, {"type": "object"}, dict(present_values), is_optional=False)
        return _ask_one(label, schema, None, is_optional=False)

    values = dict(present_values or {})
    required_names = schema.get("required") or ()
    for name, property_schema in properties.items():
        if not isinstance(property_schema, Mapping):
            # `true`, the schema of any value.
            property_schema = {}
        default = values.get(name, property_schema.get("default"))
        is_optional = name not in required_names
        value = _ask_one(str(name), property_schema, default, is_optional=is_optional)
        if value is not None:
            values[str(name)] = value
    return values


def _ask_one(label: str, schema: Schema, default: Any, *, is_optional: bool) -> Any:
    """Ask for one value until it fits its schema; an empty line takes the default."""
    shown_default = "" if default is None else f" [{_to_text(default)}]"
    description = schema.get("description") or schema.get("title")
    if isinstance(description, str):
        note(description)

    while True:
        answer = ask(f"{label} ({_describe_type(schema)}){shown_default}: ")
        if answer is None:
            raise ConfirmationDeclined("no answer, nothing was changed")
        if not answer and (default is not None or is_optional):
            return default

        value = parse_value(answer, schema)
        problem = _find_problem(value, schema)
        if problem is None:
            return value
        note(problem)


def _find_problem(value: Any, schema: Schema) -> str | None:
    """Return why a value does not fit; the server checks the whole schema."""
    problem = find_json_problem(value)
    if problem:
        return problem

    choices = schema.get("enum")
    if isinstance(choices, list) and value not in choices:
        return f"must be one of {', '.join(map(_to_text, choices))}"

    type_name = schema.get("type")
    if not isinstance(type_name, str) or type_name not in _PYTHON_TYPES:
        return None
    expected_type = _PYTHON_TYPES[type_name]

    # In Python a bool is an integer.
    is_bool_for_number = type_name in ("integer", "number") and isinstance(value, bool)
    if isinstance(value, expected_type) and not is_bool_for_number:
        return None
    if type_name in ("array", "object"):
        return f"must be JSON of type {type_name}"
    return f"must be of type {type_name}"


def _describe_type(schema: Schema) -> str:
    choices = schema.get("enum")
    if isinstance(choices, list):
        return " or ".join(map(_to_text, choices))
    type_name = schema.get("type")
    return type_name if isinstance(type_name, str) else "JSON or text"


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
