"""The causes of failed runs, which no other read of runs returns (docs/contract.md "Causes")."""

from __future__ import annotations

from collections.abc import Sequence

from agentctl.store.database import Sql, Statement, Steps, unit
from agentctl.store.listing import ID_GROUP, group_ids

_CAUSES = Sql("SELECT causes FROM runs WHERE run_id = :run_id")

_CHILDREN_CAUSES = Sql(
    "SELECT run_id, component_type, component_id, causes FROM runs"
    f" WHERE parent_run_id IN ({ID_GROUP}) ORDER BY parent_run_id, seq"
)


@unit
def get_causes(run_id: str) -> Steps[str | None]:
    """Return the causes of a run as a JSON array; None for none."""
    rows = yield Statement(_CAUSES, {"run_id": run_id})
    return rows[0][0] if rows else None


@unit
def list_children_causes(run_ids: Sequence[str]) -> Steps[list[tuple[str, str, str, str | None]]]:
    """Return id, kind and id of the component, and causes (JSON, or None) of children of runs."""
    found: list[tuple[str, str, str, str | None]] = []
    for parameters in group_ids(run_ids):
        rows = yield Statement(_CHILDREN_CAUSES, parameters)
        found += [(run_id, kind, name, causes) for run_id, kind, name, causes in rows]
    return found
