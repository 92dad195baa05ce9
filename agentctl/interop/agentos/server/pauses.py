"""Paused runs in the shapes of AgentOS: the calls that wait, and what clients say about them.

AgentOS takes the calls of a paused run back from its client, and makes them as the client sends
them. Here a client only decides: a call is made with the arguments that were stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentctl.errors import BadRequest, Conflict, FourEyes, NotFound, TooLarge
from agentctl.interface.requests.approvals import Ruling, build_ruling
from agentctl.interop.agentos.mapping import write_tool
from agentctl.interop.agentos.server.directory import Directory
from agentctl.interop.agentos.values import Built, read_object, read_objects, read_text, to_seconds
from agentctl.records.approvals import ApprovalKind, ApprovalRecord, hash_call
from agentctl.records.kinds import ComponentKind
from agentctl.records.strict import MAXIMUM_VALUES, NotStrict, has_too_many_values, parse_json
from agentctl.records.text import check_json

FIELDS: dict[ComponentKind, str] = {
    "agent": "tools",
    "team": "requirements",
    "workflow": "step_requirements",
}
"""The field of the form that continues a paused run."""

PAUSE_TYPES: dict[ApprovalKind, str] = {
    "approval": "confirmation",
    "input": "user_input",
    "external": "external_execution",
}
"""The names of the kinds of approval. AgentOS has none for `outcome`."""

_FLAGS: dict[ApprovalKind, str] = {
    "approval": "requires_confirmation",
    "external": "external_execution_required",
    "input": "requires_user_input",
}
"""The members of a call that are true for a kind of approval."""

_FIELD_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
}
"""The names of the types of JSON Schema."""

NEEDS_APPROVER = "This run requires admin approval before it can be continued"
"""The text of AgentOS for a run that another person has to approve."""

ANSWER = "answer"
"""The field of an answer that is not an object."""

AskedApproval = Mapping[str, Any]
"""An approval: a record, or the part in the event of a pause with `run_id`, `component_type`,
`component_id` and `created_at` of the run."""


def write_waiting_tool(approval: AskedApproval) -> Built:
    """Return the call of an approval with what it waits for."""
    kind = approval["kind"]

    return write_tool(
        {
            "tool_call_id": approval["tool_call_id"],
            "tool_name": approval["tool_name"],
            "tool_args": approval["arguments"],
            **{flag: kind == approval_kind for approval_kind, flag in _FLAGS.items()},
            "user_input_schema": _write_fields(approval) if kind == "input" else None,
            "approval_type": write_approval_type(approval),
            "approval_id": approval["approval_id"],
        },
        to_seconds(approval["created_at"]),
    )


def write_approval_type(approval: AskedApproval) -> str | None:
    """Return `required` for an approval that another person decides."""
    return "required" if approval["policy"] == "other" else None


def write_requirement(approval: AskedApproval, root_run_id: str, directory: Directory) -> Built:
    """Return the requirement of a paused run, with the member whose call it is."""
    tool = write_waiting_tool(approval)
    requirement = {
        "id": approval["approval_id"],
        "created_at": approval["created_at"],
        "tool_execution": tool,
    }

    if tool["user_input_schema"] is not None:
        requirement["user_input_schema"] = tool["user_input_schema"]

    if approval["run_id"] == root_run_id:
        return requirement

    kind = approval["component_type"]
    component_id = approval["component_id"]

    return requirement | {
        "member_agent_id": component_id,
        "member_agent_name": directory.get_name(kind, component_id),
        "member_run_id": approval["run_id"],
    }


def write_pause(run_id: str, approvals: Iterable[AskedApproval], directory: Directory) -> Built:
    """Return the members of a paused agent or team run, or of the event of its pause.

    Args:
        approvals: the pending approvals of the run and of its members.
    """
    pending_approvals = list(approvals)

    return {
        "tools": [
            write_waiting_tool(approval)
            for approval in pending_approvals
            if approval["run_id"] == run_id
        ],
        "requirements": [
            write_requirement(approval, run_id, directory) for approval in pending_approvals
        ],
    }


def write_workflow_pause(
    run_id: str,
    session_id: str,
    step: tuple[str, int],
    executor: tuple[ComponentKind, str, str] | None,
    approvals: Iterable[AskedApproval],
    directory: Directory,
) -> Built:
    """Return the members of a paused workflow run, or of the event of its pause.

    Args:
        step: name and index of the step that waits.
        executor: kind and id of the component of the step, and its run; None if the step itself
            waits.
    """
    name, index = step
    pending_approvals = list(approvals)
    step_members: Built = {"step_name": name, "step_index": index, "step_type": "Step"}
    requirements = [
        _write_step(approval, step_members)
        for approval in pending_approvals
        if approval["run_id"] == run_id
    ]

    if executor is not None:
        kind, component_id, executor_run_id = executor
        requirements.append(
            step_members
            | {
                "step_id": executor_run_id,
                "requires_executor_input": True,
                "executor_requirements": [
                    write_requirement(approval, run_id, directory)
                    for approval in pending_approvals
                    if approval["run_id"] != run_id
                ],
                "executor_id": component_id,
                "executor_name": directory.get_name(kind, component_id),
                "executor_run_id": executor_run_id,
                "executor_type": kind,
                "executor_session_id": session_id,
            }
        )

    return {
        "paused_step_name": name,
        "paused_step_index": index,
        "pause_kind": "step" if executor is None else "executor",
        "step_requirements": requirements,
    }


def _write_step(approval: AskedApproval, step: Built) -> Built:
    is_input = approval["kind"] == "input"

    return step | {
        "step_id": approval["tool_call_id"],
        "step_name": approval["tool_name"] or step["step_name"],
        "requires_confirmation": not is_input,
        "confirmation_message": None if is_input else approval["question"],
        "requires_user_input": is_input,
        "user_input_message": approval["question"] if is_input else None,
        "user_input_schema": _write_fields(approval) if is_input else None,
    }


def _write_fields(approval: AskedApproval) -> list[Built]:
    """Return the fields of an answer, without values: one for each member of an object."""
    schema = approval["schema"] or {}
    fields = _find_properties(schema)
    required = schema.get("required", ())
    if not fields:
        # An answer that is not an object is one field.
        fields = {ANSWER: {"description": approval["question"], **schema}}
        required = (ANSWER,)

    return [
        {
            "name": name,
            "field_type": _FIELD_TYPES.get(str(field.get("type")), "str"),
            "description": field.get("description"),
            "value": None,
            "required": name in required,
            "allowed_values": field.get("enum"),
        }
        for name, field in fields.items()
        if isinstance(field, dict)
    ]


def _find_properties(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the members of an answer; empty if it is not an object."""
    return read_object((schema or {}).get("properties")) or {}


