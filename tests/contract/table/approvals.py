"""Rows about approvals, and about runs that wait for them."""

from __future__ import annotations

from collections.abc import Iterator

from agentctl.interface.requests import Page, ResumeRequest, RunRequest
from agentctl.interface.requests.approvals import ApprovalFilter, ContinueRequest, Ruling
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from tests.contract.rows import FORBIDDEN, INVALID, NOT_FOUND, Row, read_events

__all__ = ["approval_rows"]

WHO = "approver"


def approval_rows() -> Iterator[Row]:
    """Yield the rows of two runs of the agent `payer`, which asks for what its message names."""
    yield from _start_rows()
    yield from _list_rows()
    yield from _decision_rows()
    yield from _continuation_rows()

    others: tuple[tuple[ComponentKind, str], ...] = (("team", "desk"), ("workflow", "line"))
    for kind, name in others:
        yield from _rows_of_other_kinds(kind, name)


def _start_rows() -> Iterator[Row]:
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
    yield Row(
        "decide_agent_approval",
        decide,
        lambda o, at: o.approvals.decide(
            "agent", "payer", at["decided_approval"], Ruling("approve")
        ),
        WHO,
        422,
        ("arguments_hash",),
        body={"decision": "approve"},
    )

    yield Row(
        "decide_agent_approval",
        decide,
        lambda o, at: o.approvals.decide(
            "agent", "payer", at["decided_approval"], Ruling("answer", answer="left")
        ),
        WHO,
        422,
        INVALID,
        body={"decision": "answer", "answer": "left"},
    )

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

    # The stream ends when the run has: the rows after it find its end.
    yield Row(
        "get_agent_run_events",
        "GET /agents/payer/runs/{decided_run}/events",
        lambda o, at: read_events(
            o.runs.follow("agent", "payer", at["decided_run"], ResumeRequest())
        ),
        has=("RunCompleted",),
    )

    yield Row(
        "decide_agent_approval",
        decide,
        lambda o, at: o.approvals.decide(
            "agent", "payer", at["decided_approval"], Ruling("reject")
        ),
        WHO,
        409,
        ("CONFLICT",),
        body={"decision": "reject"},
    )

    yield Row(
        "get_agent_approval_receipt",
        f"GET {approval}/receipt",
        lambda o, at: o.approvals.get_receipt("agent", "payer", at["decided_approval"]),
        WHO,
        409,
        ("CONFLICT", "signs no receipts"),
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
            ContinueRequest((Ruling("approve"), Ruling("answer", answer=1, tool_call_id="c"))),
        ),
        status=422,
        has=INVALID,
        body={
            "stream": False,
            "decisions": [
                {"decision": "approve"},
                {"decision": "answer", "answer": 1, "tool_call_id": "c"},
            ],
        },
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
