"""Documents of the start and of the cancel of a run, built from what the request has changed."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import orjson

from agentctl.records.run_spec import RunSpec
from agentctl.records.runs import CancelRecord, RunRow, RunState
from agentctl.records.times import now
from agentctl.runs.engine.cancel import CancelResult
from agentctl.service.documents.documents import (
    UNKNOWN_USAGE,
    RecordWriter,
    RelatedFacts,
    build_run_document,
    dump_holding,
)
from agentctl.store.repositories.runs import get_first_status

_CANCEL = RecordWriter(CancelRecord, RunState, {"reason": "cancel_reason"}, computed=["holding"])


def build_start_document(spec: RunSpec, *, is_queued: bool) -> bytes:
    """Build the record of a run as its start has stored it, without the database."""
    columns: dict[str, Any] = {item.name: None for item in fields(RunRow)}
    columns |= {name: value for name, value in spec.to_json().items() if name in columns}
    columns |= {
        f"origin_{name}": getattr(spec.origin, name, None) for name in ("run_id", "kind", "at")
    }
    columns["status"] = get_first_status(spec, is_queued=is_queued)
    columns["created_at"] = now()

    facts = RelatedFacts(metrics=UNKNOWN_USAGE, total_tokens=None, member_count=0)
    return build_run_document(RunRow(**columns), facts, member_runs=())


def build_cancel_document(cancellation: CancelResult) -> bytes:
    """Build the response to a cancel (docs/contract.md "Cancel")."""
    state = cancellation.state
    holding = orjson.Fragment(dump_holding(state))
    return _CANCEL.write(state, {"cancel": cancellation.outcome, "holding": holding})
