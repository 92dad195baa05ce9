"""Pages of lists with filters that no index has in the order of the list.

A page follows the index of one filter, the lead, and compares the next rows with the other filters.
The number of these rows is bounded, and so is the cost of a page: it ends early if few rows match,
with a cursor (decision 118).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeVar

from agentctl.store.database import Sql, Statement, Steps, Value, Work, single_unit, unit
from agentctl.store.listing import (
    MAXIMUM_STATEMENTS,
    MAXIMUM_TOTAL,
    Conditions,
    Cursor,
    Listing,
    Order,
    RowPage,
    Slice,
    Times,
    Total,
    bind_page,
    build_page_sql,
    build_removals_sql,
    build_rows_sql,
    follow_cursor,
    narrow,
    order_page,
)
from agentctl.store.totals import MAXIMUM_SECONDS, ListTotals
from agentctl.store.visibility import Visibility

MAXIMUM_COMPARED = MAXIMUM_TOTAL
"""Rows that are compared for a page if the index that it follows has the columns of all filters."""

MAXIMUM_READ = 250
"""Rows that are compared for a page if each has to be read, and rows that are sorted for a page."""

R = TypeVar("R")


class Lead(NamedTuple):
    """An index in the order of a list."""

    columns: frozenset[str] = frozenset()
    """The columns before the time by which the list is ordered."""

    covered: frozenset[str] = frozenset()
    """The columns after that time."""

    condition: Conditions = Conditions()
    """The condition of a partial index."""


class FilterRange(NamedTuple):
    """A filter whose index is not in the order of the list.

    If it finds at most `maximum` rows, they are sorted; more are compared in the order of the list.
    """

    found: Conditions
    """The condition that uses the index. It names the owner if the index begins with the owner."""

    compared: Conditions
    """The same condition for single rows."""

    maximum: int

    order: str = ""
    """The column of the index.

    Without this order PostgreSQL reads the table itself for a frequent value, also if no row near
    its beginning has it; empty if no value is frequent.
    """


def find_by_prefix(
    column: str, prefix: str | None, name: str = "", owner: Conditions | None = None
) -> list[FilterRange]:
    """Return the filter by the beginning of an id or, with its `name`, of another text."""
    if prefix is None:
        return []

    indexed = (owner or Conditions()).with_prefix(column, prefix, name)
    # The empty text keeps the index, which is not in the order of the list, out of use.
    single = Conditions().with_prefix(f"{column} || ''", prefix, name or column)
    return [FilterRange(indexed, single, MAXIMUM_READ, column)]


def build_lead(columns: str, covered: str = "", *conditions: str) -> Lead:
    """Return the index with some columns, separated by spaces; a partial one has conditions."""
    return Lead(frozenset(columns.split()), frozenset(covered.split()), Conditions(conditions))


@dataclass(frozen=True, slots=True)
class Filtered:
    """The filters of a list."""

    listing: Listing
    """The table."""

    leads: Sequence[Lead]
    """Its indexes in the order of the list, the most selective first, the last without columns."""

    visibility: Visibility
    """The rows that the caller sees."""

    equal: Mapping[str, Value]
    """Required values of columns; None if a column is not filtered."""

    few: Conditions = Conditions()
    """The condition of an index of few rows, all of which may be sorted."""

    compared: Conditions = Conditions()
    """The conditions that no index has."""

    ranges: Sequence[FilterRange] = ()
    """Filters with an index in another order, the filter with the fewest rows first."""

    times: Times = (None, None)
    """The bounds of the time by which the list is ordered: inclusive and exclusive."""

    totals: ListTotals | None = None
    """The remembered totals; None if the list is always counted."""

    parts: int = 1
    """The number of reads that a comparison needs; fewer rows are compared for more."""

    matches_most: bool = False
    """True if most rows match the conditions that no index has: a page is full after a few rows."""

    def list_page(self, page: Slice, make: Callable[..., R]) -> Work[RowPage[R]]:
        """Read a page and its total, unless the page has it.

        Args:
            make: creates a row from the columns.
        """
        if self.ranges:
            return self._list_ranges(page, make)
        return self._follow(page, make)

    @unit
    def _list_ranges(self, page: Slice, make: Callable[..., R]) -> Steps[RowPage[R]]:
        """Sort the rows of the first range that has few, or compare rows in the list's order."""
        for candidate in self.ranges:
            rows = f"SELECT 1 FROM {self.listing.table} WHERE {' AND '.join(candidate.found.texts)}"
            if candidate.order:
                rows += f" ORDER BY {candidate.order}"
            counted = Sql(f"SELECT count(*) FROM ({rows} LIMIT :searched) AS counted")

            # One row more than may be sorted shows that there are too many.
            searched = candidate.maximum + 1
            ((size,),) = yield Statement(counted, {**candidate.found.values, "searched": searched})
            if size <= candidate.maximum:
                return (yield from self._sort(candidate, page, make))

        compared = self.compared
        for filter_range in self.ranges:
            compared = compared.with_all(filter_range.compared)
        return (yield from replace(self, compared=compared, ranges=())._follow(page, make))

    @unit
    def _sort(self, chosen: FilterRange, page: Slice, make: Callable[..., R]) -> Steps[RowPage[R]]:
        """Read a page of the rows of a range, with which all other conditions are compared."""
        _, on_columns, _ = self._divide(Lead())
        conditions = on_columns.with_all(self.few).with_all(self.compared)
        for other_range in self.ranges:
            if other_range is not chosen:
                conditions = conditions.with_all(other_range.compared)
        conditions = conditions.with_times(*self.times, page.sort)

        rows = _Rows(self.listing, page, chosen.found, conditions, chosen.maximum)
        if page.after is None:
            return (yield from rows.read(make))

        total = yield from rows.count()
        # `bind_page` has the values of the cursor.
        position = follow_cursor(self.listing, page.sort, page.order)
        rows = replace(rows, compared=conditions.with_condition(position))
        return (yield from rows.read(make, total))

    def _follow(self, page: Slice, make: Callable[..., R]) -> Work[RowPage[R]]:
        is_few = bool(self.few.texts)
        if is_few:
            _, on_columns, maximum = self._divide(Lead(), hides_columns=True)
            followed = self.few.with_all(on_columns)
            compared = self.compared
        else:
            filtered_columns = {name for name, value in self.equal.items() if value is not None}
            if not self.visibility.everyone:
                filtered_columns.add("user_id")
            lead = next(lead for lead in self.leads if lead.columns <= filtered_columns)
            followed, compared, maximum = self._divide(lead)
            compared = compared.with_all(self.compared)

        # Rows of an index with columns are found by id: their plan would read them twice.
        is_soon_full = self.matches_most and not followed.texts
        if compared.texts and (maximum == MAXIMUM_COMPARED or is_soon_full):
            return self._read_apart(followed, compared, maximum, page, make)
        if compared.texts:
            return self._read_compared(followed, compared, maximum, page, make)

        if page.total is not None:
            total = page.total[0]
            followed, page = narrow(followed, page, *self.times)
            return self.listing.read(followed, page, make, total, sort_ids=is_few)

        # A row leaves a list of few when its status changes. `ListTotals` knows deletions only, so
        # such a list is always counted.
        totals = None if is_few else self.totals
        return self.listing.list_page(followed, page, make, totals, self.times, sort_ids=is_few)

    def _divide(
        self, lead: Lead, *, hides_columns: bool = False
    ) -> tuple[Conditions, Conditions, int]:
        """Return the conditions of the lead and of other columns, and the rows to compare.

        Args:
            hides_columns: True if the conditions of other columns select rows. Joined with an empty
                text, a column uses no other index, whose rows would not be bounded.
        """
        hidden = " || ''" if hides_columns else ""
        followed = lead.condition
        compared = Conditions()
        is_covered = not self.compared.texts

        has_owner = not self.visibility.everyone
        if has_owner and "user_id" in lead.columns:
            followed = followed.with_all(self.visibility.conditions())
        elif has_owner:
            compared = self.visibility.conditions(f"user_id{hidden}")
            is_covered = is_covered and "user_id" in lead.covered

        for name, value in self.equal.items():
            if value is None:
                continue
            if name in lead.columns and not (has_owner and name == "user_id"):
                followed = followed.with_equal(**{name: value})
            else:
                compared = compared.with_condition(f"{name}{hidden} = :{name}", **{name: value})
                is_covered = is_covered and name in lead.columns | lead.covered

        maximum = MAXIMUM_COMPARED if is_covered else MAXIMUM_READ // self.parts
        return followed, compared, maximum

    @unit
    def _read_compared(
        self,
        followed: Conditions,
        compared: Conditions,
        maximum: int,
        page: Slice,
        make: Callable[..., R],
    ) -> Steps[RowPage[R]]:
        """Read a page of the rows that also match conditions that the index does not have.

        The page is searched for in the next `maximum` rows of the list without these conditions. If
        there are more rows, it can have fewer rows than its limit, or none, and a next page, which
        begins after these rows. The total is the total of the first page, and capped if that page
        has not compared all rows.
        """
        end = yield from self._find_end(followed, page, maximum)
        rows = self._search(followed, compared, page, maximum)

        total = page.total
        if total is None and page.after is not None:
            total = yield from self._count(followed, compared, page, maximum)

        found_page = yield from rows.read(make, None if total is None else total[0])
        if total is None:
            total = (found_page.total, end is not None)
        return _end_page(found_page, total, end)

    @single_unit
    def _read_apart(
        self,
        followed: Conditions,
        compared: Conditions,
        maximum: int,
        page: Slice,
        make: Callable[..., R],
    ) -> Steps[RowPage[R]]:
        """Do the same for conditions on columns of the index, or that most rows match.

        The page and its total are searched for apart, in one statement in most cases: the index
        alone counts thousands of rows in less time than it takes to keep them for both, and the
        page ends with its last row. A total that is capped is remembered, so that the other pages
        of a long list count nothing.
        """
        listing = self.listing
        totals = self.totals
        rows = self._search(followed, compared, page, maximum)
        first_rows = self._search(followed, compared, replace(page, after=None), maximum)
        counted = first_rows.build_count()
        key = (counted.sql, *sorted(counted.parameters.items()))

        total = page.total
        is_known = total is not None or (totals is not None and totals.has(key))
        reads_removals = total is None and totals is not None and bool(listing.removals)
        extra: tuple[str, ...] = ()
        if reads_removals:
            extra = (build_removals_sql(listing),)
        if not is_known:
            extra = (*extra, counted.sql, first_rows.build_rest_sql())

        selected, part = rows.select()
        sql = build_page_sql(listing, *order_page(selected, part), extra=extra)
        values = {**counted.parameters, **bind_page(selected, part)}
        page_rows = yield Statement(sql, values)
        found_page = listing.build_page(page_rows, part, make, 0, len(extra))

        removed = 0
        if page_rows and reads_removals:
            removed = page_rows[0][-len(extra)]
        is_counted = False
        if page_rows and not is_known:
            *_, count, rest = page_rows[0]
            total = (count, bool(rest))
            is_counted = True
        elif page_rows and total is None and totals is not None:
            known_count = totals.find(key, removed)
            if known_count is not None:
                # The page may have rows that are newer than the total.
                total = (max(known_count, page.offset + len(found_page.rows)), True)

        end = None
        is_whole = page.after is None and total is not None and not total[1]
        if found_page.next is None and not is_whole:
            end = yield from self._find_end(followed, page, maximum)

        is_empty = not page_rows and page.after is None and not page.offset
        if total is None and is_empty:
            total = (0, end is not None)
        elif total is None:
            total = yield from self._count(followed, compared, page, maximum)
            is_counted = bool(page_rows)

        if totals is not None and is_counted and total[1]:
            totals.learn(key, total[0], removed=removed, seconds=MAXIMUM_SECONDS)
        return _end_page(found_page, total, end)

    @unit
    def _count(
        self, followed: Conditions, compared: Conditions, page: Slice, maximum: int
    ) -> Steps[Total]:
        """Return the total of the first page of a list."""
        first_page = replace(page, after=None)
        is_capped = (yield from self._find_end(followed, first_page, maximum)) is not None
        count = yield from self._search(followed, compared, first_page, maximum).count()
        return count, is_capped

    def _search(
        self, followed: Conditions, compared: Conditions, page: Slice, maximum: int
    ) -> _Rows:
        matching, part = narrow(followed, page, *self.times)
        by_id = bool(followed.texts) and not self.few.texts and maximum != MAXIMUM_COMPARED
        return _Rows(self.listing, part, matching, compared, maximum, ordered=True, by_id=by_id)

    @unit
    def _find_end(self, followed: Conditions, page: Slice, maximum: int) -> Steps[Cursor | None]:
        """Return the last row that is compared for a page, None if no row follows it."""
        matching, part = narrow(followed, page, *self.times)
        values = {**bind_page(matching, part), "limit": 2, "offset": maximum - 1}
        sql = build_rows_sql(
            self.listing, f"{page.sort}, {self.listing.id}", *order_page(matching, part)
        )
        rows = yield Statement(sql, values)
        if len(rows) < 2:
            return None
        last_row = rows[0]
        return last_row[0], last_row[1]


