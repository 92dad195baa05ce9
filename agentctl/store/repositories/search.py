"""The texts that a search finds: those of ended top-level runs, and the names of sessions.

Rows of `search_texts` disappear with their run or session, and follow a new name, by references and
triggers. The statements that find texts differ between the engines (docs/decisions/0114).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from agentctl.store.database import Sql, Statement, Steps, Value, unit
from agentctl.store.listing import GROUP_SIZE, ID_GROUP, Conditions, RowPage, Slice, group_ids
from agentctl.store.repositories.session_lists import LISTING
from agentctl.store.repositories.sessions import SummaryRow
from agentctl.store.search import MAXIMUM_TEXT, Search, Tokenizer, build_owner_key
from agentctl.store.visibility import Visibility

MAXIMUM_FOUND = 1_000
"""Texts that are counted: the total of a search with more is a lower bound."""

WINDOW = 500
"""Newest texts in which PostgreSQL looks first, without the index of words."""

CHUNK = 256
"""Texts of the first read in the order of time; each following one is twice as long."""

_FARTHEST = (1 << 63) - 1

NEWEST, OLDEST = (_FARTHEST, ""), (-_FARTHEST, "")
"""The places before the first session of `find_missing`, newest or oldest first."""

_SHARE = 1 << 20
_LATEST = 8_000_000_000_000_000
"""Places for the texts of sessions of one millisecond; the latest time with a place, in the year
2223, in microseconds UTC. Times before 1970 and after it have the first and the last places."""

_BASE = (
    f"(CASE WHEN created_at < 0 THEN 0 WHEN created_at > {_LATEST} THEN {_LATEST}"
    f" ELSE created_at END / 1000 * {_SHARE})"
)

_FACTS = (
    f"SELECT session_id, user_id, session_name, {_BASE},"
    " (SELECT max(place) FROM search_texts"
    f" WHERE place >= {_BASE} AND place < {_BASE} + {_SHARE}),"
    " EXISTS (SELECT 1 FROM search_texts WHERE search_texts.session_id = sessions.session_id"
    " AND search_texts.run_id IS NULL)"
    " FROM sessions WHERE session_id = "
)

# The lock keeps others from adding the same texts.
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

_TEXTS = Sql(f"SELECT place, run_id, text FROM search_texts WHERE place IN ({ID_GROUP})")


class Found(NamedTuple):
    """A text that was found. `created_at` is that of its session."""

    place: int
    session_id: str
    created_at: int


class Match(NamedTuple):
    """The text of a session on a page. `run_id` None: its name."""

    run_id: str | None
    text: str


class MatchedSession(NamedTuple):
    """A session on a page of a search, with the newest of its texts that were found."""

    row: SummaryRow
    match: Match


class _Facts(NamedTuple):
    session_id: str
    user_id: str | None
    session_name: str
    base: int
    last: int | None
    has_name: int


@unit
def add_run(run_id: str, tokenizer: Tokenizer) -> Steps[None]:
    """Add the texts of a run and of the name of its session.

    Nothing is added for the run of a member, for background work, and for a live run.
    """
    rows = yield Statement(_SESSION_OF_RUN, {"run_id": run_id})
    if rows:
        yield from _add(_Facts(*rows[0]), [run_id], tokenizer)


@unit
def add_session(session_id: str, tokenizer: Tokenizer, run_ids: Iterable[str] = ()) -> Steps[int]:
    """Add the texts of a name and of ended runs of a session. Return the number of new texts."""
    rows = yield Statement(_SESSION, {"session_id": session_id})
    return (yield from _add(_Facts(*rows[0]), run_ids, tokenizer)) if rows else 0


@unit
def _add(facts: _Facts, run_ids: Iterable[str], tokenizer: Tokenizer) -> Steps[int]:
    place = facts.base if facts.last is None else facts.last + 1
    end, added = facts.base + _SHARE, 0
    common: dict[str, Value] = {"owner": build_owner_key(facts.user_id), "tokenizer": tokenizer}
    if facts.session_name and not facts.has_name and place < end:
        text: dict[str, Value] = {"session_id": facts.session_id, "text": facts.session_name}
        yield Statement(_ADD_NAME, {**common, **text, "place": place})
        place, added = place + 1, 1
    for run_id in run_ids:
        if place < end and (
            yield Statement(_ADD_RUN, {**common, "run_id": run_id, "place": place})
        ):
            place, added = place + 1, added + 1
    return added


class SessionGroup(NamedTuple):
    """Some sessions, and what the index lacks of them.

    Attributes:
        missing: the runs without a text by session; a session that only lacks its name has none.
        stale: number of texts in the index of another tokenizer.
    """

    session_ids: Sequence[str]
    missing: dict[str, list[str]]
    stale: int


@unit
def find_missing(
    after: tuple[int, str], tokenizer: Tokenizer, *, oldest_first: bool = False
) -> Steps[tuple[SessionGroup, tuple[int, str]] | None]:
    """Return the sessions after one, with the creation time and the id of the last of them.

    Returns None if there is no session.
    """
    values: dict[str, Value] = {"created_at": after[0], "session_id": after[1]}
    found = yield Statement(_SESSIONS["ASC" if oldest_first else "DESC"], values)
    if not found:
        return None
    ids = [session_id for session_id, _ in found]
    return (yield from _find_missing_of(ids, tokenizer)), (found[-1][1], ids[-1])


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
    changed = 0
    for session_id in sorted(group.missing):  # one order of locks
        changed += yield from add_session(session_id, tokenizer, group.missing[session_id])
    if group.stale:
        (ids,) = group_ids(group.session_ids)
        changed += len((yield Statement(_SET_TOKENIZER, {**ids, "tokenizer": tokenizer})))
    return changed


_COUNTS = {
    owned: Sql(
        "SELECT count(*) FROM (SELECT 1 FROM search_texts"
        f"{' WHERE owner = :search_owner' if owned else ''} LIMIT :search_limit) AS counted"
    )
    for owned in (False, True)
}


class _Reader:
    """The statements that find texts in the index of one engine.

    Args:
        search: the words.
        visibility: the data that the caller sees; its condition is one of `conditions`.
        conditions: conditions on the session.
        order: the order of the list.
    """

    def __init__(
        self, search: Search, visibility: Visibility, conditions: Conditions, page: Slice
    ) -> None:
        self.newest_first = page.order == "desc"
        owner = None if visibility.everyone else build_owner_key(visibility.user_id)
        self._owner, self._texts = owner, conditions.texts
        plain, prefixes = search.format_tsquery()
        self._table = "search_words" if search.tokenizer == "words" else "search_trigrams"
        self._words: dict[str, Value] = {"search_query": search.format_fts5(owner)}
        self._lexemes: dict[str, Value] = {"search_plain": plain, "search_prefixes": prefixes}
        if owner is not None:
            self._lexemes |= {"search_owner": owner, "search_lexeme": f"'{owner}'"}
        self._values = dict(conditions.values)
        self.first = self.beginning = _FARTHEST if self.newest_first else 0
        if page.after is not None:
            base = min(max(page.after[0], 0), _LATEST) // 1000 * _SHARE
            self.first = base + _SHARE - 1 if self.newest_first else base

    def count(self, limit: int) -> Statement:
        """Return the statement that counts the texts of the owner up to a limit."""
        owned = self._owner is not None
        values: dict[str, Value] = {"search_owner": self._owner} if owned else {}
        return Statement(_COUNTS[owned], {**values, "search_limit": limit})

    def sqlite(self, start: int, limit: int) -> Statement:
        """Return the statement of SQLite for texts in order, from a place on."""
        sql = _sqlite_sql(self._table, self._texts, self.newest_first)
        values = {**self._values, **self._words, "search_start": start, "search_limit": limit}
        return Statement(sql, values)

    def postgres(self, start: int | None, limit: int, window: int | None = None) -> Statement:
        """Return the statement of PostgreSQL for texts in order from a place on; None: all.

        Args:
            window: the number of texts from the place on in which the words are looked for, one
                after the other; None: the index of words finds them.
        """
        values: dict[str, Value] = {**self._values, **self._lexemes, "search_limit": limit}
        if start is not None:
            values["search_start"] = start
        if window is not None:
            values["search_window"] = window
        sql = _postgres_sql(
            self._texts,
            self.newest_first,
            owned=self._owner is not None,
            starts=start is not None,
            windowed=window is not None,
        )
        return Statement(sql, values)


@cache
def _sqlite_sql(table: str, conditions: tuple[str, ...], newest_first: bool) -> Sql:
    # CROSS JOIN keeps the order of the index of words, so nothing is sorted.
    sign, order = ("<=", "DESC") if newest_first else (">=", "ASC")
    return Sql(
        "SELECT t.place, t.session_id,"
        " (SELECT created_at FROM sessions WHERE sessions.session_id = t.session_id)"
        f" FROM {table} AS w CROSS JOIN search_texts AS t ON t.place = w.rowid"
        f" WHERE {table} MATCH :search_query AND w.rowid {sign} :search_start"
        f"{_build_exists(conditions)} ORDER BY w.rowid {order} LIMIT :search_limit"
    )


@cache
def _postgres_sql(
    conditions: tuple[str, ...], newest_first: bool, *, owned: bool, starts: bool, windowed: bool
) -> Sql:
    sign, order = ("<=", "DESC") if newest_first else (">=", "ASC")
    scope = ["owner = :search_owner"] if owned else []
    scope += [f"place {sign} :search_start"] if starts else []
    lexeme = " && cast(cast(:search_lexeme as text) as tsquery)" if owned else ""
    query = (
        "plainto_tsquery('simple', cast(:search_plain as text))"
        " && to_tsquery('simple', cast(:search_prefixes as text))"
    )
    # PostgreSQL ignores texts without a word for it, such as `<b>`: then nothing is found.
    words = f"t.words @@ ({query}{lexeme}) AND numnode({query}) > 0"
    source, where = "search_texts AS t", [*scope, words]
    if windowed:
        inner = f" WHERE {' AND '.join(scope)}" if scope else ""
        source = (
            "(SELECT place, session_id, words FROM search_texts"
            f"{inner} ORDER BY place {order} LIMIT :search_window) AS t"
        )
        where = [words]
    # An expression: the index of places must not be read for rare words, however the planner
    # estimates them.
    ordered = f" ORDER BY t.place + 0 {order}" if starts else ""
    return Sql(
        "SELECT t.place, t.session_id,"
        " (SELECT created_at FROM sessions WHERE sessions.session_id = t.session_id)"
        f" FROM {source} WHERE {' AND '.join(where)}{_build_exists(conditions)}"
        f"{ordered} LIMIT :search_limit"
    )


def _build_exists(conditions: tuple[str, ...]) -> str:
    if not conditions:
        return ""
    return (
        " AND EXISTS (SELECT 1 FROM sessions WHERE sessions.session_id = t.session_id"
        f" AND {' AND '.join(conditions)})"
    )


# For the rest of the transaction. A table of texts is never read from its beginning to its end.
_NO_SCAN = Sql("SELECT set_config('enable_seqscan', 'off', true)")


@unit
def list_page(
    search: Search, visibility: Visibility, conditions: Conditions, page: Slice, *, is_sqlite: bool
) -> Steps[RowPage[MatchedSession]]:
    """Read a page of the sessions with a text that contains all words.

    The sessions are in the order of their creation. The total counts those of the first
    `MAXIMUM_FOUND` texts; with more it is a lower bound.

    Args:
        visibility: the data that the caller sees; `conditions` has its condition.
        conditions: conditions on the columns of `sessions`.
        page: the page, by `created_at`.
    """
    reader = _Reader(search, visibility, conditions, page)
    wanted = page.offset + page.limit + 1
    read = _read_sqlite if is_sqlite else _read_postgres
    found, total = yield from read(reader, page, wanted)
    sessions = _select_sessions(found, page)
    last = sessions[page.offset + page.limit - 1] if len(sessions) >= wanted else None
    shown = sessions[page.offset : page.offset + page.limit]
    following = None if last is None else (last.created_at, last.session_id)
    rows = yield from _read_rows(shown, visibility)
    known = total is not None
    count = page.offset + len(shown) + int(last is not None) if total is None else total
    count, capped = page.total or (count, not known)
    return RowPage(rows, count, capped, following, keeps_total=True)


@unit
def _read_sqlite(
    reader: _Reader, page: Slice, wanted: int
) -> Steps[tuple[list[Found], int | None]]:
    """Return the texts of at least the wanted sessions, and the total if it is known."""
    everything = reader.sqlite(reader.beginning, MAXIMUM_FOUND + 1)
    found = [Found(*row) for row in (yield everything)]
    if len(found) <= MAXIMUM_FOUND:
        return found, len({text.session_id for text in found})
    start, limit, found = reader.first, CHUNK, []
    while True:
        rows = [Found(*row) for row in (yield reader.sqlite(start, limit))]
        if len(rows) < limit:
            return found + rows, None
        start = rows[-1].place // _SHARE * _SHARE + (_SHARE - 1 if reader.newest_first else 0)
        found += _drop_last_group(rows)
        if len(_select_sessions(found, page)) >= wanted:
            return found, None
        limit *= 2


@unit
def _read_postgres(
    reader: _Reader, page: Slice, wanted: int
) -> Steps[tuple[list[Found], int | None]]:
    """Return the texts of at least the wanted sessions, and the total if it is known."""
    if (yield reader.count(WINDOW))[0][0] < WINDOW:
        everything = reader.postgres(reader.beginning, WINDOW, WINDOW)
        found = [Found(*row) for row in (yield everything)]
        return found, len({text.session_id for text in found})
    window = reader.postgres(reader.first, WINDOW, WINDOW)
    found = _drop_last_group([Found(*row) for row in (yield window)])
    if len(_select_sessions(found, page)) >= wanted:
        return found, None
    yield Statement(_NO_SCAN)
    found = [Found(*row) for row in (yield reader.postgres(None, MAXIMUM_FOUND + 1))]
    if len(found) <= MAXIMUM_FOUND:
        return found, len({text.session_id for text in found})
    limit = CHUNK
    while True:
        rows = [Found(*row) for row in (yield reader.postgres(reader.first, limit))]
        found = rows if len(rows) < limit else _drop_last_group(rows)
        if len(rows) < limit or len(_select_sessions(found, page)) >= wanted:
            return found, None
        limit *= 4


def _drop_last_group(found: list[Found]) -> list[Found]:
    """Return the texts without those of the last millisecond, of which some may not be read."""
    return [text for text in found if text.place // _SHARE != found[-1].place // _SHARE]


def _select_sessions(found: Iterable[Found], page: Slice) -> list[Found]:
    """Return the newest text of each session after the cursor, in the order of the list."""
    best = dict[str, Found]()
    for text in found:
        if text.session_id not in best or text.place > best[text.session_id].place:
            best[text.session_id] = text
    backwards = page.order == "desc"

    def key(text: Found) -> tuple[int, str]:
        return text.created_at, text.session_id

    after = page.after
    selected = [
        text
        for text in best.values()
        if after is None or (key(text) < after if backwards else key(text) > after)
    ]
    return sorted(selected, key=key, reverse=backwards)


@unit
def _read_rows(shown: Sequence[Found], visibility: Visibility) -> Steps[list[MatchedSession]]:
    matches, rows, seen = dict[int, Match](), dict[str, SummaryRow](), visibility.conditions()
    for group in group_ids([found.place for found in shown]):
        for place, run_id, text in (yield Statement(_TEXTS, group)):
            matches[place] = Match(run_id, text)
    for group in group_ids([found.session_id for found in shown]):
        for columns in (yield Statement(_rows_sql(seen.texts), {**group, **seen.values})):
            row = SummaryRow(*columns)
            rows[row.session_id] = row
    return [
        MatchedSession(rows[found.session_id], matches[found.place])
        for found in shown
        if found.session_id in rows and found.place in matches
    ]


@cache
def _rows_sql(conditions: tuple[str, ...]) -> Sql:
    where = " AND ".join((f"session_id IN ({ID_GROUP})", *conditions))
    return Sql(f"SELECT {LISTING.columns} FROM sessions WHERE {where}")
