"""Columns of sessions and runs."""

from __future__ import annotations

import time
from functools import partial

from agentctl.cli.io import current_io
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.records.kinds import Record, find_component
from agentctl.records.phase import describe_run, describe_wait
from agentctl.records.runs import MODEL_FAILURE
from agentctl.records.times import format_elapsed, format_span
from agentctl.transcripts.model import count_seconds, find_tokens, parse_time
from agentctl.transcripts.texts import describe_hold, describe_origin, get_look

RELATIVE_SECONDS = 7 * 86_400
"""Ages under 7 days are shown as ages, longer ages as a date."""


def component_id_of(record: Record) -> str | None:
    component = find_component(record)
    return component[1] if component is not None else None


def format_holding(record: Record) -> str | None:
    """Return the names of the work that continues after the end; `?` if they are not known."""
    if "holding" not in record:
        return None
    return "?" if record["holding"] is None else ", ".join(record["holding"])


def _format_tokens(record: Record) -> str:
    total = find_tokens(record)
    return "" if total is None else f"{total:,}"


def _format_state(record: Record) -> str:
    phase = describe_run(record)
    look = get_look(phase)
    is_unicode = (current_io().out.encoding or "utf-8").lower().startswith("utf")
    glyph = look.glyph if is_unicode else look.ascii

    text = f"{glyph} {phase['words']}"
    if phase["name"] == "paused":
        age = format_distance(record.get("paused_at"))
        text += f" {age}" if age else ""
    elif phase["name"] == "queued" and record.get("queue_position") is not None:
        text += f" #{record['queue_position']}"
    if phase["warning"]:
        text += f" ! {phase['warning']}"
    return text


def _describe_origin(run: Record) -> str | None:
    origin = describe_origin(run)
    return None if origin is None else f"{origin[0]} of {origin[1]}"


def _describe_message(message: Record) -> str:
    """Return a message in one line: its text, or the calls of an answer."""
    calls = ", ".join(f"ƒ {call['name']}" for call in message.get("tool_calls") or ())
    result = f"ƒ {message['tool_name']}: " if message.get("tool_name") else ""
    return " ".join(filter(None, [f"{result}{' '.join(str(message['content']).split())}", calls]))


def _describe_call_end(call: Record) -> str | None:
    reason = call["error_code"] or call["finish_reason"]
    return f"{call['status']} ({reason})" if reason else call["status"]


def _format_call_tokens(call: Record) -> str | None:
    if call["input_tokens"] is None:
        return None
    return f"{call['input_tokens']:,} in, {call['output_tokens'] or 0:,} out"


def format_cost(cost: float | None) -> str:
    """Return US dollars as a text; `?` if they are not known."""
    if cost is None:
        return "?"
    return f"{cost:,.2f}" if cost >= 1 else f"{cost:.4f}"


def format_total_cost(record: Record) -> str | None:
    """Return the cost of a run or a session in dollars; None for a cost of 0 or without a price.

    `>` is before the cost of tokens if some of them have no known price.
    """
    cost = record.get("cost")
    if not cost:
        return None
    return f"> {format_cost(cost)}" if record.get("unpriced_tokens") else format_cost(cost)


def _describe_wait(run: Record) -> str | None:
    return describe_wait(run.get("approvals") or ()) if run.get("status") == "PAUSED" else None


def _style_state(record: Record) -> str:
    phase = describe_run(record)
    return "yellow" if phase["warning"] else get_look(phase).style


def get_last_run(session: Record) -> Record:
    """Return what the summary of a session has of its last run; {} if it had none."""
    status = session.get("last_status")
    return session.get("last_run") or ({"status": status} if status else {})


def _error(record: Record) -> str | None:
    error = record.get("error")
    return f"{error.get('code')}: {error.get('detail')}" if error else None


def format_distance(moment: object) -> str | None:
    """Return the age of a timestamp as people say it; an old timestamp as a date."""
    at = parse_time(moment)
    if at is None:
        return None
    seconds = time.time() - at.timestamp()
    if seconds >= RELATIVE_SECONDS:
        return str(moment)[:10]
    return " ".join(format_span(seconds).split()[:2])


def _format_duration(run: Record) -> str | None:
    ended = run.get("paused_at") if run.get("status") == "PAUSED" else run.get("finished_at")
    seconds = count_seconds(run.get("started_at"), ended)
    return None if seconds is None else format_elapsed(seconds)


def _summary_text(session: Record) -> str | None:
    summary = session.get("session_summary")
    return str(summary.get("summary")) if isinstance(summary, dict) else None


def _get_of_match(record: Record, name: str) -> object:
    return (record.get("match") or {}).get(name)