def _end_page(page: RowPage[R], total: Total, end: Cursor | None) -> RowPage[R]:
    """Return a page with its total, and with the end of its rows if it has no next page there."""
    if page.next is not None or end is None:
        return RowPage(page.rows, *total, page.next, keeps_total=True)
    return RowPage(page.rows, *total, end, keeps_total=True, searched_until=end[0])


class _Shape(NamedTuple):
    """The parts of `_Rows` on which the texts of its statements depend."""

    listing: Listing
    found: tuple[str, ...]
    compared: tuple[str, ...]
    sort: str
    order: Order
    after: bool
    ordered: bool
    by_id: bool


@dataclass(frozen=True, slots=True)
class _Rows:
    """The next rows of an index, with which conditions are compared."""

    listing: Listing
    page: Slice

    found: Conditions
    """The conditions that the index has."""

    compared: Conditions
    """The conditions with which the rows are compared."""

    maximum: int
    """The number of rows that are compared at most."""

    ordered: bool = False
    """True if the index is in the order of the list, and the rows follow the cursor."""

    by_id: bool = False
    """True if the index has columns of filters.

    Only with ids alone does PostgreSQL prefer it to the index of all rows, which is in the order of
    the table.
    """

    @unit
    def count(self) -> Steps[int]:
        """Count the rows that match."""
        ((count,),) = yield self.build_count()
        return int(count)

    def build_count(self) -> Statement:
        """Return the statement that counts the rows that match."""
        return Statement(_build_count_sql(self._shape()), self._bind())

    def build_rest_sql(self) -> Sql:
        """Return the statement that counts the row after these rows: 1, or 0 if there is none.

        Its values are those of `build_count`.
        """
        parts = order_page(self.found, self.page)
        rest = build_rows_sql(self.listing, "1", *parts, limits=" LIMIT 1 OFFSET :searched")
        return _build_rest_sql(rest)

    @unit
    def read(self, make: Callable[..., R], total: int | None = None) -> Steps[RowPage[R]]:
        """Read the page. Only its rows are read as a whole.

        Args:
            total: the result of `count` for the list; None: count the rows that match.
        """
        selected, page = self.select(are_kept=total is None)
        if total is not None:
            return (yield from self.listing.read(selected, page, make, total, sort_ids=False))

        searched = _build_searched_sql(self._shape())
        found_page = yield from self.listing.read_counted(selected, page, make, searched)
        if found_page.rows or not self.page.offset:
            return found_page

        # A page behind the last row has no row with the number of all rows.
        count = yield from self.count()
        return replace(found_page, total=count)

    def select(self, *, are_kept: bool = False) -> tuple[Conditions, Slice]:
        """Return the condition of the rows of the page that match, and their part of the list.

        Args:
            are_kept: True if the rows are in a table `searched`, from which they are also counted.
        """
        ids_sql = _build_ids_sql(self._shape(), are_kept)
        values = {**self._bind(), "skipped": self.page.offset}
        return Conditions((ids_sql,), values), replace(self.page, after=None, offset=0)

    def _shape(self) -> _Shape:
        parts = order_page(self.found, self.page)
        found, sort, order, after = parts
        return _Shape(
            self.listing, found, self.compared.texts, sort, order, after, self.ordered, self.by_id
        )

    def _bind(self) -> dict[str, Value]:
        values = {**bind_page(self.found, self.page), **self.compared.values}
        del values["limit"], values["offset"]
        return {**values, "searched": self.maximum}


