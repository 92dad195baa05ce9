"""Calls of tools by clients of MCP: the answers of their users, and notifications of progress."""

from __future__ import annotations

from typing import Any

import pytest

from agentctl.errors import NotFound
from agentctl.interface.requests.approvals import Ruling
from agentctl.interop.mcp.client import IDLE_SECONDS, INTERVAL_SECONDS, CallProgress
from agentctl.interop.mcp.questions import PausedRun, read_answer
from tests.kit.clock import pass_time
from tests.kit.conditions import wait_until
from tests.kit.tables import every_row

DECLINED = "The user declined"

ANSWERS: tuple[tuple[str, str, Any, dict[str, Any]], ...] = (
    ("approval", "accept", {"decision": "approve"}, {"decision": "approve"}),
    ("approval", "accept", {"decision": "reject", "note": "no"}, {"note": "no"}),
    ("approval", "decline", None, {"note": DECLINED}),
    ("approval", "cancel", None, {"note": "The user closed the question without an answer"}),
    ("external", "accept", {"result": "done"}, {"decision": "complete", "result": "done"}),
    ("external", "decline", None, {"decision": "fail", "note": DECLINED}),
    ("object", "accept", {"seats": 2}, {"decision": "answer", "answer": {"seats": 2}}),
    ("json", "accept", {"answer": "[1]"}, {"decision": "answer", "answer": [1]}),
    ("json", "accept", {"answer": "one"}, {"decision": "answer", "answer": "one"}),
    ("answer", "accept", {"answer": "left"}, {"decision": "answer", "answer": "left"}),
    ("answer", "accept", None, {"note": DECLINED}),
)
"""The form of a question, an answer of its user, and the ruling; a rejection if it has no verb."""


@every_row("form, action, content, expected", ANSWERS)
def test_answer_of_a_user_is_a_ruling(
    form: str, action: str, content: Any, expected: dict[str, Any]
) -> None:
    answer = {"action": action, "content": content}
    run, ruling = read_answer(f"agent/clerk/run-1/approval-1/{form}/sha256:1", answer)
    assert run == PausedRun("agent", "clerk", "run-1")

    members = {"decision": "reject", **expected}
    if members["decision"] == "approve":
        # An approval counts for the call that was shown.
        members["arguments_hash"] = "sha256:1"
    assert ruling == Ruling(approval_id="approval-1", **members)


@pytest.mark.parametrize("question_id", ["", "agent/clerk/run-1", "tool/a/b/c/approval/d"])
def test_answer_without_a_question_is_not_found(question_id: str) -> None:
    with pytest.raises(NotFound):
        read_answer(question_id, {"action": "accept", "content": {}})


async def test_progress_is_sent_at_most_once_a_second() -> None:
    sent: list[tuple[int, str]] = []

    async def report(number: int, text: str) -> None:
        sent.append((number, text))

    progress = CallProgress(report)
    async with progress.reporting():
        await wait_until(lambda: len(sent) == 1)
        progress.note("calls add")
        progress.note("3 characters")
        await pass_time(INTERVAL_SECONDS)
        await wait_until(lambda: len(sent) == 2)

        # The last message comes again while nothing happens.
        await pass_time(INTERVAL_SECONDS)
        await pass_time(IDLE_SECONDS)
        await wait_until(lambda: len(sent) == 3)
    assert sent == [(1, "started"), (2, "3 characters"), (3, "3 characters")]
