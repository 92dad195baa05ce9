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
    """Pairs of the id of a session or run, and the reason why it is not imported."""


@dataclass(frozen=True, slots=True)
class ImportedSession:
    """A session to store."""

    row: SessionRow
    """The session, with the token counts of its runs."""

    runs: Sequence[RunRow]
    """Its ended runs, each after its parent; their `seq` is not read."""


@dataclass(frozen=True, slots=True)
class _Stored:
    created: bool
    added: int
    skipped: int
    left: list[tuple[str, str]]


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
    work = _store(session, quotas, None if dry_run else database.outbox.tokenizer, dry_run=dry_run)
    try:
        done = await (database.read(work) if dry_run else database.write(work))
    except QuotaExceeded as refused:
        report.left.append((session.row.session_id, refused.detail))
        return

    if done is None:
        report.left.append((session.row.session_id, "a session of another type or user has the id"))
        return

    report.counts["sessions" if done.created else "sessions that existed"] += 1
    report.counts["runs"] += done.added
    report.counts["runs that existed"] += done.skipped
    report.left += done.left


@unit
def _store(
    session: ImportedSession, quotas: Quotas, tokenizer: Tokenizer | None, *, dry_run: bool
) -> Steps[_Stored | None]:
    row = session.row
    created = yield from _create_session(row, dry_run=dry_run)
    if created is None:
        return None

    added = 0
    skipped = 0
    left: dict[str, str] = {}
    for run in session.runs:
        state = yield from run_reads.get_state(run.run_id)
        if state is not None and state.session_id == row.session_id:
            skipped += 1
        elif state is not None:
            left[run.run_id] = "a run of another session has the id"
        elif run.parent_run_id in left:
            left[run.run_id] = "its parent is left out"
        else:
            added += 1
            if not dry_run:
                at = row.updated_at if created else run.finished_at or row.updated_at
                yield from runs.restore(run, at, counted=created)

    if tokenizer is not None:
        yield from search.index_sessions([row.session_id], tokenizer)
    if not dry_run and (created or added):
        yield from check_added(quotas, row.user_id, "sessions" if created else None)
    return _Stored(created, added, skipped, list(left.items()))


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
    is_same = existing is not None and (existing.session_type, existing.user_id) == (
        row.session_type,
        row.user_id,
    )
    return False if is_same else None
