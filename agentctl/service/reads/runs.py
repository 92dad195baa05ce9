"""The reads of runs, of failed runs and of their causes (docs/contract.md "Runs")."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from agentctl import errors
from agentctl.interface.requests import FULL_VIEW, SUMMARY_VIEW, Page, RunFilter, RunView
from agentctl.records.document import Document
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from agentctl.records.runs import FailurePage, RunCauses, RunPage, RunRecord, RunRow
from agentctl.records.times import format_optional_time, format_rfc3339
from agentctl.runtime.failures import MODEL_FAILURES
from agentctl.service.documents import documents, paging
from agentctl.service.documents.documents import MAXIMUM_DEPTH
from agentctl.service.documents.run_documents import add_matches, read_run_page
from agentctl.service.reads.family import ReadFamily
from agentctl.store.database import Database, Steps, Work, unit
from agentctl.store.listing import RowPage
from agentctl.store.repositories import lists, run_reads
from agentctl.store.visibility import Visibility

MAXIMUM_CAUSES = 100
"""Maximum number of causes in one response."""

_CAUSED_FAILURES = MODEL_FAILURES | {"AGENT_FAILED", "TOOL_FAILED"}
"""Codes of failures that an exception of the user's code, or a response of a provider, can cause.

A run that ended for another reason may have causes, too: of calls of tools that it survived.
"""


class RunReads(ReadFamily):
    """Reads of runs."""

    async def list(self, filter: RunFilter) -> Document[RunPage]:
        async with self.audit("get_runs"):
            return await self._page(self.lookups.database(filter.db_id), filter)

    async def list_of_component(
        self, kind: ComponentKind, component_id: str, filter: RunFilter
    ) -> Document[RunPage]:
        path = {KINDS[kind].id_field: component_id}
        async with self.audit(operation_ids(kind).list_runs, **path):
            component = self.lookups.component(kind, component_id)
            database = self.lookups.database(filter.db_id or component.database)
            filter_of_component = replace(filter, component_type=kind, component_id=component_id)
            return await self._page(database, filter_of_component)

    async def _page(self, database: Database, filter: RunFilter) -> Document[RunPage]:
        paging.check_run_filter(filter)
        search = paging.build_search(database, filter.search)
        noun = "runs" if search is None else "found_runs"
        part = paging.build_slice(noun, filter.page)

        rows = lists.list_runs(filter, self.lookups.visibility, part, database.totals, search)
        work = read_run_page(rows, filter.form, self.hosting.find_spans, self.hosting.find_metrics)
        page, items = await database.read(work, size="large")
        items = await add_matches(items, page, search)
        return Document(documents.build_page_document(noun, items, filter.page, page))

    async def get(
        self, run_id: str, *, db_id: str | None = None, form: RunView = FULL_VIEW
    ) -> Document[RunRecord]:
        async with self.audit("get_run", run_id=run_id):
            database = self.lookups.database(db_id)
            paging.check_run_view(form)
            return await self.lookups.read_run(database, run_id, form)

    async def get_causes(self, run_id: str, *, db_id: str | None = None) -> Document[RunCauses]:
        async with self.audit("get_run_causes", run_id=run_id):
            database = self.lookups.database(db_id)
            work = read_run_causes(run_id, self.lookups.visibility)
            return Document(await database.read(work))

    async def list_failures(self, filter: RunFilter) -> Document[FailurePage]:
        async with self.audit("get_failures"):
            database = self.lookups.database(filter.db_id)
            filter_of_failures = replace(filter, status="ERROR", form=SUMMARY_VIEW)
            paging.check_run_filter(filter_of_failures)

            search = paging.build_search(database, filter.search)
            noun = "failures" if search is None else "found_failures"
            part = paging.build_slice(noun, filter.page)
            visibility = self.lookups.visibility

            rows = lists.list_runs(filter_of_failures, visibility, part, database.totals, search)
            work = read_failures(noun, filter.page, rows)
            return Document(await database.read(work, size="large"))


@unit
def read_run_causes(run_id: str, visibility: Visibility) -> Steps[bytes]:
    """Build the document of the causes of a run and of the runs below it.

    Raises:
        NotFound: the run does not exist or is not visible.
    """
    state = yield from run_reads.get_state(run_id, visibility)
    if state is None:
        raise errors.NotFound("Run not found")

    own_causes = yield from run_reads.get_causes(run_id)
    causes = _build_causes(run_id, state.component_type, state.component_id, own_causes)

    level = [run_id]
    for _ in range(MAXIMUM_DEPTH):
        children = yield from run_reads.list_children_causes(level)
        if not children or len(causes) >= MAXIMUM_CAUSES:
            break
        for child_id, kind, component_id, causes_text in children:
            causes += _build_causes(child_id, kind, component_id, causes_text)
        level = [child_id for child_id, *_ in children]

    return orjson.dumps({"run_id": run_id, "causes": causes[:MAXIMUM_CAUSES]})


@unit
def read_failures(noun: str, part: Page, rows: Work[RowPage[RunRow]]) -> Steps[bytes]:
    """Build a page of failed runs, each with the cause that ended it.

    Args:
        noun: as in `build_page_document`.
    """
    page = yield from rows
    failed_ids = [row.run_id for row in page.rows if row.error_code in _CAUSED_FAILURES]
    causes = dict[str, Any]()

    # The listed run of each run whose causes are read: the run itself, or the run above it.
    roots = {run_id: run_id for run_id in failed_ids}
    level = yield from run_reads.list_causes(failed_ids)

    for _ in range(MAXIMUM_DEPTH):
        uncaused = dict[str, str]()
        for requested_id, run_id, kind, component_id, causes_text in level:
            root_id = roots[requested_id]
            run_causes = _build_causes(run_id, kind, component_id, causes_text)
            if run_causes:
                causes[root_id] = run_causes[-1]
            else:
                uncaused[run_id] = root_id

        if not uncaused:
            break

        roots = uncaused
        level = yield from run_reads.list_last_failed_children([*uncaused])

    failures = [
        {
            "run_id": row.run_id,
            "error": {"code": row.error_code, "detail": row.error_detail},
            "finished_at": format_optional_time(row.finished_at),
            "cause": causes.get(row.run_id),
        }
        for row in page.rows
    ]
    items = [orjson.dumps(failure) for failure in failures]
    return documents.build_page_document(noun, items, part, page)


def _build_causes(
    run_id: str, kind: str, component_id: str, stored: str | None
) -> list[dict[str, Any]]:
    run = {"run_id": run_id, "component_type": kind, "component_id": component_id}
    return [
        {**run, **cause, "raised_at": format_rfc3339(cause["raised_at"])}
        for cause in orjson.loads(stored or "[]")
    ]
