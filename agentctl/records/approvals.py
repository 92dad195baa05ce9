"""Approvals: what a paused run waits for (docs/contract.md "Approvals").

The decision (`status`) and the call (`execution`) are two facts: an approved call was not
necessarily made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import TypedDict

from agentctl.records.kinds import ApprovalPolicy, ComponentKind
from agentctl.records.sessions import PageMeta
from agentctl.records.times import Timestamp

ApprovalKind = Literal["approval", "input", "external", "outcome"]
"""The question: may this call be made; an answer; the result of a tool that the caller executes;
the outcome of a call whose server died."""

ApprovalStatus = Literal["pending", "approved", "rejected", "answered", "expired", "cancelled"]

ApprovalExecution = Literal["executing", "done", "failed", "unknown"]

Verb = Literal["approve", "reject", "answer", "complete", "fail", "retry"]
"""The decisions."""

VERBS: dict[ApprovalKind, tuple[Verb, ...]] = {
    "approval": ("approve", "reject"),
    "input": ("answer", "reject"),
    "external": ("complete", "fail"),
    "outcome": ("complete", "fail", "retry"),
}
"""The decisions that each kind of approval takes."""

BOUND_VERBS: tuple[Verb, ...] = ("approve", "retry")
"""The decisions that let a call be made. They name the hash of the call that was shown."""

VALUES: dict[Verb, str] = {"approve": "arguments", "answer": "answer", "complete": "result"}
"""The value that a decision can have: edited arguments, the answer, or the result of the call."""

MAXIMUM_NOTE_LENGTH = 500
"""Characters of the note of a decision."""


class ApprovalSummary(TypedDict):
    """An approval in the record of its run, and of the root run of its tree.

    `tool_call_id` names the entry in `tools` of the run `run_id`. `created_at` is the time of
    the pause.
    """

    approval_id: str
    run_id: str
    kind: ApprovalKind
    policy: ApprovalPolicy
    tool_call_id: str
    tool_name: str
    arguments_hash: str
    status: ApprovalStatus
    execution: ApprovalExecution | None
    created_at: Timestamp
    decided_at: Timestamp | None
    decided_by: str | None
    note: str | None


class ApprovalRecord(TypedDict):
    """One thing that a paused run waits for, or waited for.

    `arguments_hash` identifies what an approver has seen: a decision names it. `approved_arguments`
    are the edited arguments, null without an edit; `approved_arguments_hash` is their hash.
    `schema` is the JSON Schema of the arguments, or of the answer. `result` is the result of the
    call: as text of a call that was made, or as the caller gave it.
    """

    approval_id: str
    kind: ApprovalKind
    status: ApprovalStatus
    execution: ApprovalExecution | None
    policy: ApprovalPolicy
    run_id: str
    root_run_id: str
    session_id: str
    component_type: ComponentKind
    component_id: str
    user_id: str | None
    tool_call_id: str
    tool_name: str
    arguments: dict[str, Any]
    arguments_hash: str
    approved_arguments: dict[str, Any] | None
    approved_arguments_hash: str | None
    question: str | None
    schema: dict[str, Any] | None
    answer: Any
    note: str | None
    result: Any
    created_at: Timestamp
    expires_at: Timestamp | None
    decided_at: Timestamp | None
    decided_by: str | None
    executing_at: Timestamp | None
    executed_at: Timestamp | None
    request_id: str | None


@dataclass(slots=True)
class ApprovalRow:
    """A stored approval (docs/contract.md "Approvals"). Times are microseconds UTC."""

    approval_id: str
    kind: ApprovalKind
    policy: ApprovalPolicy
    run_id: str
    root_run_id: str
    session_id: str
    component_type: ComponentKind
    component_id: str
    user_id: str | None

    started_by: str | None
    """The principal that started the root run."""

    tool_call_id: str
    tool_name: str

    arguments: str
    """JSON text."""

    arguments_hash: str
    created_at: int
    idempotent: int = 0
    request_id: str | None = None
    question: str | None = None

    schema: str | None = None
    """JSON text."""

    expires_at: int | None = None
    status: ApprovalStatus = "pending"
    decided_at: int | None = None
    decided_by: str | None = None
    note: str | None = None

    approved_arguments: str | None = None
    """JSON text; None if they were not edited."""

    approved_hash: str | None = None

    answer: str | None = None
    """JSON text."""

    execution: ApprovalExecution | None = None
    executing_at: int | None = None
    executed_at: int | None = None

    result: str | None = None
    """JSON text."""


class ApprovalPage(TypedDict):
    """A page of approvals."""

    data: list[ApprovalRecord]
    meta: PageMeta


class ReceiptRecord(TypedDict):
    """The receipt of a decided approval: a signed statement, a compact JWS."""

    approval_id: str
    receipt: str


def build_receipt(approval: ApprovalRecord, issued_at: str) -> dict[str, Any]:
    """Return the content of the receipt of an approval: who decided what, and what followed.

    It has no texts: arguments and result are named by their hashes (`hash_call`, `hash_value`).
    """
    names = (
        "approval_id", "kind", "status", "execution", "policy", "run_id", "root_run_id",
        "session_id", "component_type", "component_id", "user_id", "tool_call_id", "tool_name",
        "arguments_hash", "approved_arguments_hash", "created_at", "decided_at", "decided_by",
        "executing_at", "executed_at",
    )  # fmt: skip

    values: Mapping[str, Any] = approval
    result = approval["result"]
    return {
        "version": 1,
        "issued_at": issued_at,
        **{name: values[name] for name in names},
        "result_hash": None if result is None else hash_value(result),
    }


def hash_value(result: Any) -> str:
    """Return the hash of the canonical form of a JSON value, as in `hash_call`."""
    import rfc8785

    return f"sha256:{hashlib.sha256(rfc8785.dumps(_to_exact(result))).hexdigest()}"


def hash_call(run_id: str, tool_call_id: str, tool_name: str, arguments: Mapping[str, Any]) -> str:
    """Return the hash that binds a decision to a call: `sha256:` and 64 hexadecimal digits.

    The four values are hashed as canonical JSON (RFC 8785). JSON numbers that are not
    exact in other languages are hashed as their decimal text.
    """
    import rfc8785

    call = {
        "run_id": run_id,
        "tool_call_id": tool_call_id,
        "tool_name": tool_name,
        "arguments": _to_exact(arguments),
    }
    return f"sha256:{hashlib.sha256(rfc8785.dumps(call)).hexdigest()}"


def _to_exact(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _to_exact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_exact(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**53:
        return str(value)
    return value
