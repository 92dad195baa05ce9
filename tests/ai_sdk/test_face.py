"""A decision that no recorded run has, in the stream of the AI SDK.

`tests/interop/test_faces.py` has the streams of recorded runs.
"""

from __future__ import annotations

import json
from typing import Any

from agentctl.interface.requests import StreamEvent
from agentctl.interop.ai_sdk.face import AiStream
from tests.kit.tables import every_row


@every_row("status", ["expired", "cancelled"])
def test_question_that_nobody_answers_has_an_error(status: str) -> None:
    names = {"approval_id": "p", "kind": "input", "tool_call_id": "c", "policy": "user"}
    question = {**names, "tool_name": "ask", "arguments": {}, "question": "Where?", "schema": {}}
    events = [
        ("RunPaused", {"approvals": [question]}),
        ("RunContinued", {"approvals": [{**names, "status": status, "note": None}]}),
    ]

    stream = AiStream("s", replays=True)
    stream.root_id = "r"
    chunks: list[Any] = []
    for seq, (name, data) in enumerate(events):
        line = json.dumps({"run_id": "r", "agent_id": "a", **data}).encode()
        chunks += stream.read(StreamEvent(seq, name, line))

    assert chunks[-1] == {
        "type": "tool-output-error",
        "toolCallId": chunks[0]["toolCallId"],
        "errorText": status,
    }
