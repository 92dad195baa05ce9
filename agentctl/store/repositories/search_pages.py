"""Pages of a search: the sessions, or the runs, whose texts contain all words.

A page reads a bounded number of texts, as the lists of `Filtered` do. The statements that find
texts differ between the engines (decision 114).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

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
from agentctl.store.search import Match, SearchWords, Word, build_owner_key
from agentctl.store.visibility import Visibility

MAXIMUM_READ = 40
"""Texts with all words whose rows are read for a page, besides the texts up to its last row.

Filters compare no more rows than that.
"""

INDEXED = 600
"""Texts with all words that PostgreSQL reads from the index of words for a page."""

CHUNK = 40
"""Texts of the first read in the order of time; each following read is twice as long."""

FIRST_WINDOW = 250
"""Texts that PostgreSQL compares with the words one after the other, before it uses the index."""

SECOND_WINDOW = 5_000
"""Texts that it compares instead of the index of words, if very many texts contain the words."""

MAXIMUM_LEAVES = 400
"""Pages of the index of SQLite with the words of all beginnings that are looked up in the index.

FTS5 reads all of these pages. Texts are compared with the other beginnings.
"""

COMPARED_TEXTS = 120
"""Texts that SQLite compares with the other beginnings for a page."""

COMPARED_BYTES = 500_000
"""Bytes of these texts, besides the last text."""

OWNER_SHARE = 5
"""The texts of an owner are rare: a fifth of the second window is compared."""

FEW = 20_000
"""Texts with all words, as PostgreSQL estimates them, up to which it uses the index of words.

