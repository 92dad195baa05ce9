"""Query parameters and bodies of requests, from the dataclasses of `agentctl.requests`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from agentctl.records.ids import is_idempotency_key
from agentctl.records.kinds import KINDS
from agentctl.records.times import format_rfc3339

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from agentctl.requests import (
        ExplainRequest,
        MemoryDeletion,
        MemoryPatch,
        NewAccount,
        NewMemory,
        NewSession,
        RunRequest,
    )

Query = tuple[tuple[str, str], ...]
"""Names and values of query parameters, in order."""

_TIMES = frozenset({"created_after", "created_before", "since"})
"""Fields with microseconds since the epoch, which a query has in RFC 3339."""


def query_of(value: DataclassInstance, *, without: Collection[str] = ()) -> Query:
    """Build a query from the fields of a dataclass, which are named like the parameters.

    Fields with their default value are omitted. The fields of a nested dataclass, such as a page,
    take its place.

    Args:
        value: a filter, a cancel request or the like.
        without: fields that the operation does not have as parameters.
    """
    query: Query = ()
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            query += query_of(item, without=without)
        elif item != field.default and field.name not in without:
            query += build_query(**{field.name: _query_value(field.name, item)})
    return query


def _query_value(name: str, value: object) -> object:
    if name in _TIMES:
        assert isinstance(value, int)
        return format_rfc3339(value)
    return ",".join(value) if isinstance(value, tuple) else value


def build_query(**values: object) -> Query:
    """Build a query from names and values; None omits a name, flags are `true` and `false`."""
    return tuple(
        (name, str(value).lower() if isinstance(value, bool) else str(value))
        for name, value in values.items()
        if value is not None
    )


def build_run_headers(request: RunRequest) -> Query:
    """Build the header of a request that starts a run.

    An invalid idempotency key is sent as an empty one, which a header can carry, so that the server
    rejects it in the order of docs/contract.md "Errors".
    """
    key = request.idempotency_key
    if key is None:
        return ()
    return (("idempotency-key", key if is_idempotency_key(key) else ""),)


def build_run_body(request: RunRequest, *, stream: bool) -> dict[str, Any]:
    """Build the body that starts a run.

    It always has `stream`, which is true by default (docs/contract.md "Runs").
    """
    body: dict[str, Any] = {"message": request.message, "stream": stream}
    if request.background:
        body["background"] = True
    return body | _without_none(
        session_id=request.session_id,
        user_id=request.user_id,
        metadata=request.metadata,
        session_state=request.session_state,
        output_schema=request.output_schema,
        dependencies=request.dependencies,
    )


def build_session_body(session: NewSession) -> dict[str, Any]:
    """Build the body that creates a session."""
    return _without_none(
        session_id=session.session_id,
        session_name=session.session_name or None,
        session_state=session.session_state,
        metadata=session.metadata,
        user_id=session.user_id,
    ) | _without_none(**{KINDS[session.type].id_field: session.component_id})


def build_explain_body(request: ExplainRequest) -> dict[str, Any]:
    """Build the body of an explain request; without `token` it is about the caller's token."""
    return _without_none(method=request.method, path=request.path, token=request.token)


def build_memory_body(memory: NewMemory) -> dict[str, Any]:
    """Build the body that creates a memory."""
    return {"memory": memory.memory, "topics": list(memory.topics)} | _without_none(
        user_id=memory.user_id, agent_id=memory.agent_id, team_id=memory.team_id
    )


def build_memory_changes(patch: MemoryPatch) -> dict[str, Any]:
    """Build the body that changes a memory."""
    topics = None if patch.topics is None else list(patch.topics)
    return _without_none(memory=patch.memory, topics=topics)


def build_memory_deletion(deletion: MemoryDeletion) -> dict[str, Any]:
    """Build the body that deletes memories."""
    ids = list(deletion.memory_ids) or None
    return _without_none(memory_ids=ids, user_id=deletion.user_id, all=deletion.all or None)


def build_account_body(account: NewAccount) -> dict[str, Any]:
    """Build the body that creates a service account."""
    return {
        "name": account.name,
        "scopes": [{"scope": each.scope, "effect": each.effect} for each in account.scopes],
    } | _without_none(
        expires_in_days=account.expires_in_days,
        never_expires=account.never_expires or None,
        allow_privileged_scopes=account.allow_privileged_scopes or None,
    )


def _without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
