"""Rows of a session and its runs, from their records.

The record of a row that is built from a record is the same: stored JSON keeps the order of members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from itertools import pairwise
from typing import Any, cast, get_args

import orjson

from agentctl.admin.imports.store import ImportedSession
from agentctl.auth.tokens.claims import has_hidden_characters, is_reserved_subject
from agentctl.config.settings import Limits
from agentctl.errors import ValidationFailed
from agentctl.records.files import is_reference
from agentctl.records.kinds import KINDS, Record, RunStatus
from agentctl.records.run_spec import OriginKind
from agentctl.records.runs import TEXT_COLUMNS, RunRecord, RunRow
from agentctl.records.sessions import SESSION_DETAILS, TOKEN_COUNTERS, SessionRow
from agentctl.records.text import check_text, is_session_id, is_unique_id
from agentctl.records.times import parse_rfc3339
from agentctl.records.value_types import ValueType, field_types, find_mismatch
from agentctl.runs.states import is_final
from agentctl.store.repositories.sessions import NO_COST, Cost

MAXIMUM_NAME_LENGTH = 255
"""Characters of the name of a session, and of the id of a user or component."""

MAXIMUM_TOKENS = 2**62
"""Maximum of a counter, so that a sum of two counters fits into 64 bits."""

MAXIMUM_COST = 1e12
"""Maximum of a cost, in US dollars."""

_STATUSES = RunStatus.__args__  # type: ignore[attr-defined]
_PURPOSES = (None, "summary", "memory")
_ENTRY_FIELDS = ("role", "content", "created_at")

_SESSION_TEXTS = ("session_state", "metadata", "summary")
"""Columns of a session whose size is bounded by `limits.body_bytes`."""

_RUN_TEXTS = tuple(sorted({*TEXT_COLUMNS} - {"history", "metadata", "spans"}))
"""Columns of a run whose size is bounded by `limits.run_bytes`: each may have all its data."""

_TIMES = ("created_at", "started_at", "paused_at", "finished_at", "stopped_at")
"""The times of a run in their order."""

_RUN_COLUMNS = tuple(field.name for field in fields(RunRow))
_RUN_NAMES = ("user_id", "request_id", "origin_run_id")
_CONVERTED = (
    *_TIMES, "cancel_requested_at", "queued_at", "late_result", "input", "tools", "messages",
    "holding", "spans", "version_changes", "files",
)  # fmt: skip
"""Columns that are not read as their field is. A run from elsewhere was in no queue."""


def read_session(
    session: Record, runs: Sequence[Record], limits: Limits
) -> tuple[ImportedSession, list[tuple[str, str]]]:
    """Check the records of a session and its runs, and build the rows.

    Args:
        session, runs: the records, with fields of the types of `SessionDetail` and `RunRecord`.

    Returns:
        The rows, and pairs of the id of a run that is left out, and the reason.

    Raises:
        ValidationFailed: a value cannot be stored. The error names the field.
    """
    row = _build_session(session, limits)
    rows: list[RunRow] = []
    run_ids: set[str] = set()
    left_out: dict[str, str] = {}
    costs = _divide_costs(runs)

    for number, record in enumerate(runs):
        at = f"runs[{number}]"

        run_id = _read_id(record, "run_id", at)
        parent_id = record.get("parent_run_id")
        if run_id in run_ids:
            raise ValidationFailed(f"{at}.run_id is that of an earlier run")
        if parent_id is not None and parent_id not in run_ids:
            raise ValidationFailed(f"{at}.parent_run_id is not the id of an earlier run")
        run_ids.add(run_id)

        run = _build_run_row(record, at, row.session_id, costs[number])
        if run.user_id != row.user_id:
            raise ValidationFailed(f"{at}.user_id is not that of the session")
        _check_sizes(run, _RUN_TEXTS, at, limits.run_bytes)
        _check_sizes(run, ("metadata",), at, limits.body_bytes)

        if not is_final(run.status):
            left_out[run_id] = f"the run is {run.status}"
        elif parent_id in left_out:
            left_out[run_id] = "its parent is left out"
        else:
            rows.append(run)

    if row.session_type != "workflow":
        _divide_history(session.get("chat_history"), rows)
    return ImportedSession(row, rows), list(left_out.items())


def _build_session(session: Record, limits: Limits) -> SessionRow:
    at = "session"
    kind = next((kind for kind in KINDS if f"{kind}_data" in session), None)
    if kind is None:
        raise ValidationFailed("session has none of agent_data, team_data and workflow_data")
    mismatch = find_mismatch(session, SESSION_DETAILS[kind])
    if mismatch is not None:
        raise ValidationFailed(f"{at}.{mismatch} is missing or has a wrong type")

    data = session.get(f"{kind}_data")
    metrics = session.get("metrics")
    if kind == "workflow":
        metrics = (session.get("session_data") or {}).get("session_metrics")
    counters = _check_counters(metrics, f"{at}.metrics", unknown=False)

    total = session.get("total_tokens")
    if total is not None and not _is_count(total):
        raise ValidationFailed("session.total_tokens is not a number of tokens")
    # The record of a session of a workflow has its tokens among the counters only.
    total_tokens = counters["total_tokens"] if total is None else total
    cost = _read_cost({**session, "total_tokens": total_tokens}, at)

    component_id = _read_component_id(session, KINDS[kind].id_field, at)
    component_name = session.get("workflow_name") if kind == "workflow" else None
    if kind != "workflow" and data is not None:
        component_name = data.get("name")
    if component_name is not None and not isinstance(component_name, str):
        raise ValidationFailed(f"{at}.{kind}_data.name is not a text")

    created_at = _read_time(session, "created_at", at)
    updated_at = _read_time(session, "updated_at", at)
    if created_at is None or updated_at is None:
        raise ValidationFailed(f"{at}.created_at or {at}.updated_at is missing")

    row = SessionRow(
        session_id=_read_id(session, "session_id", at),
        session_type=kind,
        component_id=component_id,
        component_name=None if component_name is None else check_text(at, component_name),
        user_id=_read_text(session, "user_id", at, MAXIMUM_NAME_LENGTH),
        session_name=_read_text(session, "session_name", at, MAXIMUM_NAME_LENGTH) or "",
        total_tokens=total_tokens,
        run_count=0,
        history_bytes=0,
        last_status=None,
        created_at=created_at,
        updated_at=max(created_at, updated_at),
        hold=None,
        metrics=_dump(_add_cost(metrics, cost)) or "{}",
        component_data=_dump(data),
        metadata=_dump(session.get("metadata")),
        summary=_dump(session.get("session_summary")),
        session_state=_dump(session.get("session_state")),
    )

    _check_owner(row.user_id, at)
    # A request sets these values, so that they were in its body.
    _check_sizes(row, _SESSION_TEXTS, at, limits.body_bytes)
    return row


def _divide_history(entries: Any, rows: Sequence[RunRow]) -> None:
    """Give each entry of the chat history to its run.

    The entries of a run are some of its messages, in their order. An entry without such a
    message belongs to the last run, so that no entry is lost.
    """
    if entries is None:
        raise ValidationFailed("session.chat_history is missing")

    tops = [row for row in rows if row.parent_run_id is None]
    if entries and not tops:
        raise ValidationFailed("session.chat_history has entries of no run")

    next_entry = 0
    for row in tops:
        first = next_entry
        for message in orjson.loads(row.messages or "[]"):
            if next_entry == len(entries):
                break
            entry = entries[next_entry]
            if all(entry.get(name) == message.get(name) for name in _ENTRY_FIELDS):
                next_entry += 1

        end = len(entries) if row is tops[-1] else next_entry
        row.history = _dump(entries[first:end])


def _divide_costs(runs: Sequence[Record]) -> list[Cost]:
    """Return the cost of each run alone: a record has it with the cost of the runs below it."""
    costs = [_read_cost(record, f"runs[{number}]") for number, record in enumerate(runs)]
    costs_of_parts: dict[str, Cost] = {}
    for record, cost in zip(runs, costs, strict=True):
        parent = record.get("parent_run_id")
        if isinstance(parent, str):
            costs_of_parts[parent] = costs_of_parts.get(parent, NO_COST).add(cost)

    own_costs: list[Cost] = []
    for record, cost in zip(runs, costs, strict=True):
        below = costs_of_parts.get(str(record.get("run_id")), NO_COST)
        own_cost = max(round(cost.cost - below.cost, 9), 0.0)
        own_costs.append(Cost(own_cost, max(cost.priced_tokens - below.priced_tokens, 0)))
    return own_costs


def _read_cost(record: Record, at: str) -> Cost:
    """Return the cost that a record has; `NO_COST` if it is not known.

    Raises:
        ValidationFailed: it is not a cost.
    """
    cost = record.get("cost")
    unpriced_tokens = record.get("unpriced_tokens")
    total_tokens = record.get("total_tokens")
    if cost is None or unpriced_tokens is None or total_tokens is None:
        return NO_COST

    is_amount = type(cost) in (int, float) and 0 <= cost <= MAXIMUM_COST
    if not is_amount or not _is_count(unpriced_tokens) or not _is_count(total_tokens):
        raise ValidationFailed(f"{at}.cost, unpriced_tokens or total_tokens is not a number")
    return Cost(float(cost), max(total_tokens - unpriced_tokens, 0))


def _add_cost(metrics: Any, cost: Cost) -> Any:
    """Return counters with their cost, as a row stores them."""
    if not isinstance(metrics, dict) or not cost.priced_tokens:
        return metrics
    return {**metrics, **cost._asdict()}


def _build_run_row(record: Record, at: str, session_id: str, cost: Cost) -> RunRow:
    """Build the row of a run record, without its part of the history.

    Args:
        record: with fields of the types of `RunRecord`.
        at: its place, for errors.
        cost: the cost of its own tokens.

    Raises:
        ValidationFailed: a value cannot be stored. The error names the field.
    """
    kinds = [kind for kind, names in KINDS.items() if record.get(names.id_field) is not None]
    if len(kinds) != 1:
        raise ValidationFailed(f"{at} needs one of agent_id, team_id and workflow_id")

    if record.get("session_id") != session_id:
        raise ValidationFailed(f"{at}.session_id is not the id of the session")

    status = record["status"]
    purpose = record.get("purpose")
    if status not in _STATUSES:
        raise ValidationFailed(f"{at}.status must be one of {', '.join(_STATUSES)}")
    if purpose not in _PURPOSES or record.get("late_result") not in (None, "dropped"):
        raise ValidationFailed(f"{at}.purpose or {at}.late_result has an unknown value")

    times = _read_times(record, at)
    _check_messages(record, f"{at}.messages")
    _check_members(record, "tools", "tool_call_id", at)
    _check_members(record, "spans", "kind", at)
    _check_files(record, at)
    for name in ("before", "after", "at"):
        _check_members(record, "version_changes", name, at)

    if record.get("metrics") is not None:
        _check_counters(record["metrics"], f"{at}.metrics", unknown=True)

    error = record.get("error") or {}
    if status == "ERROR" and not error:
        raise ValidationFailed(f"{at}.error is missing")

    origin_at = record.get("origin_at")
    if record.get("origin_kind") not in (None, *get_args(OriginKind)):
        raise ValidationFailed(f"{at}.origin_kind has an unknown value")
    if origin_at is not None and (type(origin_at) is not int or not 0 <= origin_at < 1 << 53):
        raise ValidationFailed(f"{at}.origin_at must be a number of messages")

    return RunRow(
        **{
            **dict.fromkeys(_RUN_COLUMNS),
            **{name: _read_value(record, name, kind, at) for name, kind in _list_shared()},
            **times,
            "metrics": _dump(_add_cost(record.get("metrics"), cost)),
            "session_id": session_id,
            "seq": 0,
            "component_type": kinds[0],
            "component_id": _read_component_id(record, KINDS[kinds[0]].id_field, at),
            "background": 0,
            "attempt": 1,
            "messages_sent": 0,
            "late_result": int(record.get("late_result") is not None),
            "error_code": _read_text(error, "code", f"{at}.error"),
            "error_detail": _read_text(error, "detail", f"{at}.error"),
            "input": _read_text(record, "input", at) or "",
            "tools": _dump(record.get("tools") or []),
            "messages": _dump(record.get("messages") or []),
            # A record of stopped work has an empty array, which the row does not store.
            "holding": _dump(record.get("holding") or None),
            "spans": _dump(record.get("spans") or None),
            "version_changes": _dump(record.get("version_changes") or None),
            "files": _dump(record.get("files") or None),
        }
    )


@cache
def _list_shared() -> list[tuple[str, ValueType]]:
    """Return the fields of a run record that are read as the column of this name."""
    types = field_types(RunRecord)
    return [
        (name, types[name]) for name in _RUN_COLUMNS if name in types and name not in _CONVERTED
    ]


def _read_value(record: Record, name: str, value_type: ValueType, at: str) -> Any:
    """Return a field of a record as its column has it: a text, a number, or JSON as text."""
    if str in value_type.classes:
        maximum = MAXIMUM_NAME_LENGTH if name in _RUN_NAMES else None
        return _read_text(record, name, at, maximum)

    value = record.get(name)
    return value if value_type.classes else _dump(value)


def _read_times(record: Record, at: str) -> dict[str, Any]:
    times = {name: _read_time(record, name, at) for name in (*_TIMES, "cancel_requested_at")}

    required = {"created_at"}
    if is_final(record["status"]):
        required.add("finished_at")
    if record["status"] == "CANCELLED":
        required.add("cancel_requested_at")
    for name in sorted(required):
        if times[name] is None:
            raise ValidationFailed(f"{at}.{name} is missing")

    known_times = [(times[name], name) for name in _TIMES if times[name] is not None]
    for (earlier, _), (later, name) in pairwise(known_times):
        if cast(int, later) < cast(int, earlier):
            raise ValidationFailed(f"{at}.{name} is before an earlier time of the run")
    return times


def _check_messages(record: Record, at: str) -> None:
    for number, message in enumerate(record.get("messages") or []):
        place = f"{at}[{number}]"
        role = message.get("role")
        created_at = message.get("created_at")

        if role not in ("system", "user", "assistant", "tool"):
            raise ValidationFailed(f"{place}.role is unknown")
        if not isinstance(message.get("content"), str):
            raise ValidationFailed(f"{place}.content is not a text")
        if created_at is not None and type(created_at) is not int:
            raise ValidationFailed(f"{place}.created_at is not a number of seconds")
        if role == "tool" and not isinstance(message.get("tool_call_id"), str):
            raise ValidationFailed(f"{place}.tool_call_id is missing")

        _check_files(message, place)
        calls = message.get("tool_calls", [])
        mismatch = find_mismatch(calls, list[dict[str, Any]])
        if mismatch is not None or not all(map(_is_call, calls)):
            raise ValidationFailed(f"{place}.tool_calls{mismatch or ''} is not a list of calls")


def _is_call(call: Record) -> bool:
    return (
        isinstance(call.get("id"), str)
        and isinstance(call.get("name"), str)
        and isinstance(call.get("arguments"), dict)
    )


def _check_files(record: Record, at: str) -> None:
    files = record.get("files") or []
    if not isinstance(files, list) or not all(map(is_reference, files)):
        raise ValidationFailed(f"{at}.files is not a list of files")


def _check_members(record: Record, field: str, name: str, at: str) -> None:
    """Check that each entry of a list in a record has a text as the member with a name."""
    for number, entry in enumerate(record.get(field) or []):
        if not isinstance(entry.get(name), str):
            raise ValidationFailed(f"{at}.{field}[{number}].{name} is missing")


def _check_counters(metrics: Any, at: str, *, unknown: bool) -> dict[str, Any]:
    """Check the counters of tokens, and return them.

    Args:
        unknown: True if a counter may be missing or null.
    """
    for name in TOKEN_COUNTERS:
        count = metrics.get(name) if isinstance(metrics, dict) else None
        if count is None and unknown:
            continue
        if not _is_count(count):
            raise ValidationFailed(f"{at}.{name} is not a number of tokens")
    return cast(dict[str, Any], metrics)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAXIMUM_TOKENS


def _read_id(record: Record, name: str, at: str) -> str:
    value = record.get(name)
    if not isinstance(value, str) or not is_session_id(value):
        raise ValidationFailed(
            f"{at}.{name} must be 1 to 128 characters of A-Z, a-z, 0-9 and . _ ~ @ -"
        )
    return value


def _check_owner(user_id: str | None, at: str) -> None:
    """Check that a caller can be the owner: a subject, an account or a local user."""
    if user_id is None or user_id.startswith("local:"):
        is_caller = True
    elif user_id.startswith("sa:"):
        is_caller = is_unique_id(user_id.removeprefix("sa:"))
    else:
        is_caller = not is_reserved_subject(user_id)
    if not is_caller or has_hidden_characters(user_id or ""):
        raise ValidationFailed(f"{at}.user_id is not the name of a user")


def _check_sizes(row: object, names: Sequence[str], at: str, maximum: int) -> None:
    for name in names:
        text = getattr(row, name)
        # A character has at least one byte, so most texts need not be encoded.
        if text is not None and len(text) * 4 > maximum and len(text.encode()) > maximum:
            raise ValidationFailed(f"{at}.{name} is larger than {maximum} bytes")


def _read_component_id(record: Record, name: str, at: str) -> str | None:
    value = _read_text(record, name, at, MAXIMUM_NAME_LENGTH)
    if value is not None and has_hidden_characters(value):
        raise ValidationFailed(f"{at}.{name} has control characters or outer spaces")
    return value


def _read_text(record: Record, name: str, at: str, maximum: int | None = None) -> str | None:
    value = record.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValidationFailed(f"{at}.{name} is not a text")
    if maximum is not None and len(value) > maximum:
        raise ValidationFailed(f"{at}.{name} is longer than {maximum} characters")
    return check_text(f"{at}.{name}", value)


def _read_time(record: Record, name: str, at: str) -> int | None:
    value = record.get(name)
    if value is None:
        return None
    try:
        return parse_rfc3339(value)
    except (TypeError, ValueError):
        raise ValidationFailed(f"{at}.{name} is not a time of RFC 3339") from None


def _dump(value: object) -> str | None:
    try:
        return None if value is None else orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        raise ValidationFailed("a value has too many levels") from None