It needs 60 ns for each of them before it returns the first.
"""

_LAST_ID = chr(0x10FFFF)

# With the session: on PostgreSQL two writers at the same time can give two sessions of one
# millisecond the same place.
_TEXTS = Sql(
    f"SELECT place, session_id, run_id, text FROM search_texts WHERE place IN ({ID_GROUP})"
)


R = TypeVar("R")


class FoundText(NamedTuple):
    """A text that was found."""

    place: int

    row_id: str | None
    """The id of its session or run; None for a name, which belongs to no run."""

    key: int | None
    """The place of that row in the order of its list; None if the row does not match the filters.

    The owner is one of the filters.
    """


class WordSearch(NamedTuple):
    """The words of a search, and the engine of the database."""

    words: SearchWords
    is_sqlite: bool


@dataclass(frozen=True, slots=True)
class FoundList(Generic[R]):
    """A list of rows that a search fills, in the order of the places of their texts."""

    listing: Listing
    make: Callable[..., R]

    key: str
    """The expression of a key, which is in the same order as the places."""

    span: int
    """Difference of the keys of one group of places."""

    share: int
    """Places of a group, in which the texts are in another order than the rows."""

    last: int
    """The last key that has a group for itself."""


class _Part(NamedTuple):
    """Texts in the order of places."""

    texts: list[FoundText]

    end: int | None
    """The first place that was not read; None if all were."""


class _Reader:
    """The statements that find texts in the index of one engine, and the order of places.

    Args:
        visibility: the data that the caller sees; its condition is one of `conditions`.
        wide: beginnings with which SQLite compares texts.
    """

    def __init__(
        self,
        listed: FoundList[Any],
        search: WordSearch,
        visibility: Visibility,
        conditions: Conditions,
        page: Slice,
        wide: Collection[Word],
    ) -> None:
        self.newest_first = page.order == "desc"
        if self.newest_first:
            self._from = "<="
            self._until = ">"
            self._order = "DESC"
        else:
            self._from = ">="
            self._until = "<"
            self._order = "ASC"

        self.page = page
        self.last = page.offset + page.limit
        words, self._is_sqlite = search

        # The words of a beginning are looked up by each statement: it should be the only one.
        looked_up_beginnings = (word.is_prefix and word not in wide for word in words.words)
        is_alone = self._is_sqlite and any(looked_up_beginnings)
        if is_alone:
            self.limit = self.last + 2
            self.maximum = self.last + 1
        else:
            self.limit = max(CHUNK, 2 * self.last)
            self.maximum = self.last + MAXIMUM_READ

        self.owner = None if visibility.everyone else build_owner_key(visibility.user_id)
        self.listed = listed

        table = listed.listing.table
        self._id = listed.listing.id
        where = " AND ".join((f"{table}.{self._id} = t.{self._id}", *conditions.texts))
        self._key = f"(SELECT {listed.key} FROM {table} WHERE {where})"
        self._columns = f"t.place, t.{self._id}, {self._key}"
        self._values = dict(conditions.values)

        plain, prefixes = words.format_tsquery()
        index = "search_words" if words.tokenizer == "words" else "search_trigrams"
        query = words.format_fts5(self.owner, wide)
        beginnings = " ".join(word.text for word in wide)
        self._words: dict[str, Value] = {"search_query": query, "search_beginnings": beginnings}
        self._has_wide = "has_beginnings(t.text, :search_beginnings)" if wide else "1"

        self._place = "t.place"
        self._texts = "search_texts AS t WHERE t.tokenizer = 'words'"
        if query:
            # CROSS JOIN keeps the order of the index of words, so nothing is sorted.
            self._place = "w.rowid"
            self._texts = (
                f"{index} AS w CROSS JOIN search_texts AS t ON t.place = w.rowid"
                f" WHERE {index} MATCH :search_query"
            )

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

    def has_enough(self, texts: Iterable[FoundText]) -> bool:
        """Return True if the rows fill the page and show that another row follows."""
        return len(_select_rows(texts, self.page)) > self.last

    def last_compared(self, start: int, size: int) -> Statement:
        """Return the statement for the last of some texts from a place on."""
        values = self._bind_range(start, None)
        if self._is_sqlite:
            # `octet_length` reads no text.
            sql = (
                f"SELECT place FROM (SELECT place, row_number() OVER texts AS number, sum(bytes)"
                f" OVER texts AS bytes FROM (SELECT {self._place} AS place, octet_length(t.text)"
                f" AS bytes FROM {self._read_texts('1')} LIMIT :search_size)"
                f" WINDOW texts AS (ORDER BY place {self._order} ROWS UNBOUNDED PRECEDING))"
                f" WHERE number = :search_size OR bytes >= {COMPARED_BYTES} LIMIT 1"
            )
            return Statement(Sql(sql), {**self._words, **values, "search_size": size})
        sql = f"SELECT place FROM search_texts WHERE {self._range} LIMIT 1 OFFSET :search_offset"
        return Statement(Sql(sql), {**values, "search_offset": size - 1})

    def compared(self, start: int, end: int | None, limit: int) -> Statement:
        """Return the statement that compares texts with the words, in order.

        SQLite finds them in its index of words, but for wide beginnings.

        Args:
            end: the first place that is not read; None if there is none.
        """
        values = {**self._values, **self._bind_range(start, end), "search_limit": limit}
        if self._is_sqlite:
            texts = self._read_texts(self._has_wide)
            sql = f"SELECT {self._columns} FROM {texts} LIMIT :search_limit"
            return Statement(Sql(sql), {**values, **self._words})
        # OFFSET keeps the words out of the inner statement, for which the planner would choose
        # their index by an estimate.
        sql = (
            f"SELECT {self._columns} FROM (SELECT place, {self._id}, words FROM search_texts"
            f" WHERE {self._range} OFFSET 0) AS t WHERE {self._matches} LIMIT :search_limit"
        )
        return Statement(Sql(sql), {**values, **self._lexemes})

    def _read_texts(self, condition: str) -> str:
        """Return the texts of SQLite with the words of `format_fts5`, in a range of places."""
        return (
            f"{self._texts} AND {self._place} {self._from} :search_start"
            f" AND {self._place} {self._until} :search_end AND {condition}"
            f" ORDER BY {self._place} {self._order}"
        )

    @property
    def _range(self) -> str:
        """The condition and the order of the texts of an owner, or all, in a range of places."""
        if self.owner is None:
            return (
                f"place {self._from} :search_start AND place {self._until} :search_end"
                f" ORDER BY place {self._order}"
            )
        # Pairs, and both columns in the order: only the index of owners has that. With the
        # condition `owner = ...` the planner may read the texts of all owners in their order.
        return (
            f"(owner, place) {self._from} (:search_owner, :search_start)"
            f" AND (owner, place) {self._until} (:search_owner, :search_end)"
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
        texts = (
            f"SELECT place, {self._id} FROM search_texts AS t WHERE {self._matches}"
            f" AND t.place + 0 {self._from} :search_start LIMIT :search_limit"
        )
        sql = Sql(
            f"SELECT place, {self._id}, CASE WHEN number <= :search_keys THEN {self._key} END"
            f" FROM (SELECT *, row_number() OVER (ORDER BY place {self._order}) AS number"
            f" FROM ({texts}) AS found) AS t ORDER BY number"
        )
        bounds: dict[str, Value] = {
            "search_start": self.first,
            "search_limit": limit,
            "search_keys": keys,
        }
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


# For each segment of the index, the pages from that with the last word before the beginning to
# that with the first word after it: https://www.sqlite.org/fts5.html#fts5_data_structures. A word
# has "0" before it, and the last bit of `pgno` is a flag.
_PAGE = "SELECT pgno / 2 FROM search_words_idx WHERE segid = segment"
_LEAVES = (
    "WITH RECURSIVE segments (segment) AS (SELECT min(segid) FROM search_words_idx UNION ALL"
    " SELECT (SELECT min(segid) FROM search_words_idx WHERE segid > segment) FROM segments"
    " WHERE segment IS NOT NULL)"
    " SELECT coalesce(sum(1 + coalesce("
    f"({_PAGE} AND term >= cast('0' || :last AS BLOB) ORDER BY term LIMIT 1),"
    " (SELECT max(id) FROM search_words_data WHERE id <= (segment << 37) + 0x7fffffff)"
    " - (segment << 37))"
    f" - ({_PAGE} AND term <= cast('0' || :first AS BLOB) ORDER BY term DESC LIMIT 1)), 0)"
    " FROM segments WHERE segment IS NOT NULL"
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

    Sessions are in the order of their creation. Runs are in the order of their sessions, and the
    runs of a session in the order of their ends. A page can have fewer rows than its limit, or
    none, and a next page, which begins after the texts that were read. The total counts the texts
    that the first page reads, and is capped if more may follow.

    Args:
        visibility: the data that is searched; `conditions` has the condition of the caller.
        conditions: conditions on the columns of the table of `listed`.
        page: the page, by `created_at`.
    """
    wide: Sequence[Word] = ()
    if search.is_sqlite:
        wide = yield from _find_wide(search.words)
    reader = _Reader(listed, search, visibility, conditions, page, wide)

    everything = _Part([], reader.first)
    if not search.is_sqlite:
        part = yield from _read_postgres(reader)
    elif wide:
        part = yield from _compare(reader, everything, COMPARED_TEXTS, extends=True)
    else:
        part = yield from _read_in_order(reader, everything, None)

    selected = _select_rows(part.texts, page)
    page_texts = selected[page.offset : page.offset + page.limit]

    until: int | None = None
    next_cursor: Cursor | None = None
    if len(selected) > page.offset + page.limit:
        next_cursor = cast(Cursor, (page_texts[-1].key, page_texts[-1].row_id))
    elif part.end is not None:
        until = part.end // SHARE * 1_000
        next_cursor = reader.build_cursor(part.end)

    total = page.total
    if total is None:
        is_capped = part.end is not None or page.after is not None
        total = (len(selected), is_capped)
    rows, matches = yield from _read_rows(listed, page_texts, conditions)
    return RowPage(rows, *total, next_cursor, True, until, matches)


