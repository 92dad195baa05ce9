"""Questions of MCP servers: calls that need the answer of a person first (protocol 2026-07-28).

The server answers a call with its questions and an opaque state. The run waits, and the call is
repeated with the answers, in any process (docs/decisions/0080).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentctl.light_dataclass import dataclass
from agentctl.runtime.mcp.definitions import (
    DESCRIPTION_BYTES,
    McpTool,
    UnusableTool,
    clean_schema,
    clean_text,
)
from agentctl.runtime.mcp.failures import McpCallFailed
from agentctl.runtime.pauses import Ask, CallPause, Leg
from agentctl.work.run_scope import current_call

MAXIMUM_ROUNDS = 10
"""Times that one call may ask."""

MAXIMUM_QUESTIONS = 16
"""Questions of one answer of a server."""


@dataclass(frozen=True, slots=True)
class McpAnswers:
    """The answers to the questions of a call, by the keys of the server, and its opaque state."""

    responses: Mapping[str, Mapping[str, Any]]
    request_state: str | None


async def build_questions(
    tool: McpTool, result: Mapping[str, Any], kept: Mapping[str, Any] | None
) -> CallPause:
    """Return what a run waits for until the current call can be repeated.

    Args:
        result: the answer of the server, as JSON of the protocol.
        kept: the state of the round before; None for the first one.

    Raises:
        McpCallFailed: the server asks for something else than the input of a person, or too often.
    """
    number = 1 if kept is None else kept["round"] + 1
    requests = result.get("inputRequests") or {}
    if number > MAXIMUM_ROUNDS or not 0 < len(requests) <= MAXIMUM_QUESTIONS:
        raise McpCallFailed("it asks for input too often, or for none")
    call = current_call.get()
    assert call is not None
    asks: list[Ask] = []
    asked: dict[str, str] = {}
    for key, request in requests.items():
        params = request["params"] if request["method"] == "elicitation/create" else {}
        if params.get("mode") != "form":
            raise McpCallFailed("it asks for input of a kind that is not supported")
        try:
            schema = await clean_schema(params["requestedSchema"])
        except UnusableTool as problem:
            raise McpCallFailed(f"it asks a question that is not usable: {problem}") from None
        asked[key] = f"{call.id}:{number}.{len(asks) + 1}"
        question = clean_text(params["message"], DESCRIPTION_BYTES)
        asks.append(Ask("input", asked[key], tool.name, {}, "user", question, schema))
    state = {"round": number, "asked": asked, "request_state": result.get("requestState")}
    return CallPause(asks, state)


def build_answers(kept: Mapping[str, Any], leg: Leg | None) -> McpAnswers:
    """Return the answers of people to the questions that a call has asked."""
    responses = {key: _build_answer(leg, question_id) for key, question_id in kept["asked"].items()}
    return McpAnswers(responses, kept["request_state"])


def _build_answer(leg: Leg | None, question_id: str) -> dict[str, Any]:
    decision = leg.find(question_id, "input") if leg is not None else None
    if decision is None or decision.status == "expired":
        return {"action": "cancel"}
    if decision.status != "answered":
        return {"action": "decline"}
    return {"action": "accept", "content": decision.answer}
