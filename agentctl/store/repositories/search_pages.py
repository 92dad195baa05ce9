"""Pages of a search: the sessions, or the runs, whose texts contain all words.

A page reads a bounded number of texts, as the lists of `Filtered` do. The statements that find
texts differ between the engines (docs/decisions/0114).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

from agentctl.light_dataclass import dataclass
from agentctl.store.database import Sql, Statement, Steps, Value, unit
from agentctl.store.listing import (
    ID_GROUP,
    Conditions,
    Cursor,
    Listing,
    RowPage,
    Slice,
    prefix_end,
    read_by_ids,
)
from agentctl.store.repositories.search import FARTHEST, SHARE
from agentctl.store.search import MAXIMUM_TERMS, Match, SearchWords, Word, build_owner_key
from agentctl.store.visibility import Visibility

MAXIMUM_READ = 40
"""Texts with all words whose rows are read for a page, besides those up to its last row: filters
compare no more."""

INDEXED = 600
"""Texts with all words that PostgreSQL reads from the index of words for a page."""

CHUNK = 40
"""Texts of the first read in the order of time; each following one is twice as long."""

WINDOWS = 250, 5_000
"""Texts that PostgreSQL compares with the words one after the other, before it uses the index of
words, and instead of that, if very many texts contain them."""

OWNER_SHARE = 5
"""The texts of an owner are rare: only this part of the second window is compared."""

FEW = 20_000
"""Texts with all words, as PostgreSQL estimates them, up to which it uses the index of words. It
needs 60 ns for each before it returns the first."""

_LAST_ID = chr(0x10FFFF)

# With the session: on PostgreSQL two writers at the same time can give two sessions of one
# millisecond the same place.
_TEXTS = Sql(
    f"SELECT place, session_id, run_id, text FROM search_texts WHERE place IN ({ID_GROUP})"
)


R = TypeVar("R")


class Found(NamedTuple):
    """A text that was found.

    Attributes:
        row_id: the id of its session or run; None for a name, which no run has.
        key: the place of that row in the order of its list; None if the row does not match the
            filters, of which its owner is one.
    """

    place: int
    row_id: str | None
    key: int | None


class WordSearch(NamedTuple):
    """The words of a search, and the engine of the database."""

    words: SearchWords
    is_sqlite: bool


@dataclass(frozen=True, slots=True)
class FoundList(Generic[R]):
    """A list of rows that a search fills, in the order of the places of their texts.

    Attributes:
        key: the expression of a key, which is in the same order as the places.
        span: difference of the keys of one group of places.
        share: places of a group: the order of the texts in it is not that of the rows.
        last: the last key with an own group.
    """

    listing: Listing
    make: Callable[..., R]
    key: str
    span: int
    share: int
    last: int


class _Part(NamedTuple):
    """Texts in the order of places, and the first place that was not read; None: all were."""

    found: list[Found]
    end: int | None


class _Reader:
    """The statements that find texts in the index of one engine, and the order of places.

    Args:
        visibility: the data that the caller sees; its condition is one of `conditions`.
        terms: the words of the index of SQLite with each beginning, where they are known.
    """

    def __init__(
        self,
        listed: FoundList[Any],
        search: SearchWords,
        visibility: Visibility,
        conditions: Conditions,
        page: Slice,
        terms: dict[Word, list[str]],
    ) -> None:
        self.newest_first = page.order == "desc"
        self._from, self._order = ("<=", "DESC") if self.newest_first else (">=", "ASC")
        self.page, self.last = page, page.offset + page.limit
        # The words of a beginning are looked up by each statement: it should be the only one.
        self.limit = self.last + 2 if terms else max(CHUNK, 2 * self.last)
        self.maximum = self.last + (1 if terms else MAXIMUM_READ)
        self.owner = None if visibility.everyone else build_owner_key(visibility.user_id)
        self.listed, table, self._id = listed, listed.listing.table, listed.listing.id
        where = " AND ".join((f"{table}.{self._id} = t.{self._id}", *conditions.texts))
        self._key = f"(SELECT {listed.key} FROM {table} WHERE {where})"
        self._columns = f"t.place, t.{self._id}, {self._key}"
        self._values = dict(conditions.values)
        plain, prefixes = search.format_tsquery()
        self._table = "search_words" if search.tokenizer == "words" else "search_trigrams"
        self._words: dict[str, Value] = {"search_query": search.format_fts5(self.owner, terms)}
        self._lexemes: dict[str, Value] = {"search_plain": plain, "search_prefixes": prefixes}
        if self.owner is not None:
            self._lexemes |= {"search_lexeme": f"'{self.owner}'"}
        self.first = FARTHEST if self.newest_first else 0
        if page.after is not None:
            key = min(max(page.after[0], 0), listed.last)
            self.first = self.begin_group(key // listed.span * listed.share)

    def begin_group(self, place: int) -> int:
        """Return the first place, in the order, of the group of a place."""
        share = self.listed.share
        return place // share * share + (share - 1 if self.newest_first else 0)

    def pass_group(self, place: int) -> int:
        """Return the first place, in the order, after the group of a place."""
        share = self.listed.share
        return place // share * share + (-1 if self.newest_first else share)

    def is_before(self, place: int, other: int) -> bool:
        return place > other if self.newest_first else place < other

    def build_cursor(self, place: int) -> Cursor:
        """Return the cursor of the rows from the group of a place on."""
        span = self.listed.span
        start = place // self.listed.share * span
        return (start + span - 1, _LAST_ID) if self.newest_first else (start, "")

    def has_enough(self, found: Iterable[Found]) -> bool:
        """Return True if the rows fill the page and show that another one follows."""
        return len(_select_rows(found, self.page)) > self.last

    def sqlite(self, start: int, limit: int) -> Statement:
        """Return the statement of SQLite for texts in order, from a place on."""
        # CROSS JOIN keeps the order of the index of words, so nothing is sorted.
        sql = Sql(
            f"SELECT {self._columns}"
            f" FROM {self._table} AS w CROSS JOIN search_texts AS t ON t.place = w.rowid"
            f" WHERE {self._table} MATCH :search_query AND w.rowid {self._from} :search_start"
            f" ORDER BY w.rowid {self._order} LIMIT :search_limit"
        )
        values = {**self._values, **self._words, "search_start": start, "search_limit": limit}
        return Statement(sql, values)

    def last_compared(self, start: int, size: int) -> Statement:
        """Return the statement of PostgreSQL for the last of some texts from a place on."""
        sql = Sql(
            f"SELECT place FROM search_texts WHERE {self._range} LIMIT 1 OFFSET :search_offset"
        )
        return Statement(sql, {**self._bind_range(start, None), "search_offset": size - 1})

    def compared(self, start: int, end: int | None, limit: int) -> Statement:
        """Return the statement of PostgreSQL that compares texts with the words, in order.

        Args:
            end: the first place that is not read; None: there is none.
        """
        # OFFSET keeps the words out of the inner statement, for which the planner would choose
        # their index by an estimate.
        sql = Sql(
            f"SELECT {self._columns} FROM (SELECT place, {self._id}, words FROM search_texts"
            f" WHERE {self._range} OFFSET 0) AS t WHERE {self._matches} LIMIT :search_limit"
        )
        bounds = {**self._bind_range(start, end), "search_limit": limit}
        return Statement(sql, {**self._values, **self._lexemes, **bounds})

    @property
    def _range(self) -> str:
        """The condition and the order of the texts of an owner, or all, in a range of places."""
        until = ">" if self.newest_first else "<"
        if self.owner is None:
            return (
                f"place {self._from} :search_start AND place {until} :search_end"
                f" ORDER BY place {self._order}"
            )
        # Pairs, and both columns in the order: only the index of owners has that. With the
        # condition `owner = ...` the planner may read the texts of all owners in their order.
        return (
            f"(owner, place) {self._from} (:search_owner, :search_start)"
            f" AND (owner, place) {until} (:search_owner, :search_end)"
            f" ORDER BY owner {self._order}, place {self._order}"
        )

    def _bind_range(self, start: int, end: int | None) -> dict[str, Value]:
        last = -1 if self.newest_first else FARTHEST
        owner: dict[str, Value] = {} if self.owner is None else {"search_owner": self.owner}
        return {**owner, "search_start": start, "search_end": last if end is None else end}

    def estimate(self) -> Statement:
        """Return the statement of PostgreSQL that estimates the texts with all words."""
        explained = f"SELECT 1 FROM search_texts AS t WHERE {self._matches}"
        return Statement(Sql(f"EXPLAIN (FORMAT JSON) {explained}"), self._lexemes)

    def indexed(self, limit: int, keys: int) -> Statement:
        """Return the statement of PostgreSQL that reads the index of words, in order.

        Args:
            keys: the number of texts that have their key.
        """
        # An expression: the index of places must not be read, however the planner estimates the
        # words.
        found = (
            f"SELECT place, {self._id} FROM search_texts AS t WHERE {self._matches}"
            f" AND t.place + 0 {self._from} :search_start LIMIT :search_limit"
        )
        sql = Sql(
            f"SELECT place, {self._id}, CASE WHEN number <= :search_keys THEN {self._key} END"
            f" FROM (SELECT *, row_number() OVER (ORDER BY place {self._order}) AS number"
            f" FROM ({found}) AS found) AS t ORDER BY number"
        )
        bounds: dict[str, Value] = {
            "search_start": self.first, "search_limit": limit, "search_keys": keys,
        }  # fmt: skip
        return Statement(sql, {**self._values, **self._lexemes, **bounds})

    @property
    def _matches(self) -> str:
        query = (
            "plainto_tsquery('simple', cast(:search_plain as text))"
            " && to_tsquery('simple', cast(:search_prefixes as text))"
        )
        owner = "" if self.owner is None else " && cast(cast(:search_lexeme as text) as tsquery)"
        # PostgreSQL ignores texts without a word for it, such as `<b>`: then nothing is found.
        return f"t.words @@ ({query}{owner}) AND numnode({query}) > 0"


# Each row is the first word of the index after the one before: no text is read. No word has the
# character U+0001.
_NEXT_TERM = "SELECT term FROM search_terms WHERE term >="
_TERMS = (
    f"WITH RECURSIVE found (term) AS (SELECT ({_NEXT_TERM} :first LIMIT 1) UNION ALL"
    f" SELECT ({_NEXT_TERM} found.term || char(1) LIMIT 1) FROM found WHERE found.term < :last)"
    " SELECT term FROM found WHERE term < :last LIMIT :maximum"
)

# For the rest of the transaction. The table of texts is never read from its beginning to its end,
# and texts in order are never sorted, however the planner estimates their number.
_ONLY_INDEXES = Sql(
    "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true)"
)


@unit
def list_page(
    listed: FoundList[R],
    search: WordSearch,
    visibility: Visibility,
    conditions: Conditions,
    page: Slice,
) -> Steps[RowPage[R]]:
    """Read a page of the rows with a text that contains all words.

    Sessions are in the order of their creation, runs in the order of their sessions, and those of
    a session in the order of their ends. A page can have fewer rows than its limit, or none, and a
    next page, which begins after the texts that were read. The total is that of the texts that the
    first page reads, and capped if more may follow.

    Args:
        visibility: the data that is searched; `conditions` has the condition of the caller.
        conditions: conditions on the columns of the table of `listed`.
        page: the page, by `created_at`.
    """
    terms: dict[Word, list[str]] = {}
    if search.is_sqlite:
        for word in search.words.list_expanded():
            values: dict[str, Value] = {"first": word.text.lower()}
            values |= {"last": prefix_end(word.text.lower()), "maximum": MAXIMUM_TERMS + 1}
            found = [row[0] for row in (yield Statement(Sql(_TERMS), values))]
            if 0 < len(found) <= MAXIMUM_TERMS:
                terms[word] = found
    reader = _Reader(listed, search.words, visibility, conditions, page, terms)
    if search.is_sqlite:
        part = yield from _read_in_order(reader, reader.sqlite, _Part([], reader.first), None)
    else:
        part = yield from _read_postgres(reader)
    selected = _select_rows(part.found, page)
    shown = selected[page.offset : page.offset + page.limit]
    until, following = None, None
    if len(selected) > page.offset + page.limit:
        following = cast(Cursor, (shown[-1].key, shown[-1].row_id))
    elif part.end is not None:
        until, following = part.end // SHARE * 1_000, reader.build_cursor(part.end)
    total = page.total or (len(selected), part.end is not None or page.after is not None)
    rows, matches = yield from _read_rows(listed, shown, conditions)
    return RowPage(rows, *total, following, True, until, matches)


@unit
def _read_postgres(reader: _Reader) -> Steps[_Part]:
    yield Statement(_ONLY_INDEXES)
    part = yield from _compare(reader, _Part([], reader.first), WINDOWS[0])
    if part.end is None or reader.has_enough(part.found):
        return part
    ((plan,),) = yield reader.estimate()
    if json.loads(plan)[0]["Plan"]["Plan Rows"] <= FEW:
        for keys in (reader.maximum, INDEXED):
            found = [Found(*row) for row in (yield reader.indexed(INDEXED + 1, keys))]
            if len(found) > INDEXED:
                break
            if len(found) <= keys:
                return _Part(found, None)
            # Some texts of the last group may have no key.
            end = reader.begin_group(found[keys - 1].place)
            if reader.is_before(found[0].place, end):
                return _Part([text for text in found if reader.is_before(text.place, end)], end)
    size = WINDOWS[1] if reader.owner is None else -(-WINDOWS[1] // OWNER_SHARE)
    return (yield from _compare(reader, part, size, extends=True))


@unit
def _compare(reader: _Reader, part: _Part, size: int, *, extends: bool = False) -> Steps[_Part]:
    """Compare the texts that follow a part with the words.

    Args:
        extends: True to compare more texts if all of them are of one group.
    """
    start, end = part.end, None
    assert start is not None
    last = yield reader.last_compared(start, size)
    if last:
        end = reader.begin_group(last[0][0])
        if not reader.is_before(start, end):
            if not extends:
                return part
            end = reader.pass_group(end)
            end = end if (yield reader.last_compared(end, 1)) else None

    def read(place: int, limit: int) -> Statement:
        return reader.compared(place, end, limit)

    return (yield from _read_in_order(reader, read, part, end))


@unit
def _read_in_order(
    reader: _Reader, read: Callable[[int, int], Statement], part: _Part, end: int | None
) -> Steps[_Part]:
    """Read the texts that follow a part until the page is full.

    Args:
        read: builds the statement for texts in order, from a place on, and up to a number.
        end: the first place that the statement does not read.
    """
    found, start, limit = [*part.found], part.end, reader.limit
    while start is not None:
        rows = [Found(*row) for row in (yield read(start, limit))]
        if len(rows) < limit:
            return _Part(found + rows, end)
        # Some texts of the last group may not be read.
        start = reader.begin_group(rows[-1].place)
        passed = [text for text in rows if reader.is_before(text.place, start)]
        found += passed
        if reader.has_enough(found) or (found and len(found) >= reader.maximum):
            break
        # One more: the last text of these begins a group that is not passed.
        limit = min(2 * limit, reader.maximum - len(found) + 1) if passed else 2 * limit
    return _Part(found, start)


def _select_rows(found: Iterable[Found], page: Slice) -> list[Found]:
    """Return the newest text of each row after the cursor, in the order of the list."""
    best = dict[tuple[int, str], Found]()
    backwards = page.order == "desc"
    for text in found:
        if text.key is None or text.row_id is None:
            continue
        key = text.key, text.row_id
        if page.after is not None and (key >= page.after if backwards else key <= page.after):
            continue
        if key not in best or text.place > best[key].place:
            best[key] = text
    return [best[key] for key in sorted(best, reverse=backwards)]


@unit
def _read_rows(
    listed: FoundList[R], shown: Sequence[Found], conditions: Conditions
) -> Steps[tuple[list[R], list[Match]]]:
    listing, ids = listed.listing, [found.row_id for found in shown]
    texts = yield from read_by_ids(_TEXTS, [found.place for found in shown], Match)
    matches = {(text.place, getattr(text, listing.id)): text for text in texts}
    read = yield from listing.read_some(ids, conditions, listed.make)
    rows = {getattr(row, listing.id): row for row in read}
    found = [each for each in shown if each.row_id in rows and each[:2] in matches]
    return [rows[each.row_id] for each in found], [matches[each[:2]] for each in found]
