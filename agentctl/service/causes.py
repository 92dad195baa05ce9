"""The causes of the failures of a run, for callers with the scope `runs:debug`."""

from __future__ import annotations

from typing import Any

import orjson

from agentctl import errors
from agentctl.records.times import format_rfc3339
from agentctl.service.documents import MAXIMUM_DEPTH
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import run_reads
from agentctl.store.visibility import Visibility

MAXIMUM_CAUSES = 100
"""Maximum number of causes in one response."""


@unit
def read_run_causes(run_id: str, visibility: Visibility) -> Steps[bytes]:
    """Build the document of the causes of a run and of the runs below it.

    Raises:
        NotFound: the run does not exist or is not visible.
    """
    state = yield from run_reads.get_state(run_id, visibility)
    if state is None:
        raise errors.NotFound("Run not found")
    own = yield from run_reads.get_causes(run_id)
    found = _build_causes(run_id, state.component_type, state.component_id, own)
    level = [run_id]
    for _ in range(MAXIMUM_DEPTH):
        children = yield from run_reads.list_children_causes(level)
        if not children or len(found) >= MAXIMUM_CAUSES:
            break
        for child in children:
            found += _build_causes(*child)
        level = [child[0] for child in children]
    return orjson.dumps({"run_id": run_id, "causes": found[:MAXIMUM_CAUSES]})


def _build_causes(
    run_id: str, kind: str, component_id: str, stored: str | None
) -> list[dict[str, Any]]:
    run = {"run_id": run_id, "component_type": kind, "component_id": component_id}
    return [
        {**run, **cause, "raised_at": format_rfc3339(cause["raised_at"])}
        for cause in orjson.loads(stored or "[]")
    ]