def _add_match(columns: Columns) -> Columns:
    """Return the columns of a list with the text that a search has found."""
    run_id = partial(_get_of_match, name="run_id")
    snippet = partial(_get_of_match, name="snippet")
    tsv_columns = [Column("match_run_id", run_id), Column("match_snippet", snippet)]
    # After the first two: the rest may be hidden on a narrow terminal.
    table_column = Column("match_snippet", snippet, heading="found", look="text")
    return Columns(
        [*columns.tsv, *tsv_columns], [*columns.table[:2], table_column, *columns.table[2:]]
    )


SESSIONS = Columns(
    tsv=[
        *plain_columns("session_id", "session_name", "session_type"),
        Column("component", component_id_of),
        *plain_columns("user_id", "run_count", "total_tokens", "last_status", "updated_at"),
        Column("last_stopped_at", lambda row: get_last_run(row).get("stopped_at")),
        Column("last_holding", lambda row: format_holding(get_last_run(row))),
        *plain_columns("cost", "unpriced_tokens"),
    ],
    table=[
        Column("session_id", look="id"),
        Column("session_name", heading="name", look="text"),
        Column(
            "last_status",
            lambda row: _format_state(last) if (last := get_last_run(row)) else "",
            heading="status",
            style=lambda row: _style_state(get_last_run(row)),
        ),
        Column("component", component_id_of),
        Column(
            "last_use",
            lambda session: format_distance(session.get("updated_at")),
            heading="used",
            right=True,
        ),
        Column("run_count", heading="runs", right=True),
        Column("user_id", heading="user"),
        Column("total_tokens", _format_tokens, heading="tokens", right=True),
        Column("cost", format_total_cost, right=True),
        Column("session_type", heading="type"),
    ],
)
FOUND_SESSIONS = _add_match(SESSIONS)
SESSION = [
    *plain_columns("session_id", "session_name"),
    Column("component", component_id_of),
    *plain_columns("user_id", "total_tokens"),
    Column("session_summary", _summary_text, look="text"),
    *plain_columns("session_state", "metadata", "created_at", "updated_at"),
    Column(
        "hold", lambda row: describe_hold(row["hold"]) if row.get("hold") else None, look="text"
    ),
    Column("cost", format_total_cost),
]
SUMMARIZED = [Column("session_id"), Column("session_summary", _summary_text, look="text")]
SENT = plain_columns(
    "message_id", "run_id", "session_id", "status", "late", "next_run_id", "reason", "created_at"
)
RUN_MESSAGES = Columns(
    tsv=[
        *plain_columns("message_id", "run_id", "session_id", "content", "status", "late"),
        *plain_columns("model_call_id", "next_run_id", "reason"),
        *plain_columns("created_by", "created_at", "settled_at"),
    ],
    table=[
        Column("message_id", heading="id", look="id"),
        Column("status"),
        Column("content", look="text"),
        Column("reason", look="text"),
        Column("model_call_id", heading="call"),
        Column("next_run_id", heading="next run", look="id"),
        Column("created_by", heading="by"),
        Column("created_at", heading="sent"),
    ],
)
RENAMED = plain_columns("session_id", "session_name", "updated_at")
_RUN_HEAD = [
    *plain_columns("run_id", "session_id"),
    Column("component", component_id_of),
    *plain_columns("user_id", "status"),
    Column("error", _error),
    Column("total_tokens", find_tokens),
]
_RUNS = [
    *_RUN_HEAD,
    *plain_columns("created_at", "finished_at", "cancel_requested_at", "stopped_at"),
    Column("holding", format_holding),
    *plain_columns("request_id", "paused_at"),
    Column("waits_for", _describe_wait),
    *plain_columns("queued_at", "queue_position"),
    *plain_columns("origin_run_id", "origin_kind", "origin_at"),
    *plain_columns("cost", "unpriced_tokens"),
]
_RUNS_OF_SESSION = [
    Column("run_id", heading="run", look="id"),
    Column("status", _format_state, style=_style_state),
    Column("component", component_id_of),
    Column("age", lambda run: format_distance(run.get("created_at")), right=True),
    Column("duration", _format_duration, heading="took", right=True),
    Column("total_tokens", _format_tokens, heading="tokens", right=True),
    Column("cost", format_total_cost, right=True),
    Column("waits_for", _describe_wait, look="text"),
    Column(
        "error",
        lambda run: (run.get("error") or {}).get("code"),
        look="text",
        keep=True,
        style=lambda _: "red",
    ),
    Column("user_id", heading="user"),
    Column("origin", _describe_origin, look="text"),
]
RUNS_OF_SESSION = Columns(tsv=_RUNS, table=_RUNS_OF_SESSION)
RUNS = Columns(
    tsv=_RUNS,
    table=[
        *_RUNS_OF_SESSION[:7],
        Column("session_id", heading="session", look="id"),
        *_RUNS_OF_SESSION[7:],
    ],
)
FOUND_RUNS = _add_match(RUNS)
_CAUSE_FIELDS = ("component_id", "run_id", "tool_name", "type", "message", "place")


