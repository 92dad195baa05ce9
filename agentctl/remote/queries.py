"""Requests of operations over HTTP, from their declarations and arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from agentctl.interface.declarations import (
    Header,
    Path,
    Query,
    find_declared,
    is_time,
    list_request_values,
)
from agentctl.interface.requests import BEFORE_FIRST_EVENT, DELETION_WAIT, RunRequest
from agentctl.interface.requests.administration import Grant
from agentctl.interface.requests.approvals import Ruling
from agentctl.interface.requests.files import SLOWEST_UPLOAD
from agentctl.records.kinds import KINDS
from agentctl.records.text import is_idempotency_key
from agentctl.records.times import format_rfc3339
from agentctl.remote.connection import Request, build_path

if TYPE_CHECKING:
    from inspect import Parameter

    from _typeshed import DataclassInstance

    from agentctl.interface.declarations import Declaration
    from agentctl.interface.requests import NewSession, ResumeRequest, RetryRequest
    from agentctl.interface.requests.approvals import ContinueRequest
    from agentctl.interface.requests.memories import MemoryFilter

Pairs = tuple[tuple[str, str], ...]
"""Names and values of query parameters, or of other fields, in order."""

_SPECIAL: dict[str, Callable[..., dict[str, Any]]] = {
    "runs.create": lambda request, **_: _build_start(request),
    "runs.cancel": lambda request, **_: {"extra_wait": request.wait},
    "sessions.create": lambda session: {
        "query": build_query(type=session.type, db_id=session.db_id),
        "body": _build_session_body(session),
    },
    "sessions.update": lambda patch, **_: {"body": patch.changes},
    "sessions.delete": lambda cancel, **_: {"extra_wait": DELETION_WAIT if cancel else 0.0},
    "runs.continue_run": lambda request, **_: _build_start(request),
    "runs.retry": lambda request, **_: _build_start(request),
    "runs.fork": lambda request, **_: _build_start(request),
    "runs.resume": lambda request, **_: {"query": _build_position(request), "body": None},
    "runs.follow": lambda request, **_: {"query": _build_position(request), "body": None},
    "memories.list": lambda **arguments: {"query": _build_memory_query(arguments["filter"])},
    "files.upload": lambda media_type, content, size, **_: {
        "body": None,
        "content": content,
        "headers": (
            *_build_header("content-type", media_type or "application/octet-stream"),
            *_build_header("content-length", None if size is None else str(size)),
        ),
        "extra_wait": (size or 0) / SLOWEST_UPLOAD,
    },
    "memories.create": lambda memory: {"body": {"topics": [], **body_of(memory)}},
}
"""Parts of requests that follow from the values of arguments, by family and method."""


def build_request(declared: Declaration, arguments: Mapping[str, Any]) -> Request:
    """Build the request of an operation; parameters with their default value are omitted."""
    ids = dict[str, str]()
    query = list[tuple[str, str]]()
    body = dict[str, Any]()
    headers: Pairs = ()
    has_body = False

    for parameter, value in declared.signature.list_values(arguments):
        place = find_declared(parameter.annotation, (Path, Query, Header))
        if isinstance(place, Path):
            ids[parameter.name] = value
        elif isinstance(place, Header):
            is_key = place.alias == "Idempotency-Key"
            headers += build_key_header(value) if is_key else _build_header(place.alias, value)
        elif place is None:
            has_body = True
            if value != parameter.default:
                body[parameter.name] = _body_value(value)
        elif value != parameter.default:
            query += _query_pairs(parameter, value)

    if declared.kind is not None and "component_id" in ids:
        ids[KINDS[declared.kind].id_field] = ids.pop("component_id")

    method = declared.route.method
    path = build_path(declared.name, **ids)
    request = Request(
        method,
        path,
        tuple(query),
        body if has_body else None,
        headers=headers,
        extra_wait=declared.wait,
        accepted_status=declared.accepted_status,
    )

    special = _SPECIAL.get(declared.address)
    if special is not None:
        request = dataclasses.replace(request, **special(**arguments))

    has_key = any(value for _, value in request.headers)
    is_repeatable = declared.is_repeatable or not declared.changes_data or has_key
    return dataclasses.replace(request, is_repeatable=is_repeatable)


def _build_start(request: RunRequest | ContinueRequest | RetryRequest) -> dict[str, Any]:
    """Return the body with `stream`, which is true by default (docs/contract.md "Runs")."""
    body = {"stream": False, **body_of(request)}
    wait = 0.0 if request.background else None
    if not isinstance(request, RunRequest):
        return {"body": body, "extra_wait": wait}
    headers = build_key_header(body.pop("idempotency_key", None))
    return {"body": body, "extra_wait": wait, "headers": headers}


def _build_session_body(session: NewSession) -> dict[str, Any]:
    body = body_of(session)
    if "component_id" in body:
        body[KINDS[session.type].id_field] = body.pop("component_id")
    return body


def _build_position(request: ResumeRequest) -> Pairs:
    after = None if request.after == BEFORE_FIRST_EVENT else request.after
    return build_query(session_id=request.session_id, last_event_index=after)


def _build_memory_query(filter: MemoryFilter) -> Pairs:
    return query_of(filter, without=("sort_by",)) + build_query(sort_by=filter.page.sort_by)


def query_of(value: DataclassInstance, *, without: Collection[str] = ()) -> Pairs:
    """Build a query from the fields of a request, without those that have their default value.

    Args:
        without: names of fields that the operation does not have as parameters.
    """
    pairs: list[tuple[str, str]] = []
    for parameter, item in list_request_values(value):
        if item != parameter.default and parameter.name not in without:
            pairs += _query_pairs(parameter, item)
    return tuple(pairs)


def body_of(value: DataclassInstance) -> dict[str, Any]:
    """Build a body from the fields of a request that are in it; defaults are omitted."""
    return {
        parameter.name: _body_value(item)
        for parameter, item in list_request_values(value)
        if item != parameter.default
        and find_declared(parameter.annotation, (Header, Query)) is None
    }


def _query_pairs(parameter: Parameter, value: Any) -> Pairs:
    """Return the pairs of one argument: a list is repeated, or joined by commas."""
    if is_time(parameter.annotation):
        value = format_rfc3339(value)

    query = find_declared(parameter.annotation, Query)
    if query is not None and query.max_items is not None:
        return tuple((parameter.name, item) for item in value)

    if isinstance(value, tuple):
        value = ",".join(value)
    return build_query(**{parameter.name: value})


def _body_value(value: Any) -> Any:
    """Return a value of a request as JSON."""
    if isinstance(value, tuple):
        return [_body_value(item) for item in value]
    if isinstance(value, Ruling):
        return body_of(value)
    if isinstance(value, Grant):
        return dataclasses.asdict(value)
    return value


def build_query(**values: object) -> Pairs:
    """Build a query from names and values; None omits a name, flags are `true` and `false`."""
    return tuple(
        (name, str(value).lower() if isinstance(value, bool) else str(value))
        for name, value in values.items()
        if value is not None
    )


def _build_header(name: str, value: str | None) -> Pairs:
    return () if value is None else ((name.lower(), value),)


def build_key_header(key: str | None) -> Pairs:
    """Build the header with the idempotency key of a request, empty without a key.

    An invalid key is sent as an empty one, which a header can carry, so that the server rejects it
    in the order of docs/contract.md "Errors".
    """
    if key is None:
        return ()
    return (("idempotency-key", key if is_idempotency_key(key) else ""),)
