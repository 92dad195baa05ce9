"""Checkpoints: from what a run begins, or goes on, in any process.

A run that waits in the queue has a start checkpoint, and so has a durable run. Its attempt is 0: it
was written before the first leg. It has no transcript and no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from agentctl.records.run_spec import RunSpec
from agentctl.store.database import Work
from agentctl.store.repositories import approvals
from agentctl.store.repositories.approvals import Checkpoint
from agentctl.store.repositories.steps import StepRow

START, PAUSE = "start", "pause"
"""The kinds of checkpoints: those of an admission, and those of a pause."""


def write_start_checkpoint(spec: RunSpec, component_name: str, *, is_first: bool) -> Work[None]:
    """Store the checkpoint from which any server can begin a run.

    Args:
        component_name: the name in the events of the run.
        is_first: True if its session was created with the run.
    """
    body = {"spec": spec.to_json(), "component_name": component_name, "is_first": is_first}
    checkpoint = Checkpoint(spec.run_id, 0, START, orjson.dumps(body).decode())
    return approvals.keep_checkpoint(checkpoint)


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