@dataclass(frozen=True, slots=True)
class Entry:
    """The part of a returned call that is read."""

    call_id: str
    """Id of the call, or of the step if the step itself waits."""

    approval_id: str | None
    """Id of the approval, which the response of this server names; other clients leave it out."""

    tool_name: str | None
    """Name of the tool as the client has seen it; None if the client does not say."""

    arguments: dict[str, Any] | None
    """Arguments as the client has seen them; None if the client does not say."""

    confirmed: bool | None
    """The decision; None if the entry does not decide."""

    note: str | None

    values: Mapping[str, Any]
    """Values of the fields of an answer."""

    result: Any
    """Result of a tool that the client executes."""

    @property
    def decides(self) -> bool:
        """True if the client has decided; it sends the calls without a decision as well."""
        return self.confirmed is not None or bool(self.values)


def read_entries(field: str, text: str | None) -> list[Entry]:
    """Return the calls of a form field: tool executions, requirements or step requirements."""
    if not text:
        return []

    if has_too_many_values(text.encode("utf-8", "surrogatepass")):
        raise TooLarge(f"{field} has more than {MAXIMUM_VALUES} values")

    try:
        entries = parse_json(text)
    except NotStrict:
        raise BadRequest(f"Invalid JSON in {field} field") from None

    if entries is None:
        return []

    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise BadRequest(f"Invalid structure or content for {field}: it must be a list of objects")

    return [entry for requirement in entries for entry in _read_requirement(field, requirement)]


def _read_requirement(field: str, requirement: Built) -> Iterator[Entry]:
    """Yield the calls of a requirement; a tool execution is a requirement of its own call."""
    nested = requirement.get("executor_requirements")
    if isinstance(nested, list):
        for inner_requirement in read_objects(nested):
            yield from _read_requirement(field, inner_requirement)
        return

    members = requirement
    tool = read_object(requirement.get("tool_execution"))
    if tool is not None:
        # A client may set the decision on the requirement only.
        members = {
            "confirmed": requirement.get("confirmation"),
            "confirmation_note": requirement.get("confirmation_note"),
            "result": requirement.get("external_execution_result"),
        }
        members |= {name: value for name, value in tool.items() if value is not None}

    call_id = members.get("tool_call_id", members.get("step_id"))
    arguments = members.get("tool_args")
    confirmed = members.get("confirmed")
    note = members.get("confirmation_note", members.get("rejection_feedback"))
    if (
        not isinstance(call_id, str)
        or not isinstance(arguments, dict | None)
        or not isinstance(confirmed, bool | None)
        or not isinstance(note, str | None)
    ):
        raise BadRequest(
            f"Invalid structure or content for {field}: each entry must have tool_call_id, and"
            " tool_args, confirmed and confirmation_note of their types"
        )

    # Clients put the values of an answer on the requirement or on its call.
    values = dict[str, Any]()
    for schema in (requirement.get("user_input_schema"), members.get("user_input_schema")):
        for item in read_objects(schema):
            if item.get("value") is not None:
                values[str(item.get("name"))] = item["value"]

    yield Entry(
        call_id=call_id,
        approval_id=read_text(members.get("approval_id")),
        tool_name=read_text(members.get("tool_name")),
        arguments=arguments,
        confirmed=confirmed,
        note=note,
        values=values,
        result=members.get("result"),
    )