def _describe_failure(record: Record) -> str | None:
    """Return the exception that ended a run, or the error of a run without one."""
    cause = record.get("cause")
    if not cause:
        return _error(record)

    message = cause["message"].partition("\n")[0]
    if cause["type"] == MODEL_FAILURE:
        # The text of the run names the setting to check; the response of the provider the reason.
        return f"{_error(record)} ({message})"
    return f"{cause['type']}: {message}"


def _get_of_cause(record: Record, name: str) -> object:
    return (record.get("cause") or {}).get(name)


FAILURES = Columns(
    tsv=[
        *plain_columns("run_id", "finished_at"),
        Column("error", _error),
        *(Column(f"cause_{name}", partial(_get_of_cause, name=name)) for name in _CAUSE_FIELDS),
    ],
    table=[
        Column("run_id", heading="run", look="id"),
        Column("age", lambda row: format_distance(row["finished_at"]), right=True),
        Column("failure", _describe_failure, look="text", keep=True, style=lambda _: "red"),
        Column("place", partial(_get_of_cause, name="place"), look="text"),
    ],
)
RUN = [
    *_RUN_HEAD,
    Column("parent_run_id"),
    Column("member_runs", lambda run: ", ".join(run.get("member_runs") or [])),
    *plain_columns("cancel_requested_at", "cancel_requested_by", "cancel_reason"),
    *plain_columns("created_at", "started_at", "finished_at", "stopped_at", "late_result"),
    Column("holding", format_holding),
    *plain_columns("request_id", "input", "content", "metadata", "session_state", "output"),
    Column("paused_at"),
    Column("waits_for", _describe_wait),
    Column("input_object"),
    *plain_columns("queued_at", "queue_position"),
    *plain_columns("origin_run_id", "origin_kind", "origin_at", "trace_id", "version"),
    Column("files", lambda run: ", ".join(file["name"] for file in run.get("files") or [])),
]
MESSAGES = Columns(
    tsv=plain_columns("number", "role", "content", "tool_name", "tool_call_id", "origin_run_id"),
    table=[
        Column("number", heading="#", right=True),
        Column("role"),
        Column("content", _describe_message, look="text"),
    ],
)
MODEL_CALLS = Columns(
    tsv=[
        *plain_columns("id", "model", "provider", "requested_model", "response_model"),
        *plain_columns("response_id", "attempt", "is_fallback", "status", "error_code"),
        *plain_columns("finish_reason", "started_at", "first_token_at", "finished_at"),
        *plain_columns("input_tokens", "output_tokens", "cost", "message_count"),
        *plain_columns("characters", "tools"),
    ],
    table=[
        Column("id", heading="CALL"),
        Column("model"),
        Column("response_model", heading="ANSWERED BY"),
        Column("status", _describe_call_end, heading="STATUS"),
        Column("duration", _format_duration, right=True),
        Column("tokens", _format_call_tokens, right=True),
        Column("cost", lambda call: format_cost(call["cost"]), right=True),
        Column("message_count", heading="MESSAGES", right=True),
        Column(
            "left out",
            lambda call: ", ".join(f"{each['count']} {each['kind']}" for each in call["omissions"]),
        ),
    ],
)
SENT_MESSAGES = Columns(
    tsv=plain_columns("number", "role", "content", "tool_name", "tool_call_id", "source"),
    table=[
        Column("number", heading="#", right=True),
        Column("role"),
        Column("source"),
        Column("content", _describe_message, look="text"),
    ],
)
CANCELS = [
    *plain_columns("run_id", "session_id", "cancel", "status"),
    *plain_columns("cancel_requested_at", "finished_at", "reason", "cancel_requested_by"),
    Column("stopped_at"),
    Column("holding", format_holding),
]

PROBLEMS = Columns(
    tsv=[
        *plain_columns("run_id", "session_id", "worker_id", "db_id", "kind"),
        *plain_columns("problem", "remedy", "outcome", "detail"),
    ],
    table=[
        Column("run_id", lambda row: row["run_id"] or row["worker_id"], heading="id"),
        Column("problem", look="text"),
        Column("remedy", heading="fix", look="text"),
        Column("outcome"),
        Column("detail", look="text"),
        Column("session_id"),
        Column("db_id"),
    ],
)
