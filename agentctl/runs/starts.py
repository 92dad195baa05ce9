"""Start checkpoints: what a server needs to begin a run that another one has admitted.

A run that waits in the queue has one, and so has a durable run. Its attempt is 0: it was written
before the first leg. It has no transcript and no state.
"""

from __future__ import annotations

import orjson

from agentctl.records.run_spec import RunSpec
from agentctl.store.repositories.approvals import Checkpoint

KIND = "start"
"""The kind of a checkpoint that an admission has written."""


def build_start(spec: RunSpec, component_name: str, *, is_first: bool) -> Checkpoint:
    """Build the checkpoint from which any server can begin a run.

    Args:
        component_name: the name in the events of the run.
        is_first: True if its session was created with the run.
    """
    body = {"spec": spec.to_json(), "component_name": component_name, "is_first": is_first}
    return Checkpoint(spec.run_id, 0, KIND, orjson.dumps(body).decode())