@unit
def _find_wide(search: SearchWords) -> Steps[list[Word]]:
    """Return the beginnings whose words have too many pages of the index of SQLite."""
    leaves = 0
    wide = list[Word]()
    for word, first in search.list_beginnings():
        ((pages,),) = yield Statement(Sql(_LEAVES), {"first": first, "last": prefix_end(first)})
        if leaves + pages <= MAXIMUM_LEAVES:
            leaves += pages
        else:
            wide.append(word)
    return wide


@unit
def _read_postgres(reader: _Reader) -> Steps[_Part]:
    yield Statement(_ONLY_INDEXES)

    part = yield from _compare(reader, _Part([], reader.first), FIRST_WINDOW)
    if part.end is None or reader.has_enough(part.texts):
        return part

    ((plan,),) = yield reader.estimate()
    if json.loads(plan)[0]["Plan"]["Plan Rows"] <= FEW:
        for keys in (reader.maximum, INDEXED):
            texts = [FoundText(*row) for row in (yield reader.indexed(INDEXED + 1, keys))]
            if len(texts) > INDEXED:
                break
            if len(texts) <= keys:
                return _Part(texts, None)

            # Some texts of the last group may have no key.
            end = reader.begin_group(texts[keys - 1].place)
            if reader.is_before(texts[0].place, end):
                return _Part([text for text in texts if reader.is_before(text.place, end)], end)

    size = SECOND_WINDOW
    if reader.owner is not None:
        size = math.ceil(SECOND_WINDOW / OWNER_SHARE)
    return (yield from _compare(reader, part, size, extends=True))


