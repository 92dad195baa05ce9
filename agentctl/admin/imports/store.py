"""Storing an imported session with its runs in one transaction.

A session or run that exists is skipped, so an import can be repeated, also after an interruption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentctl.config.quotas import Quotas
from agentctl.errors import QuotaExceeded
from agentctl.records.runs import RunRow
from agentctl.records.sessions import SessionRow
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import run_reads, runs, search, sessions
from agentctl.store.repositories.quotas import check_added
from agentctl.store.search import Tokenizer
from agentctl.store.visibility import EVERYONE


@dataclass(slots=True)
class ImportReport:
    """The result of an import."""

    counts: Counter[str] = field(default_factory=Counter)
    """Numbers of imported and skipped rows, by name."""

    left: list[tuple[str, str]] = field(default_factory=list)
    """Rows that are left out: pairs of the id of a session or run, and the reason."""


@dataclass(frozen=True, slots=True)
class ImportedSession:
    """A session to store."""

    row: SessionRow
    """The session, with the token counts of its runs."""

    runs: Sequence[RunRow]
    """Its ended runs, each after its parent; their `seq` is not read."""


@dataclass(frozen=True, slots=True)
class _StoredSession:
    """The outcome of a session and its runs."""

    is_new: bool
    """False if the session existed."""

    added_runs: int

    existing_runs: int
    """Number of the runs that existed, which are skipped."""

    left_out: list[tuple[str, str]]
    """Pairs of the id of a run and the reason."""


async def store_session(
    database: Database,
    session: ImportedSession,
    report: ImportReport,
    quotas: Quotas,
    *,
    dry_run: bool = False,
) -> None:
    """Store a session and its runs, except runs that exist, and add the result to `report`.

    A session that exceeds a quota of its owner is left out. With a tokenizer in `database.outbox`
    a search finds its texts as soon as it is stored.

    Args:
        quotas: bounds for the data of one owner; a dry run does not check them.
        dry_run: report what would be stored, and change nothing.
    """
    session_id = session.row.session_id
    try:
        if dry_run:
            stored = await database.read(_store(session, quotas, None, dry_run=True))
        else:
            tokenizer = database.outbox.tokenizer
            stored = await database.write(_store(session, quotas, tokenizer, dry_run=False))
    except QuotaExceeded as refusal:
        report.left.append((session_id, refusal.detail))
        return

    if stored is None:
        report.left.append((session_id, "a session of another type or user has the id"))
        return

    report.counts["sessions" if stored.is_new else "sessions that existed"] += 1
    report.counts["runs"] += stored.added_runs
    report.counts["runs that existed"] += stored.existing_runs
    report.left += stored.left_out


@unit
def _store(
    session: ImportedSession, quotas: Quotas, tokenizer: Tokenizer | None, *, dry_run: bool
) -> Steps[_StoredSession | None]:
    row = session.row
    is_new = yield from _create_session(row, dry_run=dry_run)
    if is_new is None:
        return None

    added_runs = 0
    existing_runs = 0
    left_out: dict[str, str] = {}
    for run in session.runs:
        state = yield from run_reads.get_state(run.run_id)
        if state is not None and state.session_id == row.session_id:
            existing_runs += 1
        elif state is not None:
            left_out[run.run_id] = "a run of another session has the id"
        elif run.parent_run_id in left_out:
            left_out[run.run_id] = "its parent is left out"
        else:
            added_runs += 1
            if not dry_run:
                at = row.updated_at if is_new else run.finished_at or row.updated_at
                # The row of a new session has the token counts of its runs already.
                yield from runs.restore(run, at, counted=is_new)

    if tokenizer is not None:
        yield from search.index_sessions([row.session_id], tokenizer)

    # Last of all: the check counts what was added, and its failure undoes it.
    if not dry_run and (is_new or added_runs):
        yield from check_added(quotas, row.user_id, "sessions" if is_new else None)
    return _StoredSession(is_new, added_runs, existing_runs, list(left_out.items()))


@unit
def _create_session(row: SessionRow, *, dry_run: bool) -> Steps[bool | None]:
    """Create the session. Return True if it is new.

    None if a session of another type or user has the id.
    """
    if dry_run:
        existing = yield from sessions.get(row.session_id, EVERYONE)
        if existing is None:
            return True
    else:
        if (yield from sessions.create(row)):
            return True
        existing = yield from sessions.get_for_update(row.session_id, EVERYONE)

    if existing is None or existing.session_type != row.session_type:
        return None
    return False if existing.user_id == row.user_id else None
