"""Approvals for the owner of a run, who may have no scope for approvals.

They are in the record and the events of the run, and the owner decides by continuing the run
(docs/contract.md "Data scoping").
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from agentctl.errors import NotFound, UsageError
from agentctl.interface.requests import MAXIMUM_LIMIT, SUMMARY_VIEW, Page, ResumeRequest, RunFilter
from agentctl.interface.requests.approvals import ApprovalFilter, ContinueRequest, Ruling
from agentctl.interface.requests.lists import Read, read_rows
from agentctl.records.approvals import ApprovalPage, ApprovalRecord
from agentctl.records.document import Document, build_document
from agentctl.records.events import EventKind, parse_event
from agentctl.records.kinds import component_of_run, find_component
from agentctl.records.routes import operation_ids

if TYPE_CHECKING:
    from agentctl.cli.target import Target
    from agentctl.interface.operations import Operations
    from agentctl.records.sessions import PageMeta

MAXIMUM_ROWS = 1_000
"""Maximum number of paused runs that a search for an approval reads."""

_COMPARED_FIELDS = (
    "status", "execution", "kind", "policy", "component_type", "component_id", "tool_name",
    "session_id", "user_id",
)  # fmt: skip
"""The fields of a filter that have to equal the fields of a record."""


async def find_reader(target: Target) -> Read[ApprovalFilter] | None:
    """Return a read of the approvals that the caller may see; None if it may see none."""
    operations = target.operations
    allowed = await target.list_allowed()
    if allowed is None or "get_approvals" in allowed:
        return operations.approvals.list
    if {"get_runs", "get_run"} <= allowed:
        return partial(_read_page, operations)
    return None


async def read_whole(target: Target, approval: ApprovalRecord) -> Document[ApprovalRecord]:
    """Return the document of an approval that was found in a list."""
    kind = approval["component_type"]
    if await target.may_call(operation_ids(kind).get_approval):
        return await target.operations.approvals.get(
            kind, approval["component_id"], approval["approval_id"]
        )
    return build_document(approval)


async def decide(
    target: Target, approval: ApprovalRecord, ruling: Ruling
) -> Document[ApprovalRecord]:
    """Decide about an approval: as an approver, else as the owner of its run."""
    operations = target.operations
    kind = approval["component_type"]
    if await target.may_call(operation_ids(kind).decide_approval):
        return await operations.approvals.decide(
            kind, approval["component_id"], approval["approval_id"], ruling
        )

    root = (await operations.runs.get(approval["root_run_id"], form=SUMMARY_VIEW)).value
    own_ruling = replace(ruling, approval_id=approval["approval_id"])
    request = ContinueRequest((own_ruling,), background=True)
    document = await operations.runs.continue_run(*component_of_run(root), root["run_id"], request)

    # The record of the run has a part of the fields of its approvals.
    record: Any = dict(approval)
    for summary in document.value["approvals"]:
        if summary["approval_id"] == own_ruling.approval_id:
            record |= summary
    return build_document(record)


async def _read_page(operations: Operations, filter: ApprovalFilter) -> Document[ApprovalPage]:
    """Return a page of the approvals of the caller's runs, newest first.

    They belong to the run or the session of the filter, else to the paused runs of the caller. A
    cursor is the number of rows before the page.
    """
    page = filter.page
    cursor = page.cursor or str((page.page - 1) * page.limit)
    if not cursor.isdecimal():
        raise UsageError("--cursor belongs to a different list")

    rows = list[Any]()
    async for run in _list_runs(operations, filter):
        for row in await _read_approvals(operations, run):
            if _matches(row, filter):
                rows.append(row)

    is_descending = page.sort_order == "desc"
    rows.sort(key=lambda row: (row["created_at"], row["approval_id"]), reverse=is_descending)
    start = int(cursor)
    end = start + page.limit
    meta: PageMeta = {
        "page": page.page,
        "limit": page.limit,
        "total_count": len(rows),
        "total_pages": -(-len(rows) // page.limit),
        "total_is_capped": False,
        "next_cursor": str(end) if end < len(rows) else None,
    }
    return build_document({"data": rows[start:end], "meta": meta})


def _matches(row: Mapping[str, Any], filter: ApprovalFilter) -> bool:
    """Return True if a filter of approvals selects a record."""
    for name in _COMPARED_FIELDS:
        required_value = getattr(filter, name)
        if required_value is not None and row[name] != required_value:
            return False
    if not row["approval_id"].startswith(filter.id_prefix or ""):
        return False
    return filter.run_id in (None, row["run_id"], row["root_run_id"])


async def _list_runs(
    operations: Operations, filter: ApprovalFilter
) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the root runs that a filter selects and that have approvals."""
    db_id = filter.db_id
    if filter.run_id is not None:
        # The filter may name a member; the approvals are in the record of the root run above it.
        with contextlib.suppress(NotFound):
            run_id: str | None = filter.run_id
            while run_id is not None:
                run = (await operations.runs.get(run_id, db_id=db_id, form=SUMMARY_VIEW)).value
                run_id = run["parent_run_id"]
            if run["approvals"]:
                yield dict(run)
        return

    run_filter = RunFilter(
        status="PAUSED" if filter.session_id is None else None,
        session_id=filter.session_id,
        db_id=db_id,
        form=SUMMARY_VIEW,
        page=Page(limit=MAXIMUM_LIMIT),
    )
    read_count = 0
    async for run_row in read_rows(operations.runs.list, run_filter):
        if run_row["approvals"] and run_row["parent_run_id"] is None:
            yield run_row
        read_count += 1
        if read_count >= MAXIMUM_ROWS:
            return


async def _read_approvals(operations: Operations, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the approvals of a root run as records: their summaries, with the events of pauses.

    A summary has the state of an approval. The event of the pause has its question or its call,
    and the component that asked.
    """
    wanted_ids = {summary["approval_id"] for summary in run["approvals"]}
    asked_approvals = dict[str, dict[str, Any]]()
    root_kind, root_component_id = component_of_run(run)

    request = ResumeRequest(run["session_id"])
    events = operations.runs.follow(root_kind, root_component_id, run["run_id"], request)
    async with contextlib.aclosing(events):  # type: ignore[type-var]
        async for event in events:
            parsed = parse_event(event.name, event.data, event.seq)
            if parsed.kind is EventKind.PAUSED:
                component = find_component(parsed.data) or (root_kind, root_component_id)
                kind, component_id = component
                where = {"component_type": kind, "component_id": component_id}
                for approval in parsed.data.get("approvals") or ():
                    asked_approvals[approval["approval_id"]] = {**approval, **where}
            if wanted_ids <= asked_approvals.keys():
                break

    # A field that is in neither place is null.
    common_fields = dict.fromkeys(ApprovalRecord.__annotations__) | {
        "arguments": {},
        "root_run_id": run["run_id"],
        "session_id": run["session_id"],
        "user_id": run["user_id"],
        "component_type": root_kind,
        "component_id": root_component_id,
    }
    return [
        common_fields | asked_approvals.get(summary["approval_id"], {}) | summary
        for summary in run["approvals"]
    ]