@unit
def _compare(reader: _Reader, part: _Part, size: int, *, extends: bool = False) -> Steps[_Part]:
    """Compare the texts that follow a part with the words.

    Args:
        extends: True to compare more texts if all of them are of one group.
    """
    start = part.end
    end = None
    assert start is not None

    last = yield reader.last_compared(start, size)
    if last:
        end = reader.begin_group(last[0][0])
        if not reader.is_before(start, end):
            if not extends:
                return part
            end = reader.pass_group(end)
            has_more = yield reader.last_compared(end, 1)
            if not has_more:
                end = None

    return (yield from _read_in_order(reader, part, end))


@unit
def _read_in_order(reader: _Reader, part: _Part, end: int | None) -> Steps[_Part]:
    """Read the texts that follow a part until the page is full.

    Args:
        end: the first place that is not read; None if there is none.
    """
    texts = [*part.texts]
    start = part.end
    limit = reader.limit

    while start is not None:
        rows = [FoundText(*row) for row in (yield reader.compared(start, end, limit))]
        if len(rows) < limit:
            return _Part(texts + rows, end)

        # Some texts of the last group may not be read.
        start = reader.begin_group(rows[-1].place)
        passed_texts = [text for text in rows if reader.is_before(text.place, start)]
        texts += passed_texts
        if reader.has_enough(texts) or (texts and len(texts) >= reader.maximum):
            break

        limit = 2 * limit
        if passed_texts:
            # One more: the last of these texts begins a group that is not passed.
            limit = min(limit, reader.maximum - len(texts) + 1)

    return _Part(texts, start)


def _select_rows(texts: Iterable[FoundText], page: Slice) -> list[FoundText]:
    """Return the newest text of each row after the cursor, in the order of the list."""
    newest_texts = dict[tuple[int, str], FoundText]()
    is_descending = page.order == "desc"

    for text in texts:
        if text.key is None or text.row_id is None:
            continue

        key = (text.key, text.row_id)
        if page.after is not None:
            is_passed = key >= page.after if is_descending else key <= page.after
            if is_passed:
                continue

        if key not in newest_texts or text.place > newest_texts[key].place:
            newest_texts[key] = text

    return [newest_texts[key] for key in sorted(newest_texts, reverse=is_descending)]


@unit
def _read_rows(
    listed: FoundList[R], page_texts: Sequence[FoundText], conditions: Conditions
) -> Steps[tuple[list[R], list[Match]]]:
    listing = listed.listing
    texts = yield from read_by_ids(_TEXTS, [text.place for text in page_texts], Match)
    matches = {(text.place, getattr(text, listing.id)): text for text in texts}

    ids = [text.row_id for text in page_texts]
    read_rows = yield from listing.read_some(ids, conditions, listed.make)
    rows = {getattr(row, listing.id): row for row in read_rows}

    present_rows = list[R]()
    present_matches = list[Match]()
    for text in page_texts:
        row = rows.get(text.row_id)
        match = matches.get((text.place, text.row_id))
        # A row may be gone, or no longer match, since the page was searched.
        if row is not None and match is not None:
            present_rows.append(row)
            present_matches.append(match)
    return present_rows, present_matches
