"""Query parameters: only what was asked for, in the names of the interface."""

from __future__ import annotations

from typing import Any

from agentctl.operations import (
    DEFAULT_CANCEL_WAIT,
    FROM_THE_START,
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
    SessionRunsQuery,
    Where,
)
from agentctl.records.ids import is_idempotency_key
from agentctl.records.kinds import KINDS
from agentctl.records.times import rfc3339

__all__ = [
    "Query",
    "account_body",
    "explain_body",
    "of_accounts",
    "of_audit",
    "of_cancel",
    "of_component_runs",
    "of_resume",
    "of_runs",
    "of_session_runs",
    "of_sessions",
    "of_where",
    "pairs",
    "run_body",
    "run_headers",
    "session_body",
]

Query = tuple[tuple[str, str], ...]

_PAGE = Page()


def pairs(**values: object) -> Query:
    """Names and values of a query; None leaves its name out, flags are `true` and `false`."""
    return tuple((name, _text(value)) for name, value in values.items() if value is not None)


def of_where(where: Where) -> Query:
    """Which session, and where."""
    return pairs(type=where.type, user_id=where.user_id, db_id=where.db_id, table=where.table)


def of_sessions(filter: SessionFilter) -> Query:
    """Which sessions to list."""
    return (
        of_where(filter.where)
        + pairs(component_id=filter.component_id, session_name=filter.session_name)
        + _of_page(filter.page)
        + pairs(sort_by=_unless(filter.page.sort_by, _PAGE.sort_by))
    )


def of_runs(filter: RunFilter) -> Query:
    """Which runs to list, across sessions."""
    component = pairs(component_type=filter.component_type, component_id=filter.component_id)
    return component + of_component_runs(filter)


def of_component_runs(filter: RunFilter) -> Query:
    """Which runs of one component to list: the path names the component."""
    return pairs(
        status=filter.status,
        session_id=filter.session_id,
        user_id=filter.user_id,
        db_id=filter.db_id,
        live=filter.live or None,
        created_after=_moment(filter.created_after),
        created_before=_moment(filter.created_before),
    ) + _of_page(filter.page)


def of_accounts(filter: AccountFilter) -> Query:
    """Which service accounts to list."""
    return pairs(name=filter.name) + _of_page(filter.page)


def of_session_runs(query: SessionRunsQuery) -> Query:
    """Which runs of one session."""
    return of_where(query.where) + pairs(limit=query.limit, after=query.after)


def of_audit(filter: AuditFilter) -> Query:
    """Which rows of the audit to list."""
    return pairs(
        principal=filter.principal,
        operation=filter.operation,
        outcome=filter.outcome,
        since=_moment(filter.since),
        limit=_unless(filter.limit, _PAGE.limit),
        cursor=filter.cursor,
    )


def of_cancel(request: CancelRequest) -> Query:
    """How to cancel."""
    return pairs(
        session_id=request.session_id,
        wait=_unless(request.wait, DEFAULT_CANCEL_WAIT),
        reason=request.reason,
    )


def of_resume(request: ResumeRequest) -> Query:
    """From which event on to follow."""
    return pairs(
        session_id=request.session_id,
        last_event_index=_unless(request.after, FROM_THE_START),
    )


def run_headers(request: RunRequest) -> Query:
    """The header fields of a request that starts a run.

    What is no key is sent as an empty one, which a header field can carry: it is the server that
    refuses it, after all that it refuses before (contract.md 2).
    """
    key = request.idempotency_key
    if key is None:
        return ()
    return (("idempotency-key", key if is_idempotency_key(key) else ""),)


def run_body(request: RunRequest, *, stream: bool) -> dict[str, Any]:
    """The body that starts a run. `stream` is always said: its default is true (contract.md 5)."""
    body: dict[str, Any] = {"message": request.message, "stream": stream}
    if request.background:
        body["background"] = True
    return body | _given(session_id=request.session_id, user_id=request.user_id)


def session_body(session: NewSession) -> dict[str, Any]:
    """The body that creates a session."""
    return _given(
        session_id=session.session_id,
        session_name=session.session_name or None,
        session_state=session.session_state,
        metadata=session.metadata,
        user_id=session.user_id,
    ) | _given(**{KINDS[session.type].id_field: session.component_id})


def explain_body(request: ExplainRequest) -> dict[str, Any]:
    """The body that asks about a request; without a token it is about the caller's own."""
    return _given(method=request.method, path=request.path, token=request.token)


def account_body(account: NewAccount) -> dict[str, Any]:
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
    return pairs(
        limit=_unless(page.limit, _PAGE.limit),
        page=_unless(page.page, _PAGE.page),
        cursor=page.cursor,
        sort_order=_unless(page.sort_order, _PAGE.sort_order),
    )


def _moment(microseconds: int | None) -> str | None:
    return None if microseconds is None else rfc3339(microseconds)


def _unless(value: object, default: object) -> object:
    return None if value == default else value


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
