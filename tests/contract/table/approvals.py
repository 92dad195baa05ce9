"""Rows about approvals, and about runs that wait for them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from typing import Any

from agentctl.interface.operations import Operations
from agentctl.interface.requests import Page, ResumeRequest, RunRequest
from agentctl.interface.requests.approvals import ApprovalFilter, ContinueRequest, Ruling
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from tests.contract.rows import FORBIDDEN, INVALID, NOT_FOUND, Ids, Row, fill, read_events

__all__ = ["approval_rows"]

WHO = "approver"

ABSENT = "01900000-0000-7000-8000-000000000000"


def approval_rows() -> Iterator[Row]:
    """Yield the rows of runs of the agent `payer`, which asks for what its message names."""
    yield from _start_rows()
    yield from _list_rows()
    yield from _bad_decision_rows()
    yield from _decision_rows()
    yield from _bad_continuation_rows()
    yield from _continuation_rows()

    others: tuple[tuple[ComponentKind, str], ...] = (("team", "desk"), ("workflow", "line"))
    for kind, name in others:
        yield from _rows_of_other_kinds(kind, name)


def _start_rows() -> Iterator[Row]:
    yield Row(
        "create_agent_run",
        "POST /agents/payer/runs",
        lambda o, at: o.runs.create("agent", "payer", RunRequest("other ask open", "undecided")),
        has=('"status":"PAUSED"', '"kind":"approval"', '"kind":"input"', '"kind":"external"'),
        body={"message": "other ask open", "stream": False, "session_id": "undecided"},
        keeps={
            "undecided_run": "run_id",
            "undecided_approval": "approvals.0.approval_id",
            "undecided_hash": "approvals.0.arguments_hash",
            "undecided_question": "approvals.1.approval_id",
            "undecided_call": "approvals.2.approval_id",
        },
    )

    for asked_of, session in (("other", "decided"), ("user", "continued"), ("user", "streamed")):
        yield Row(
            "create_agent_run",
            "POST /agents/payer/runs",
            lambda o, at, asked_of=asked_of, session=session: o.runs.create(  # type: ignore[misc]
                "agent", "payer", RunRequest(asked_of, session)
            ),
            has=('"status":"PAUSED"', '"arguments_hash"'),
            body={"message": asked_of, "stream": False, "session_id": session},
            keeps={
                f"{session}_run": "run_id",
                f"{session}_approval": "approvals.0.approval_id",
                f"{session}_hash": "approvals.0.arguments_hash",
            },
        )


def _list_rows() -> Iterator[Row]:
    operation = "get_approvals"
    path = "GET /approvals"
    yield Row(
        operation,
        path,
        lambda o, at: o.approvals.list(ApprovalFilter()),
        WHO,
        has=("{decided_approval}",),
    )

    yield Row(
        operation,
        f"{path}?status=pending&kind=approval&policy=other&component_type=agent"
        "&component_id=payer&tool_name=pay&run_id={decided_run}&session_id=decided&user_id=me"
        "&db_id=main&limit=5&sort_order=asc&created_after=1970-01-01T00%3A00%3A00.000000Z",
        lambda o, at: o.approvals.list(
            ApprovalFilter(
                "pending",
                None,
                "approval",
                "other",
                "agent",
                "payer",
                "pay",
                at["decided_run"],
                "decided",
                "me",
                "main",
                Page(limit=5, sort_order="asc"),
                0,
            )
        ),
        WHO,
        has=("{decided_approval}", '"total_count":1'),
        lacks=("{continued_approval}",),
    )

    yield Row(
        operation,
        f"{path}?kind=input&limit=0",
        lambda o, at: o.approvals.list(ApprovalFilter(kind="input", page=Page(limit=0))),
        WHO,
        422,
        ("limit", *INVALID),
    )

    yield Row(
        operation,
        f"{path}?db_id=nowhere",
        lambda o, at: o.approvals.list(ApprovalFilter(db_id="nowhere")),
        WHO,
        404,
        NOT_FOUND,
    )

    yield Row(
        operation,
        path,
        lambda o, at: o.approvals.list(ApprovalFilter()),
        "powerless",
        403,
        ("approvals:read", *FORBIDDEN),
    )


BOUND = {"decision": "approve", "arguments_hash": "{undecided_hash}"}
"""An approval of the call that was shown."""

BAD_DECISIONS: list[tuple[str, dict[str, Any], int, str]] = [
    (
        "approval",
        {"decision": "approve"},
        422,
        "arguments_hash is required: the arguments_hash of the approval as it was shown",
    ),
    (
        "approval",
        {"decision": "approve", "arguments_hash": "sha256:00"},
        409,
        "arguments_hash belongs to a different call: read the approval again, then decide",
    ),
    (
        "approval",
        {**BOUND, "arguments": {"amount": "ten", "to": "bob"}},
        422,
        'arguments.amount does not match its schema: "ten" is not of type "integer"',
    ),
    ("approval", {**BOUND, "arguments": {"amount": 2**64, "to": "bob"}}, 422, "arguments"),
    (
        "approval",
        {**BOUND, "arguments": {"amount": 1, "to": "x" * 70_000}},
        413,
        "arguments must be at most",
    ),
    (
        "approval",
        {"decision": "reject", "arguments": {}},
        422,
        "arguments is only for the decision approve",
    ),
    (
        "approval",
        {"decision": "reject", "answer": 1},
        422,
        "answer is only for the decision answer",
    ),
    (
        "approval",
        {"decision": "answer", "answer": "left"},
        422,
        "decision must be approve or reject: the approval is of the kind approval",
    ),
    (
        "approval",
        {"decision": "reject", "note": "x" * 501},
        422,
        "note must be at most 500 characters",
    ),
    (
        "approval",
        {"decision": "reject", "note": "\0"},
        422,
        "note must not contain NUL or lone surrogates",
    ),
    (
        "question",
        {"decision": "answer", "answer": "up"},
        422,
        'answer does not match its schema: "up" is not one of "left" or "right"',
    ),
    (
        "question",
        {"decision": "approve"},
        422,
        "decision must be answer or reject: the approval is of the kind input",
    ),
    ("question", {"decision": "answer", "answer": "x" * 70_000}, 413, "answer must be at most"),
]
"""The kept id of an approval, a decision, and the status and the text of its refusal."""


def _refuse_decision(
    name: str,
    ruling: dict[str, Any],
    status: int,
    text: str,
    *,
    path: str = "agents/payer",
    lacks: tuple[str, ...] = (),
) -> Row:
    """Return the row of a decision that is refused.

    Args:
        name: of the kept id of the approval.
        path: of the component.
    """
    plural, component_id = path.split("/")
    kind: Any = plural.removesuffix("s")

    def decide(operations: Operations, at: Ids) -> Awaitable[Any]:
        shown = Ruling(**json.loads(fill(json.dumps(ruling), at)))
        return operations.approvals.decide(kind, component_id, at[name], shown)

    request = f"POST /{path}/approvals/{{{name}}}/decide"
    has = (json.dumps(text)[1:-1],)
    operation = operation_ids(kind).decide_approval
    return Row(operation, request, decide, WHO, status, has, lacks, ruling)


def _bad_decision_rows() -> Iterator[Row]:
    """Yield decisions that are refused; nothing has changed after them."""
    for asked, ruling, status, text in BAD_DECISIONS:
        yield _refuse_decision(f"undecided_{asked}", ruling, status, text)

    # An approval of another component is none.
    for path in ("agents/echo", "teams/desk", "agents/nothing"):
        ruling = {"decision": "reject"}
        yield _refuse_decision("undecided_approval", ruling, 404, "Approval not found", path=path)

    yield Row(
        "get_run",
        "GET /runs/{undecided_run}",
        lambda o, at: o.runs.get(at["undecided_run"]),
        has=('"status":"PAUSED"',),
        lacks=('"approved"', '"rejected"', '"answered"'),
    )

    rest = (
        ("undecided_question", {"decision": "answer", "answer": "right"}, '"answered"'),
        ("undecided_call", {"decision": "fail", "note": "no such file"}, '"answered"'),
        ("undecided_approval", {"decision": "reject", "note": "too much"}, '"rejected"'),
    )
    for name, ruling, text in rest:
        yield replace(_refuse_decision(name, ruling, 200, ""), has=(text,), is_same=False)


def _decision_rows() -> Iterator[Row]:
    approval = "/agents/payer/approvals/{decided_approval}"
    yield Row(
        "get_agent_approval",
        f"GET {approval}",
        lambda o, at: o.approvals.get("agent", "payer", at["decided_approval"]),
        WHO,
        has=("{decided_approval}", '"pending"', "{decided_hash}"),
    )

    yield Row(
        "get_agent_approval",
        "GET /agents/payer/approvals/a%3Fb",
        lambda o, at: o.approvals.get("agent", "payer", "a?b"),
        WHO,
        404,
        NOT_FOUND,
    )

    yield Row(
        "get_agent_approval_receipt",
        f"GET {approval}/receipt",
        lambda o, at: o.approvals.get_receipt("agent", "payer", at["decided_approval"]),
        WHO,
        409,
        ("CONFLICT",),
    )

    decide = f"POST {approval}/decide"
    ruling = {
        "decision": "approve",
        "arguments_hash": "{decided_hash}",
        "arguments": {"amount": 7, "to": "eve"},
        "note": "less",
    }

    for status, who in ((403, "me"), (200, WHO), (200, WHO)):
        yield Row(
            "decide_agent_approval",
            decide,
            lambda o, at: o.approvals.decide(
                "agent",
                "payer",
                at["decided_approval"],
                Ruling("approve", at["decided_hash"], {"amount": 7, "to": "eve"}, "less"),
                "key",
            ),
            who,
            status,
            FORBIDDEN if status == 403 else ('"approved"', '"note":"less"'),
            body=ruling,
            headers={"idempotency-key": "key"},
            is_same=False,  # the run may have continued
        )

    yield Row(
        "decide_agent_approval",
        decide,
        lambda o, at: o.approvals.decide(
            "agent", "payer", at["decided_approval"], Ruling("reject"), "key"
        ),
        WHO,
        422,
        ("used for another request",),
        body={"decision": "reject"},
        headers={"idempotency-key": "key"},
    )

    # The stream ends when the run has: the rows after it find its end.
    yield Row(
        "get_agent_run_events",
        "GET /agents/payer/runs/{decided_run}/events",
        lambda o, at: read_events(
            o.runs.follow("agent", "payer", at["decided_run"], ResumeRequest())
        ),
        has=("RunCompleted",),
    )

    # The first decision counts, whatever a second one contains. Its note is for the run.
    for verb in ("approve", "reject", "answer"):
        second = {"decision": verb}
        text = "The approval is approved by amy already"
        yield _refuse_decision("decided_approval", second, 409, text, lacks=("less",))

    yield Row(
        "get_agent_approval_receipt",
        f"GET {approval}/receipt",
        lambda o, at: o.approvals.get_receipt("agent", "payer", at["decided_approval"]),
        WHO,
        409,
        ("CONFLICT", "signs no receipts"),
    )


BAD_CONTINUATIONS: list[tuple[dict[str, Any], int, str]] = [
    ({"approval_id": ABSENT}, 404, "Approval not found"),
    ({}, 422, "A decision must have approval_id or tool_call_id"),
    (
        {"approval_id": ABSENT, "tool_call_id": "call-0-0"},
        422,
        "A decision must have approval_id or tool_call_id",
    ),
    ({"arguments_hash": None, "tool_call_id": "call-0-0"}, 422, "arguments_hash is required"),
    (
        {"arguments_hash": "sha256:0", "tool_call_id": "call-0-0"},
        409,
        "arguments_hash belongs to a different call",
    ),
    (
        {"arguments": {"amount": 1}, "tool_call_id": "call-0-0"},
        422,
        "arguments does not match its schema",
    ),
    ({"decision": "answer", "tool_call_id": "call-0-0"}, 422, "decision must be approve or reject"),
]
"""Changes of a valid decision, and the status and the text of the refusal."""


def _refuse_continuation(
    decision: dict[str, Any], status: int, text: str, *, number: int = 1, run: str = "continued"
) -> Row:
    """Return the row of a continuation whose decisions are refused."""

    def continue_run(operations: Operations, at: Ids) -> Awaitable[Any]:
        ruling = Ruling(**json.loads(fill(json.dumps(decision), at)))
        request = ContinueRequest((ruling,) * number)
        return operations.runs.continue_run("agent", "payer", at[f"{run}_run"], request)

    path = f"POST /agents/payer/runs/{{{run}_run}}/continue"
    body = {"stream": False, "decisions": [decision] * number}
    return Row("continue_agent_run", path, continue_run, status=status, has=(text,), body=body)


def _bad_continuation_rows() -> Iterator[Row]:
    """Yield continuations that are refused; nothing has changed after them."""
    good = {"decision": "approve", "arguments_hash": "{continued_hash}"}
    for change, status, text in BAD_CONTINUATIONS:
        decision = {name: value for name, value in (good | change).items() if value is not None}
        yield _refuse_continuation(decision, status, text)

    by_id = good | {"approval_id": "{continued_approval}"}
    yield _refuse_continuation(by_id, 422, "Two decisions about approval ", number=2)
    yield _refuse_continuation(by_id, 422, "decisions must be at most 100", number=101)

    yield Row(
        "get_run",
        "GET /runs/{continued_run}",
        lambda o, at: o.runs.get(at["continued_run"]),
        has=('"status":"PAUSED"',),
        lacks=('"approved"', '"rejected"', '"answered"'),
    )


def _continuation_rows() -> Iterator[Row]:
    path = "POST /agents/payer/runs/{continued_run}/continue"
    yield Row(
        "continue_agent_run",
        path,
        lambda o, at: o.runs.continue_run("agent", "payer", at["continued_run"], ContinueRequest()),
        "other",
        404,
        NOT_FOUND,
        body={"stream": False},
    )

    yield Row(
        "continue_agent_run",
        path,
        lambda o, at: o.runs.continue_run(
            "agent",
            "payer",
            at["continued_run"],
            ContinueRequest(
                (Ruling("approve", at["continued_hash"], approval_id=at["continued_approval"]),),
                dependencies={"d": 4},
                idempotency_key="key",
            ),
        ),
        has=('"status":"COMPLETED"', "Results: paid; given {'d': 4}"),
        body={
            "stream": False,
            "dependencies": {"d": 4},
            "decisions": [
                {
                    "decision": "approve",
                    "arguments_hash": "{continued_hash}",
                    "approval_id": "{continued_approval}",
                }
            ],
        },
        headers={"idempotency-key": "key"},
    )

    yield Row(
        "continue_agent_run",
        "POST /agents/payer/runs/{streamed_run}/continue",
        lambda o, at: read_events(
            o.runs.stream_continued(
                "agent",
                "payer",
                at["streamed_run"],
                ContinueRequest(
                    (Ruling("approve", at["streamed_hash"], approval_id=at["streamed_approval"]),)
                ),
            )
        ),
        has=("RunCompleted", "paid"),
        body={
            "stream": True,
            "decisions": [
                {
                    "decision": "approve",
                    "arguments_hash": "{streamed_hash}",
                    "approval_id": "{streamed_approval}",
                }
            ],
        },
        is_same=False,
    )

    yield Row(
        "continue_agent_run",
        path,
        lambda o, at: o.runs.continue_run("agent", "payer", at["continued_run"], ContinueRequest()),
        status=409,
        has=("CONFLICT", "The run has ended as COMPLETED already"),
        body={"stream": False},
    )

    late = {"decision": "reject", "tool_call_id": "call-0-0"}
    yield _refuse_continuation(late, 409, "The approval is approved by me already")


def _rows_of_other_kinds(kind: ComponentKind, name: str) -> Iterator[Row]:
    """Yield requests about teams and workflows, which ask nobody here."""
    ids = operation_ids(kind)
    component = f"/{KINDS[kind].path}/{name}"
    approval = f"{component}/approvals/none"
    yield Row(
        ids.get_approval,
        f"GET {approval}",
        lambda o, at: o.approvals.get(kind, name, "none"),
        WHO,
        404,
        NOT_FOUND,
    )

    yield Row(
        ids.get_receipt,
        f"GET {approval}/receipt",
        lambda o, at: o.approvals.get_receipt(kind, name, "none"),
        WHO,
        404,
        NOT_FOUND,
    )

    yield Row(
        ids.decide_approval,
        f"POST {approval}/decide",
        lambda o, at: o.approvals.decide(kind, name, "none", Ruling("reject")),
        WHO,
        404,
        NOT_FOUND,
        body={"decision": "reject"},
    )

    yield Row(
        ids.continue_run,
        f"POST {component}/runs/{{{kind}_run}}/continue",
        lambda o, at: o.runs.continue_run(kind, name, at[f"{kind}_run"], ContinueRequest()),
        status=409,
        has=("CONFLICT",),
        body={"stream": False},
    )