@lru_cache(MAXIMUM_STATEMENTS)
def _build_searched_sql(shape: _Shape, *, is_counted: bool = False) -> Sql:
    """Build the query of the rows, whose column `matches` is true for the rows of the list.

    Args:
        is_counted: True to leave out the columns by which the rows are ordered.
    """
    # Without its own limit, the conditions could make another index seem to be the best one.
    matches = f"({' AND '.join(shape.compared) or 'TRUE'}) AS matches"
    table = shape.listing.table
    row_id = shape.listing.id
    columns = matches if is_counted else f"{shape.sort}, {row_id}, {matches}"
    if not shape.ordered:
        condition = " AND ".join(shape.found)
        return Sql(f"SELECT {columns} FROM {table} WHERE {condition} LIMIT :searched")

    selected = f"{row_id} AS found_id" if shape.by_id else columns
    parts = (shape.found, shape.sort, shape.order, shape.after)
    rows = build_rows_sql(shape.listing, selected, *parts, limits=" LIMIT :searched")
    if not shape.by_id:
        return rows

    # The second limit keeps the conditions, which few rows are estimated to match, out of
    # the join: PostgreSQL would begin with them.
    joined = f"({rows}) AS found JOIN {table} ON {row_id} = found_id"
    return Sql(f"SELECT {columns} FROM {joined} LIMIT :searched")


@lru_cache(MAXIMUM_STATEMENTS)
def _build_count_sql(shape: _Shape) -> Sql:
    searched = _build_searched_sql(shape, is_counted=True)
    rows = f"SELECT 1 FROM ({searched}) AS searched WHERE matches"
    return Sql(f"SELECT count(*) FROM ({rows}) AS counted")


@lru_cache(MAXIMUM_STATEMENTS)
def _build_rest_sql(rest: Sql) -> Sql:
    return Sql(f"SELECT count(*) FROM ({rest}) AS rest")


@lru_cache(MAXIMUM_STATEMENTS)
def _build_ids_sql(shape: _Shape, are_kept: bool) -> str:
    """Build the condition of the rows of the page that match.

    Args:
        are_kept: True to read them from a table `searched`.
    """
    row_id = shape.listing.id
    rows = "searched" if are_kept else f"({_build_searched_sql(shape)}) AS searched"
    order = f"{shape.sort} {shape.order}, {row_id} {shape.order}"
    ids = f"SELECT {row_id} FROM {rows} WHERE matches ORDER BY {order}"
    return f"{row_id} IN ({ids} LIMIT :limit OFFSET :skipped)"
