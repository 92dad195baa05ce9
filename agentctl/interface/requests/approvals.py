"""Requests of the operations on approvals; see `agentctl.interface.requests`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from agentctl.interface.declarations import Option, Query
from agentctl.interface.requests import (
    DatabaseId,
    IdempotencyKey,
    IdPrefix,
    OfSession,
    Page,
    UserId,
)
from agentctl.records.approvals import (
    BOUND_VERBS,
    VALUES,
    ApprovalExecution,
    ApprovalKind,
    ApprovalStatus,
    Verb,
)
from agentctl.records.kinds import ApprovalPolicy, ComponentKind
from agentctl.records.times import ParsedTimestamp

MAXIMUM_DECISIONS = 100
"""Decisions of one request that continues a run."""


@dataclass(frozen=True, slots=True)
class ApprovalFilter:
    """The filter of a list of approvals, ordered by `created_at`, newest first.

    Times are microseconds UTC.
    """

    status: Annotated[
        ApprovalStatus | None,
        Query("Only approvals with this status"),
        Option(
            "--status",
            "STATUS",
            "Filter by status: pending, approved, rejected, answered, expired or cancelled",
            any_case=True,
        ),
    ] = None
    execution: Annotated[
        ApprovalExecution | None,
        Query("Only approvals whose call has this state"),
        Option("--execution", "STATE", "Filter by the call: executing, done, failed or unknown"),
    ] = None
    kind: Annotated[
        ApprovalKind | None,
        Query("Only this kind of approval"),
        Option("--kind", "KIND", "Filter by kind: approval, input, external or outcome"),
    ] = None
    policy: Annotated[
        ApprovalPolicy | None,
        Query("Only approvals with this policy"),
        Option("--policy", "POLICY", "Filter by who decides: user or other"),
    ] = None
    component_type: Annotated[
        ComponentKind | None,
        Query("Only approvals of this kind of component"),
        Option("--type", "TYPE", "Filter by component type: agent, team or workflow"),
    ] = None
    component_id: Annotated[
        str | None,
        Query("Only of this agent, team or workflow"),
        Option("--component", "ID", "Filter by component id, of any type"),
    ] = None
    tool_name: Annotated[
        str | None,
        Query("Only approvals of calls of this tool"),
        Option("--tool", "NAME", "Filter by the name of the tool"),
    ] = None
    run_id: Annotated[
        str | None,
        Query("Only approvals of this run and of its members"),
        Option("--run", "ID", "Filter by run, with its members", noun="run"),
    ] = None
    session_id: OfSession = None
    user_id: UserId = None
    db_id: DatabaseId = None
    page: Page = field(default_factory=Page)
    created_after: Annotated[
        ParsedTimestamp | None, Query("Only approvals created at or after this time")
    ] = None
    created_before: Annotated[
        ParsedTimestamp | None, Query("Only approvals created before this time")
    ] = None
    id_prefix: IdPrefix = None


@dataclass(frozen=True, slots=True)
class Ruling:
    """A decision about an approval (docs/contract.md "Approvals").

    Attributes:
        decision: one of `records.approvals.VERBS` of the kind of approval.
        arguments_hash: the hash of the call that the caller has seen; required to approve and to
            retry.
        arguments: edited arguments of an approved call.
        note: a remark; the model reads the one of a rejection.
        answer: the answer to a question, a JSON value.
        result: the result of a call that the caller made, or knows, a JSON value.
        approval_id, tool_call_id: one of them names the approval among those of a run.
    """

    decision: Verb
    arguments_hash: str | None = None
    arguments: dict[str, Any] | None = None
    note: str | None = None
    answer: Any = None
    result: Any = None
    approval_id: str | None = None
    tool_call_id: str | None = None


def build_ruling(
    asked: Mapping[str, Any], verb: Verb, value: Any = None, note: str | None = None
) -> Ruling:
    """Return the ruling of a person about an approval as it was shown.

    A ruling that lets a call be made is bound to the shown call by its hash.

    Args:
        asked: the approval: its record, or the part with its id and hash.
        value: of the verbs that have one (`VALUES`): edited arguments, the answer or the result.
    """
    shown = asked["arguments_hash"] if verb in BOUND_VERBS else None
    values = {VALUES[verb]: value} if verb in VALUES else {}
    return Ruling(verb, shown, note=note, approval_id=asked["approval_id"], **values)


@dataclass(frozen=True, slots=True)
class ContinueRequest:
    """The continuation of a paused run, with decisions of the user of the run.

    `dependencies` is given to the code of the run, as that of `RunRequest`; it is not stored.
    """

    decisions: tuple[Ruling, ...] = ()
    background: bool = False
    dependencies: dict[str, Any] | None = None
    idempotency_key: IdempotencyKey = None
