"""Query parameters: only what was asked for, in the names of the interface."""

from __future__ import annotations

from typing import Any

from agentctl.operations import (
    BEFORE_FIRST_EVENT,
    DEFAULT_CANCEL_WAIT,
    AccountFilter,
    AuditFilter,
    CancelRequest,
    ExplainRequest,
    NewAccount,
    NewSession,
    Page,
    ResumeRequest,
    RunFilter,
    RunRequest,
    SessionFilter,
    SessionLocator,
    SessionRunsQuery,
)
from agentctl.records.ids import is_idempotency_key
from agentctl.records.kinds import KINDS
from agentctl.records.times import format_rfc3339

__all__ = [
    "Query",
    "build_account_body",
    "build_accounts_query",
    "build_audit_query",
    "build_cancel_query",
    "build_component_runs_query",
    "build_explain_body",
    "build_query",
    "build_resume_query",
    "build_run_body",
    "build_run_headers",
    "build_runs_query",
    "build_session_body",
    "build_session_runs_query",
    "build_sessions_query",
    "build_where_query",
]

Query = tuple[tuple[str, str], ...]

_PAGE = Page()


def build_query(**values: object) -> Query:
    """Names and values of a query; None leaves its name out, flags are `true` and `false`."""
    return tuple((name, _text(value)) for name, value in values.items() if value is not None)


def build_where_query(where: SessionLocator) -> Query:
    """Which session, and where."""
    return build_query(type=where.type, user_id=where.user_id, db_id=where.db_id, table=where.table)


def build_sessions_query(filter: SessionFilter) -> Query:
    """Which sessions to list."""
    return (
        build_where_query(filter.where)
        + build_query(component_id=filter.component_id, session_name=filter.session_name)
        + _of_page(filter.page)
        + build_query(sort_by=_unless(filter.page.sort_by, _PAGE.sort_by))
    )


def build_runs_query(filter: RunFilter) -> Query:
    """Which runs to list, across sessions."""
    component = build_query(component_type=filter.component_type, component_id=filter.component_id)
    return component + build_component_runs_query(filter)


def build_component_runs_query(filter: RunFilter) -> Query:
    """Which runs of one component to list: the path names the component."""
    return build_query(
        status=filter.status,
        session_id=filter.session_id,
        user_id=filter.user_id,
        db_id=filter.db_id,
        live=filter.live or None,
        created_after=_moment(filter.created_after),
        created_before=_moment(filter.created_before),
    ) + _of_page(filter.page)


def build_accounts_query(filter: AccountFilter) -> Query:
    """Which service accounts to list."""
    return build_query(name=filter.name) + _of_page(filter.page)


def build_session_runs_query(query: SessionRunsQuery) -> Query:
    """Which runs of one session."""
    return build_where_query(query.where) + build_query(limit=query.limit, after=query.after)


def build_audit_query(filter: AuditFilter) -> Query:
    """Which rows of the audit to list."""
    return build_query(
        principal=filter.principal,
        operation=filter.operation,
        outcome=filter.outcome,
        since=_moment(filter.since),
        limit=_unless(filter.limit, _PAGE.limit),
        cursor=filter.cursor,
    )


def build_cancel_query(request: CancelRequest) -> Query:
    """How to cancel."""
    return build_query(
        session_id=request.session_id,
        wait=_unless(request.wait, DEFAULT_CANCEL_WAIT),
        reason=request.reason,
    )


def build_resume_query(request: ResumeRequest) -> Query:
    """From which event on to follow."""
    return build_query(
        session_id=request.session_id,
        last_event_index=_unless(request.after, BEFORE_FIRST_EVENT),
    )


def build_run_headers(request: RunRequest) -> Query:
    """The header fields of a request that starts a run.

    What is no key is sent as an empty one, which a header field can carry: it is the server that
    refuses it, after all that it refuses before (contract.md 2).
    """
    key = request.idempotency_key
    if key is None:
        return ()
    return (("idempotency-key", key if is_idempotency_key(key) else ""),)


def build_run_body(request: RunRequest, *, stream: bool) -> dict[str, Any]:
    """The body that starts a run. `stream` is always said: its default is true (contract.md 5)."""
    body: dict[str, Any] = {"message": request.message, "stream": stream}
    if request.background:
        body["background"] = True
    return body | _given(session_id=request.session_id, user_id=request.user_id)


def build_session_body(session: NewSession) -> dict[str, Any]:
    """The body that creates a session."""
    return _given(
        session_id=session.session_id,
        session_name=session.session_name or None,
        session_state=session.session_state,
        metadata=session.metadata,
        user_id=session.user_id,
    ) | _given(**{KINDS[session.type].id_field: session.component_id})


def build_explain_body(request: ExplainRequest) -> dict[str, Any]:
    """The body that asks about a request; without a token it is about the caller's own."""
    return _given(method=request.method, path=request.path, token=request.token)


def build_account_body(account: NewAccount) -> dict[str, Any]:
    """The body that makes a service account."""
    return {
        "name": account.name,
        "scopes": [{"scope": each.scope, "effect": each.effect} for each in account.scopes],
    } | _given(
        expires_in_days=account.expires_in_days,
        never_expires=account.never_expires or None,
        allow_privileged_scopes=account.allow_privileged_scopes or None,
    )


def _of_page(page: Page) -> Query:
    return build_query(
        limit=_unless(page.limit, _PAGE.limit),
        page=_unless(page.page, _PAGE.page),
        cursor=page.cursor,
        sort_order=_unless(page.sort_order, _PAGE.sort_order),
    )


def _moment(microseconds: int | None) -> str | None:
    return None if microseconds is None else format_rfc3339(microseconds)


def _unless(value: object, default: object) -> object:
    return None if value == default else value


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
