"""The base of the operations on a server and on a database of AgentOS.

AgentOS filters and pages fewer lists than this interface, so rows are selected here, in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar

from agentctl import errors
from agentctl.interface import requests
from agentctl.interface.operations.partial import PartialOperations
from agentctl.interface.requests.lists import check_text_filters, is_text_match
from agentctl.interop.agentos.values import Built
from agentctl.records.document import Document, build_document
from agentctl.records.items import Child, build_items
from agentctl.records.kinds import KINDS, ComponentKind, Record
from agentctl.records.phase import describe_run
from agentctl.records.runs import FINAL_STATUSES
from agentctl.records.sessions import ExportFormat
from agentctl.records.times import parse_rfc3339
from agentctl.transcripts.export import export_session

_OF_SESSION = "list the runs of {} session with: agentctl sessions runs SESSION_ID"
_DELETE = "delete sessions by their ids with: agentctl sessions delete"
_SUMMED = "`agentctl runs list --database URL --all` has the tokens of the runs in its database"

SESSION_FILTERS = (
    "status", "created_after", "created_before", "updated_after", "updated_before", "metadata",
    "tag", "error",
)  # fmt: skip
"""Filters of sessions that no server of AgentOS has."""


class AgentOSBackend(PartialOperations):
    """The operations that have a counterpart on AgentOS."""

    without_counterpart: ClassVar = {
        "get_readiness": ("a readiness check", None),
        "get_me": ("a description of the caller", "`agentctl token inspect` reads a JWT"),
        "explain_auth": ("an explanation of its authorization", None),
        "get_audit": ("an audit log", None),
        "get_audit_heads": ("an audit log", None),
        "get_runs": ("a list of runs across sessions", _OF_SESSION.format("a")),
        "get_run": (
            "a run by its id alone",
            "pass --session ID, and --agent, --team or --workflow ID where the command takes them;"
            f" {_OF_SESSION.format('its')}",
        ),
        "get_budgets": ("budgets", None),
        "get_deployment": ("a report about its workers and databases", None),
        "get_user_data": ("an export or erasure of the data of a person", None),
        "get_user_rows": ("an export of the data of a person", None),
        "erase_user_data": ("an erasure of the data of a person", None),
        "get_run_causes": ("causes of failures", None),
        "get_failures": ("causes of failures", None),
        "get_run_model_calls": ("the model calls of a run", None),
        "get_run_model_call": ("the model calls of a run", None),
        "get_usage": ("sums of usage", _SUMMED),
        "get_usage_overview": ("sums of usage", _SUMMED),
        "retry_run": ("retries of runs", None),
        "fork_run": ("forks of runs", None),
        "summarize_session": ("a summary on demand", None),
        "hold_session": ("holds of sessions", None),
        "release_session": ("holds of sessions", None),
        "get_idle_sessions": ("a list of idle sessions", _DELETE),
        "prune_sessions": ("a removal of idle sessions", _DELETE),
    }

    def refuse_search(self, filter: requests.SessionFilter | requests.RunFilter) -> None:
        """Raise Unsupported for a filter with words: AgentOS has no index of texts."""
        if filter.search is not None:
            raise self.build_missing_error("a search in the texts of sessions")

    def export_session(
        self,
        session_id: str,
        where: requests.SessionLocator = requests.DEFAULT_LOCATOR,
        *,
        format: ExportFormat = "jsonl",
        model_calls: bool = False,
    ) -> AsyncIterator[bytes]:
        return export_session(self, session_id, where, format, model_calls=model_calls)


def read_page_number(page: requests.Page) -> int:
    """Return the number of a page; a cursor is the number of the next one, if it is a number."""
    return int(page.cursor) if page.cursor and page.cursor.isdecimal() else page.page


def build_page(rows: Sequence[Record], page: requests.Page) -> Document[Any]:
    """Return a page of all rows of a list."""
    number = read_page_number(page)
    first = max(number - 1, 0) * page.limit
    meta = build_meta(page, number, len(rows))
    return build_document({"data": rows[first : first + page.limit], "meta": meta})


def build_runs_page(runs: Sequence[Record], filter: requests.RunFilter) -> Document[Any]:
    """Return a page of the runs of a session, oldest first, that match a filter."""
    check_text_filters(filter.metadata, filter.tag, filter.error)
    selected = [run for run in runs if is_match(run, filter)]
    newest_first = filter.page.sort_order == "desc"
    return build_page(selected[::-1] if newest_first else selected, filter.page)


def build_meta(page: requests.Page, number: int, total: int, pages: int | None = None) -> Built:
    """Return the `meta` of a page of a list; `pages` is their number if the server names it."""
    pages = -(-total // page.limit) if pages is None else pages
    return {
        "page": number,
        "limit": page.limit,
        "total_count": total,
        "total_pages": pages,
        "total_is_capped": False,
        "next_cursor": str(number + 1) if number < pages else None,
    }


def check_session(where: requests.SessionLocator, kind: ComponentKind, user_id: str | None) -> None:
    """Raise NotFound if a session has another type or user than the one that a request locates."""
    if where.type not in (None, kind) or where.user_id not in (None, user_id):
        raise errors.NotFound("Session not found")


def is_match(run: Record, filter: requests.RunFilter) -> bool:
    """Return True if a run record matches a filter; its session and user are not compared."""
    kinds = KINDS.values() if filter.component_type is None else (KINDS[filter.component_type],)
    ids = [run.get(names.id_field) for names in kinds]
    models = [message["model"] for message in run["messages"] if message.get("model")]
    return (
        (filter.component_type is None or any(ids))
        and filter.component_id in (None, *ids)
        and filter.status in (None, run["status"])
        and not (filter.live and run["status"] in FINAL_STATUSES)
        and (not filter.at_work or bool(describe_run(run)["warning"]))
        and is_between(run["created_at"], filter.created_after, filter.created_before)
        and is_between(run["finished_at"], filter.finished_after, filter.finished_before)
        and bool(run["finished_at"] or filter.finished_before is None)
        and is_text_match(run, filter.metadata, filter.tag, filter.error)
        and filter.error_code in (None, (run["error"] or {}).get("code"))
        and filter.model in (None, models[0] if models else None)
        and not (filter.parent == "none" and run["parent_run_id"])
    )


def is_between(time: str | None, after: int | None, before: int | None) -> bool:
    """Return True for a time within bounds; without one it is before all others."""
    moment = parse_rfc3339(time) if time else 0
    return (after is None or moment >= after) and (before is None or moment < before)


def select_runs(runs: Sequence[Built], query: requests.SessionRunsQuery) -> list[Record]:
    """Return the runs that a query selects, in its view; NotFound for an unknown bound."""
    ids = [run["run_id"] for run in runs]
    if any(bound is not None and bound not in ids for bound in (query.after, query.before)):
        raise errors.NotFound("Run not found")
    first = 0 if query.after is None else ids.index(query.after) + 1
    end = len(ids) if query.before is None else ids.index(query.before)
    selected = [run for run in runs[first:end] if not (query.parent and run["parent_run_id"])]
    selected = (selected[::-1] if query.order == "desc" else selected)[: query.limit]
    return [view_run(run, query.form, runs) for run in selected]


def view_run(run: Record, form: requests.RunView, others: Sequence[Record] = ()) -> Record:
    """Return a whole run record of another product in a view.

    Such a product has no summaries, so `summary` is the whole record. `others` are whole records,
    those of the runs that it started among them.
    """
    if form.view not in ("items", "phase"):
        return run
    replaced = ("content", "messages", "tools", "reasoning_content")
    rest = {name: value for name, value in run.items() if name not in replaced}
    rest["phase"] = describe_run(run)
    if form.view == "items":
        below = [
            Child(view_run(other, requests.RunView("phase")), str(other.get("input") or ""))
            for other in others
            if other["parent_run_id"] == run["run_id"]
        ]
        rest["items"] = build_items(run, below, form.cut)
    return rest