def match_decisions(entries: Iterable[Entry], approvals: Sequence[ApprovalRecord]) -> list[Ruling]:
    """Return the decisions of the user of a run that a client's calls express.

    Calls that wait for nothing are ignored, because clients send all calls of a run.

    Raises:
        FourEyes: the run waits for an approver.
        NotFound: a decision is about a call that never waited.
        Conflict: the client has seen another call than the one that waits.
    """
    pending_approvals = [approval for approval in approvals if approval["status"] == "pending"]
    if any(approval["policy"] == "other" for approval in pending_approvals):
        raise FourEyes(NEEDS_APPROVER)

    # A decision before the newest pause belongs to an earlier pause.
    paused_at = min((approval["created_at"] for approval in pending_approvals), default="")

    decisions = []
    for entry in entries:
        approval = _find_approval(entry, approvals)
        if approval is None:
            if entry.decides:
                raise NotFound("Approval not found")
            continue

        decided_at = approval["decided_at"]
        is_earlier = decided_at is not None and decided_at <= paused_at
        if approval["policy"] == "other" or is_earlier:
            continue

        decision = _build_decision(entry, approval)
        if decision is not None:
            decisions.append(decision)

    return decisions


def _find_approval(entry: Entry, approvals: Sequence[ApprovalRecord]) -> ApprovalRecord | None:
    """Return the approval of a call, the pending one if there are several; None without one."""
    # Models repeat the ids of their calls.
    matching = [approval for approval in approvals if approval["tool_call_id"] == entry.call_id]

    if len(matching) > 1 and entry.approval_id is not None:
        matching = [
            approval for approval in matching if approval["approval_id"] == entry.approval_id
        ]

    pending = [approval for approval in matching if approval["status"] == "pending"]
    if len(pending) > 1:
        raise Conflict(f"{entry.call_id} names several calls: approval_id must name one")

    candidates = pending or matching
    return candidates[-1] if candidates else None


def _build_decision(entry: Entry, approval: ApprovalRecord) -> Ruling | None:
    check_json("tool_args", entry.arguments)

    if entry.tool_name not in (None, approval["tool_name"]):
        raise Conflict(f"tool_name of {entry.call_id} is not that of the call that waits")

    if entry.arguments is not None:
        call = approval["run_id"], approval["tool_call_id"], approval["tool_name"]
        if hash_call(*call, entry.arguments) != approval["arguments_hash"]:
            raise Conflict(
                f"tool_args of {entry.call_id} are not those of the call that waits: a call is made"
                " as it was shown"
            )

    return read_ruling(approval, entry.confirmed, entry.values, entry.result, entry.note)


def read_ruling(
    approval: ApprovalRecord,
    confirmed: bool | None,
    values: Mapping[str, Any],
    result: Any,
    note: str | None,
) -> Ruling | None:
    """Return the ruling of a client about an approval; None if nothing is decided.

    Args:
        confirmed: True to approve, False to reject, None to decide neither.
        values: the values of the fields of an answer.
        result: the result of a tool that the client executes; None without a result.
        note: a remark; empty or None without one.

    Raises:
        Conflict: the outcome of a call whose server died, about which AgentOS has no question.
    """
    kind = approval["kind"]
    note = note or None

    if kind == "outcome" and (confirmed is not None or result is not None):
        call_id = approval["tool_call_id"]
        raise Conflict(
            f"The server that made the call {call_id} died: report what happened with"
            " agentctl approvals complete"
        )

    if kind != "outcome" and confirmed is False:
        return build_ruling(approval, "fail" if kind == "external" else "reject", note=note)

    if kind == "approval" and confirmed:
        return build_ruling(approval, "approve", note=note)

    if kind == "input" and values:
        answer = dict(values) if _find_properties(approval["schema"]) else values.get(ANSWER)
        return build_ruling(approval, "answer", answer, note)

    if kind == "external" and result is not None:
        return build_ruling(approval, "complete", result, note)

    return None
