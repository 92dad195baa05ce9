"""Integrity: the reads and repairs of `agentctl doctor --runs`, and the checks of `doctor --db`.

`scan_runs` and `check_page` read pages in the order of ids, so that they need little memory and can
be continued. Each page is a separate snapshot. A problem may be gone when it is repaired, so every
change has a condition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

from agentctl.store.database import Sql, Statement, Steps, Value, Work, unit
from agentctl.store.states import IS_FINAL, IS_FOUND_OPEN, IS_LIVE, IS_OPEN, RUN, State, change

_HAS_SESSION = "EXISTS (SELECT 1 FROM sessions WHERE sessions.session_id = runs.session_id)"


@dataclass(frozen=True, slots=True)
class ScannedRun:
    """A run in a scan. `created_at` is in microseconds UTC."""

    run_id: str
    session_id: str
    owner: str | None
    status: str
    attempt: int
    created_at: int

    has_session: int
    """1 if its session exists, otherwise 0."""

    live: int
    """1 if it is live, otherwise 0."""

    calls: int
    """1 if the run has ended and its messages may contain tool calls, otherwise 0."""


@dataclass(frozen=True, slots=True)
class StoredMessages:
    """The stored conversation of an ended run: JSON texts, or None."""

    messages: str | None
    tools: str | None


# With EXISTS in a column, PostgreSQL would scan the whole other table for a page.
_SCANNED = (
    "SELECT run_id, session_id, owner, status, attempt, created_at,"
    " (SELECT count(*) FROM sessions WHERE sessions.session_id = runs.session_id),"
    f" CASE WHEN {IS_LIVE} THEN 1 ELSE 0 END,"
    f" CASE WHEN NOT {IS_OPEN} AND messages LIKE '%\"tool_calls\"%' THEN 1 ELSE 0 END FROM runs"
)
_SCAN = Sql(f"{_SCANNED} WHERE run_id > :after ORDER BY run_id LIMIT :limit")
_NEWEST = Sql(f"{_SCANNED} ORDER BY created_at DESC, run_id DESC LIMIT :limit")
_LIVE = Sql(
    f"{_SCANNED} WHERE {IS_LIVE} AND (status, created_at, run_id) > (:status, :created_at, :after)"
    " ORDER BY status, created_at, run_id LIMIT :limit"
)

_MESSAGES = Sql(
    f"SELECT {', '.join(field.name for field in fields(StoredMessages))} FROM runs"
    f" WHERE run_id = :run_id AND NOT ({IS_OPEN})"
)

_REPAIR = Sql(
    "UPDATE runs SET messages = :messages, tools = :tools"
    f" WHERE run_id = :run_id AND messages = :before AND NOT ({IS_LIVE}) RETURNING run_id"
)

_COUNT_EVENTS = Sql("SELECT count(*) FROM run_events WHERE run_id = :run_id")

# The schema deletes its events as well.
_DELETE = change(RUN, "delete")(
    f"DELETE FROM runs WHERE run_id = :run_id AND NOT {_HAS_SESSION}"
    f" AND (NOT ({IS_LIVE}) OR coalesce(owner, '') = cast(:dead_owner as text)) RETURNING run_id"
)


def scan_runs(after: str, limit: int) -> Work[list[ScannedRun]]:
    """Return the next runs of a scan after an id; `""` starts the scan."""
    return _SCAN.rows(ScannedRun, after=after, limit=limit)


def list_newest(limit: int) -> Work[list[ScannedRun]]:
    """Return the newest runs, the last one first."""
    return _NEWEST.rows(ScannedRun, limit=limit)


def list_live(after: ScannedRun | None, limit: int) -> Work[list[ScannedRun]]:
    """Return the live runs that follow `after`, by status and age."""
    if after is None:
        return _LIVE.rows(ScannedRun, status="", created_at=0, after="", limit=limit)
    return _LIVE.rows(
        ScannedRun,
        status=after.status,
        created_at=after.created_at,
        after=after.run_id,
        limit=limit,
    )


def get_messages(run_id: str) -> Work[StoredMessages | None]:
    """Return the stored conversation of a run; None if the run is live or does not exist."""
    return _MESSAGES.first(StoredMessages, run_id=run_id)


def replace_messages(run_id: str, before: str, after: StoredMessages) -> Work[bool]:
    """Replace the messages of an ended run. Return False if they differ from `before` now."""
    return _REPAIR.has_rows(
        run_id=run_id, before=before, messages=after.messages, tools=after.tools
    )


@unit
def delete_orphan(run_id: str, dead_owner: str | None) -> Steps[int | None]:
    """Delete a run without a session, and its events.

    Args:
        dead_owner: the dead worker of the run, if the run has not ended.

    Returns:
        The number of deleted batches of events. None, without a change, if the run does not exist,
        has a session, or belongs to another worker.
    """
    batches = yield Statement(_COUNT_EVENTS, {"run_id": run_id})
    deleted = yield Statement(_DELETE, {"run_id": run_id, "dead_owner": dead_owner or ""})
    return batches[0][0] if deleted else None


_COUNT_SESSIONS = Sql("SELECT count(*) FROM sessions")


def count_sessions() -> Work[int]:
    """Return the number of sessions."""
    return _COUNT_SESSIONS.value()


def _lacks(table: str, key: str, value: str) -> str:
    """Return the condition that a column of a row names no row of a table.

    Args:
        key: the column of the table.
        value: the column of the row.
    """
    # Not EXISTS, see `_SCANNED`.
    return f"(SELECT count(*) FROM {table} AS other WHERE other.{key} = page.{value}) = 0"


class _Check(NamedTuple):
    """The rules for the rows of a table."""

    key: str
    """The column with the order of the pages."""

    columns: str
    """Other columns that the rules use."""

    rules: Mapping[str, str]
    """The conditions of violations, by the text for the report."""

    source: str = "{page}"
    """A query of further columns for the rows of a page."""

    def build(self, table: str) -> Sql:
        """Return the statement that counts the rows of a page, and the violations of each rule."""
        page = (
            f"(SELECT {self.key}{self.columns} FROM {table} WHERE {self.key} > :after"
            f" ORDER BY {self.key} LIMIT :limit) AS page"
        )
        counts = "".join(
            f", count(CASE WHEN {rule} THEN 1 END), min(CASE WHEN {rule} THEN {self.key} END)"
            for rule in self.rules.values()
        )
        return Sql(f"SELECT count(*), max({self.key}){counts} FROM {self.source.format(page=page)}")


_CHECKS = {
    "runs": _Check(
        "run_id",
        ", session_id, parent_run_id, status, queue_turn, finished_at",
        {
            "runs without a session": _lacks("sessions", "session_id", "session_id"),
            "runs without their parent": "parent_run_id IS NOT NULL AND "
            + _lacks("runs", "run_id", "parent_run_id"),
            "ended runs without an end time": f"finished_at IS NULL AND NOT {IS_OPEN}",
            "paused or queued runs without a checkpoint": "(status = 'PAUSED'"
            " OR status = 'PENDING' AND queue_turn IS NOT NULL) AND "
            + _lacks("run_checkpoints", "run_id", "run_id"),
            "runs with an unknown status": f"NOT ({IS_OPEN} OR {IS_FINAL})",
        },
    ),
    "run_events": _Check(
        "run_id", "", {"events without a run": _lacks("runs", "run_id", "run_id")}
    ),
    "approvals": _Check(
        "approval_id", ", run_id", {"approvals without a run": _lacks("runs", "run_id", "run_id")}
    ),
    "sessions": _Check(
        "session_id",
        ", run_count, history_bytes, last_status",
        {
            "run_count differs from the number of runs": "run_count <> runs OR run_count < highest",
            "history_bytes differs from the size of the history": "history_bytes <> octets",
            "last_status differs from that of the last run": "newest IS NOT NULL"
            " AND (last_status IS NULL OR last_status <> newest)",
        },
        "(SELECT page.session_id, run_count, page.history_bytes, last_status,"
        " count(runs.run_id) AS runs, coalesce(max(runs.seq), 0) AS highest,"
        " coalesce(sum(CASE WHEN runs.parent_run_id IS NULL"
        " THEN octet_length(runs.history) END), 0) AS octets,"
        " (SELECT status FROM runs AS last WHERE last.session_id = page.session_id"
        " AND parent_run_id IS NULL ORDER BY seq DESC LIMIT 1) AS newest"
        " FROM {page} LEFT JOIN runs ON runs.session_id = page.session_id"
        " GROUP BY page.session_id, run_count, page.history_bytes, last_status) AS compared",
    ),
}

CHECKED_TABLES = tuple(_CHECKS)
"""The tables of `check_page`, in the order of a whole check."""

_PAGES = {table: check.build(table) for table, check in _CHECKS.items()}


@dataclass(frozen=True, slots=True)
class CheckedPage:
    """A page of checked rows."""

    rows: int
    """Number of rows; 0 after the last page."""

    last: str
    """The key of the last row."""

    broken: dict[str, tuple[int, str]]
    """The number of violations of a rule, and the key of one of them, by the rule."""


@unit
def check_page(table: str, after: str, limit: int) -> Steps[CheckedPage]:
    """Check the next rows of one of `CHECKED_TABLES` after a key; `""` begins.

    The rules find rows without the row that they refer to, impossible states, and counters of
    sessions that differ from their runs.
    """
    ((rows, last, *violations),) = yield Statement(_PAGES[table], {"after": after, "limit": limit})
    pairs = zip(violations[::2], violations[1::2], strict=True)
    broken = {
        rule: (count, key)
        for rule, (count, key) in zip(_CHECKS[table].rules, pairs, strict=True)
        if count
    }
    return CheckedPage(rows, last or after, broken)


_OPEN_STATES = [state for state in RUN.states if "finished_at" in state.absent]
_STATE_COLUMNS = tuple(
    dict.fromkeys(name for state in _OPEN_STATES for name in (*state.present, *state.absent))
)
_ALLOWED = " OR ".join(f"status = '{state.value}' AND {state.sql}" for state in _OPEN_STATES)
_SELECT = "SELECT runs.run_id, runs.session_id, runs.owner"
_AND_LIMIT = "AND (cast(:run_id as text) IS NULL OR runs.run_id = :run_id) LIMIT :limit"

_IMPOSSIBLE = Sql(
    f"{_SELECT}, status, {', '.join(f'{name} IS NOT NULL' for name in _STATE_COLUMNS)} FROM runs"
    f" WHERE {IS_FOUND_OPEN} AND NOT ({_ALLOWED}) {_AND_LIMIT}"
)

Remedy = Literal["end it", "let it go on", "close what it waited for"]

INCONSISTENT: Sequence[tuple[str, Remedy, Sql]] = (
    (
        "it is open, but its parent has ended",
        "end it",
        Sql(
            f"{_SELECT} FROM runs JOIN runs AS parents ON parents.run_id = runs.parent_run_id"
            f" WHERE {IS_FOUND_OPEN} AND runs.purpose IS NULL"
            f" AND parents.finished_at <= :before {_AND_LIMIT}"
        ),
    ),
    (
        "it waits, but has no checkpoint from which it could go on",
        "end it",
        Sql(
            f"{_SELECT} FROM runs WHERE {IS_FOUND_OPEN} AND status <> 'RUNNING' AND owner IS NULL"
            " AND NOT EXISTS (SELECT 1 FROM run_checkpoints"
            f" WHERE run_checkpoints.run_id = runs.run_id) {_AND_LIMIT}"
        ),
    ),
    (
        "it is PAUSED, but nothing is left to decide",
        "let it go on",
        Sql(
            f"{_SELECT} FROM runs WHERE status = 'PAUSED' AND parent_run_id IS NULL AND NOT EXISTS"
            " (SELECT 1 FROM approvals WHERE root_run_id = runs.run_id"
            f" AND approvals.status = 'pending') {_AND_LIMIT}"
        ),
    ),
    (
        "it has ended, but an approval or an approved call of it is open",
        "close what it waited for",
        Sql(
            f"{_SELECT} FROM approvals JOIN runs ON runs.run_id = approvals.run_id WHERE"
            " (approvals.status = 'pending' OR execution = 'executing')"
            f" AND finished_at IS NOT NULL {_AND_LIMIT}"
        ),
    ),
    (
        "it has ended, but its checkpoint is kept",
        "close what it waited for",
        Sql(
            f"{_SELECT} FROM run_checkpoints JOIN runs ON runs.run_id = run_checkpoints.run_id"
            f" WHERE finished_at IS NOT NULL {_AND_LIMIT}"
        ),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Inconsistency:
    """A run that is in no known state, or disagrees with its parent or its approvals."""

    run_id: str
    session_id: str
    owner: str | None
    text: str

    remedy: Remedy
    """The repair of `doctor --runs --fix`."""


@unit
def find_inconsistent(
    limit: int, before: int, run_id: str | None = None
) -> Steps[list[Inconsistency]]:
    """Find runs that no process continues, or whose rows contradict each other.

    Args:
        limit: maximum number for each rule.
        before: time in microseconds UTC; members of parents that ended later may be ending.
    """
    values: dict[str, Value] = {"limit": limit, "run_id": run_id}
    inconsistencies = []

    for run, session, owner, status, *is_set in (yield Statement(_IMPOSSIBLE, values)):
        text = _describe_difference(status, dict(zip(_STATE_COLUMNS, is_set, strict=True)))
        inconsistencies.append(Inconsistency(run, session, owner, text, "end it"))

    for text, remedy, sql in INCONSISTENT:
        bounds = {"before": before} if ":before" in sql else {}
        for run, session, owner in (yield Statement(sql, {**values, **bounds})):
            inconsistencies.append(Inconsistency(run, session, owner, text, remedy))

    return inconsistencies


def _describe_difference(status: str, is_set: Mapping[str, int]) -> str:
    """Name the columns in which a row differs from the state that it resembles most."""

    def list_differences(state: State) -> list[str]:
        differences = [f"{name} is not set" for name in state.present if not is_set[name]]
        differences += [f"{name} is set" for name in state.absent if is_set[name]]
        return differences

    states = [state for state in _OPEN_STATES if state.value == status]
    nearest = min(states, key=lambda state: len(list_differences(state)))
    differences = list_differences(nearest)
    if not differences:
        # The columns are right, so a further condition of the state is not true.
        differences = [f"not with {nearest.more}"]
    return f"it is {status}, but {' and '.join(differences)}"


_LONG_PAUSED = Sql(
    "SELECT run_id, session_id FROM runs WHERE status = 'PAUSED' AND parent_run_id IS NULL"
    " AND paused_at < :before ORDER BY paused_at, run_id LIMIT :limit"
)
_UNKNOWN = Sql(
    "SELECT run_id, session_id, tool_name, tool_call_id FROM approvals"
    " WHERE execution = 'unknown' ORDER BY created_at, approval_id LIMIT :limit"
)


class UnknownCall(NamedTuple):
    """An approved call that may or may not have been made."""

    run_id: str
    session_id: str
    tool_name: str
    tool_call_id: str


def list_long_paused(before: int, limit: int) -> Work[list[tuple[str, str]]]:
    """Return run id and session id of root runs that paused before a time, oldest first."""
    return _LONG_PAUSED.rows(lambda *row: row, before=before, limit=limit)


def list_unknown_calls(limit: int) -> Work[list[UnknownCall]]:
    """Return calls whose outcome is unknown, oldest first."""
    return _UNKNOWN.rows(UnknownCall, limit=limit)
