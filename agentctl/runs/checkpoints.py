"""Checkpoints: from what a run begins, or goes on, in any process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from agentctl.store.repositories.approvals import Checkpoint
from agentctl.store.repositories.steps import StepRow

PAUSE = "pause"
"""The kind of a checkpoint that a pause has written."""


def is_durable(checkpoint: Checkpoint) -> bool:
    """Return True if the run of a checkpoint has a journal."""
    return bool(orjson.loads(checkpoint.body)["spec"].get("durable"))


def find_arguments(checkpoint: Checkpoint, journal: Sequence[StepRow]) -> dict[str, Any]:
    """Return the arguments of the calls of a durable run by their ids."""
    state = orjson.loads(checkpoint.body).get("state") or {}
    calls = [call for call in state.get("calls", ()) if isinstance(call, dict)]
    calls = [call for call in calls if "arguments" in call]
    for step in journal:
        body = orjson.loads(step.body or "{}")
        if step.call_id is not None and "arguments" in body:
            calls.append({"id": step.call_id, "arguments": body["arguments"]})
        for message in body.get("messages", ()):
            calls += message.get("tool_calls", ())
    return {call["id"]: call["arguments"] for call in calls}
