"""The texts that a search finds: the texts of ended top-level runs, and the names of sessions.

Rows of `search_texts` disappear with their run or session, and follow a new name, by references and
triggers. `search_pages` finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agentctl.store.database import Sql, Statement, Steps, Value, unit
from agentctl.store.listing import GROUP_SIZE, ID_GROUP, group_ids
from agentctl.store.search import MAXIMUM_TEXT, Tokenizer, build_owner_key

FARTHEST = (1 << 63) - 1
"""The last place."""

NEWEST = (FARTHEST, "")
"""The place before the first session of `find_missing`, newest first."""

OLDEST = (-FARTHEST, "")
"""The place before the first session of `find_missing`, oldest first."""

SHARE = 1 << 20
"""Places for the texts of all sessions that were created in one millisecond."""

LATEST = 8_000_000_000_000_000
"""The latest time with a place, in the year 2223, in microseconds UTC.

Times before 1970 have the first places, times after the latest one have the last places.
"""

_BASE = (
    f"(CASE WHEN created_at < 0 THEN 0 WHEN created_at > {LATEST} THEN {LATEST}"
    f" ELSE created_at END / 1000 * {SHARE})"
)

_FACTS = (
    f"SELECT session_id, user_id, session_name, {_BASE},"
    " (SELECT max(place) FROM search_texts"
    f" WHERE place >= {_BASE} AND place < {_BASE} + {SHARE}),"
    " EXISTS (SELECT 1 FROM search_texts WHERE search_texts.session_id = sessions.session_id"
    " AND search_texts.run_id IS NULL)"
    " FROM sessions WHERE session_id = "
)

# The lock keeps other transactions from adding the same texts.
_SESSION = Sql(f"{_FACTS}:session_id FOR UPDATE")
_SESSION_OF_RUN = Sql(
    f"{_FACTS}(SELECT session_id FROM runs WHERE run_id = :run_id AND parent_run_id IS NULL"
    " AND purpose IS NULL AND finished_at IS NOT NULL) FOR UPDATE"
)

_TEXT = (
    f"substr(input, 1, {MAXIMUM_TEXT}) || '\n' || coalesce(substr(content, 1, {MAXIMUM_TEXT}), '')"
)

_ADD_RUN = Sql(
    "INSERT INTO search_texts (place, session_id, run_id, owner, tokenizer, text)"
    " SELECT cast(:place as bigint), session_id, run_id, cast(:owner as text),"
    " cast(:tokenizer as text), short_words(whole)"
    f" FROM (SELECT session_id, run_id, {_TEXT} AS whole FROM runs WHERE run_id = :run_id) AS run"
    " WHERE NOT EXISTS (SELECT 1 FROM search_texts WHERE search_texts.run_id = :run_id)"
    " RETURNING place"
)

_ADD_NAME = Sql(
    "INSERT INTO search_texts (place, session_id, owner, tokenizer, text)"
    " VALUES (:place, :session_id, :owner, :tokenizer, :text)"
)

_MISSING_RUNS = Sql(
    "SELECT session_id, run_id FROM runs"
    f" WHERE session_id IN ({ID_GROUP}) AND parent_run_id IS NULL AND purpose IS NULL"
    " AND finished_at IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM search_texts WHERE search_texts.run_id = runs.run_id)"
    " ORDER BY session_id, seq"
)

_MISSING_NAMES = Sql(
    f"SELECT session_id FROM sessions WHERE session_id IN ({ID_GROUP}) AND session_name <> ''"
    " AND NOT EXISTS (SELECT 1 FROM search_texts"
    " WHERE search_texts.session_id = sessions.session_id AND search_texts.run_id IS NULL)"
)

_OTHER_TOKENIZER = Sql(
    f"SELECT place FROM search_texts WHERE session_id IN ({ID_GROUP}) AND tokenizer <> :tokenizer"
)

_SET_TOKENIZER = Sql(
    f"UPDATE search_texts SET tokenizer = :tokenizer WHERE session_id IN ({ID_GROUP})"
    " AND tokenizer <> :tokenizer RETURNING place"
)

_SESSIONS = {
    order: Sql(
        "SELECT session_id, created_at FROM sessions"
        f" WHERE (created_at, session_id) {sign} (:created_at, :session_id)"
        f" ORDER BY created_at {order}, session_id {order} LIMIT {GROUP_SIZE}"
    )
    for order, sign in (("DESC", "<"), ("ASC", ">"))
}


class _Facts(NamedTuple):
    """A session, and what the index has of it."""

    session_id: str
    user_id: str | None
    session_name: str

    base: int
    """The first place for the texts of sessions that were created in its millisecond."""

    last: int | None
    """The last of these places that has a text; None if none has."""

    has_name: int
    """1 if the index has its name."""


@unit
def add_run(run_id: str, tokenizer: Tokenizer) -> Steps[None]:
    """Add the texts of a run and of the name of its session.

    Nothing is added for the run of a member, for background work, and for a live run.
    """
    rows = yield Statement(_SESSION_OF_RUN, {"run_id": run_id})
    if rows:
        yield from _add_texts(_Facts(*rows[0]), [run_id], tokenizer)


@unit
def add_session(session_id: str, tokenizer: Tokenizer, run_ids: Iterable[str] = ()) -> Steps[int]:
    """Add the texts of a name and of ended runs of a session. Return the number of new texts."""
    rows = yield Statement(_SESSION, {"session_id": session_id})
    if not rows:
        return 0
    return (yield from _add_texts(_Facts(*rows[0]), run_ids, tokenizer))


@unit
def _add_texts(facts: _Facts, run_ids: Iterable[str], tokenizer: Tokenizer) -> Steps[int]:
    """Add the name of a session and the texts of runs, as far as its millisecond has places.

    Returns:
        The number of new texts.
    """
    place = facts.base if facts.last is None else facts.last + 1
    end = facts.base + SHARE
    added_count = 0

    common: dict[str, Value] = {"owner": build_owner_key(facts.user_id), "tokenizer": tokenizer}

    if facts.session_name and not facts.has_name and place < end:
        text: dict[str, Value] = {"session_id": facts.session_id, "text": facts.session_name}
        yield Statement(_ADD_NAME, {**common, **text, "place": place})
        place += 1
        added_count = 1

    for run_id in run_ids:
        if place >= end:
            break
        is_added = yield Statement(_ADD_RUN, {**common, "run_id": run_id, "place": place})
        if is_added:
            place += 1
            added_count += 1

    return added_count


class SessionGroup(NamedTuple):
    """Some sessions, and the texts that the index lacks."""

    session_ids: Sequence[str]

    missing: dict[str, list[str]]
    """Runs without a text, by session. A session that lacks only its name has an empty list."""

    stale: int
    """Number of texts in the index of another tokenizer."""


@unit
def find_missing(
    after: tuple[int, str], tokenizer: Tokenizer, *, oldest_first: bool = False
) -> Steps[tuple[SessionGroup, tuple[int, str]] | None]:
    """Return the sessions that follow a session, with the creation time and id of the last of them.

    Returns None if there is no session.
    """
    values: dict[str, Value] = {"created_at": after[0], "session_id": after[1]}
    rows = yield Statement(_SESSIONS["ASC" if oldest_first else "DESC"], values)
    if not rows:
        return None

    session_ids = [session_id for session_id, _ in rows]
    group = yield from _find_missing_of(session_ids, tokenizer)
    last_id, last_created_at = rows[-1]
    return group, (last_created_at, last_id)


@unit
def _find_missing_of(ids: Sequence[str], tokenizer: Tokenizer) -> Steps[SessionGroup]:
    (group,) = group_ids(ids)
    missing = dict[str, list[str]]()
    for (session_id,) in (yield Statement(_MISSING_NAMES, group)):
        missing[session_id] = []
    for session_id, run_id in (yield Statement(_MISSING_RUNS, group)):
        missing.setdefault(session_id, []).append(run_id)
    stale = yield Statement(_OTHER_TOKENIZER, {**group, "tokenizer": tokenizer})
    return SessionGroup(ids, missing, len(stale))


@unit
def index_sessions(session_ids: Sequence[str], tokenizer: Tokenizer) -> Steps[int]:
    """Add the texts that the index lacks of at most `GROUP_SIZE` sessions; return their number."""
    group = yield from _find_missing_of(session_ids, tokenizer)
    return (yield from add_missing(group, tokenizer))


@unit
def add_missing(group: SessionGroup, tokenizer: Tokenizer) -> Steps[int]:
    """Add the texts that `find_missing` found. Return the number of changed texts."""
    changed_count = 0
    # In one order: two transactions that lock the same sessions wait, and are no deadlock.
    for session_id in sorted(group.missing):
        changed_count += yield from add_session(session_id, tokenizer, group.missing[session_id])

    if group.stale:
        (ids,) = group_ids(group.session_ids)
        changed_rows = yield Statement(_SET_TOKENIZER, {**ids, "tokenizer": tokenizer})
        changed_count += len(changed_rows)
    return changed_count
