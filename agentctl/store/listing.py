"""Lists: filters, pages, cursors and totals.

A statement contains a condition for each filter that is present, and nothing for the others: a
condition such as `(:x IS NULL OR column = :x)` keeps a database from using an index. The planner of
the database chooses the index. PostgreSQL gathers the statistics for that; SQLite has those of
migration 3 (decision 36).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from agentctl.store.database import Row, Sql, Statement, Steps, Value, Work, single_unit, unit
from agentctl.store.search import Match
from agentctl.store.totals import MAXIMUM_SECONDS, ListTotals

MAXIMUM_TOTAL = 10_000
"""The largest exact total (docs/contract.md "Lists")."""

MAXIMUM_SURPLUS = 1_000
"""Rows above `MAXIMUM_TOTAL` that are counted at most, for `ListTotals`."""

MAXIMUM_STATEMENTS = 4_096
"""Statements that are kept, of the many combinations of filters."""

GROUP_SIZE = 20
"""Ids that one statement looks up.

A smaller last group is filled with NULL, so that the statement has one text, which the database
prepares once.
"""

ID_GROUP = ", ".join(f":id_{number}" for number in range(GROUP_SIZE))
"""The parameters of `group_ids`, for a condition such as `run_id IN (…)`."""

R = TypeVar("R")

Order = Literal["asc", "desc"]

Cursor = tuple[int, str]
"""The time (microseconds UTC) and the id of the last row of a page: the next page follows them."""

Times = tuple[int | None, int | None]
"""Bounds of a time, inclusive and exclusive, in microseconds UTC."""

Total = tuple[int, bool]
"""A number of rows, and whether more may match."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a list, in an order."""

    sort: Literal["created_at", "updated_at"] = "created_at"
    """The column of the order; the id breaks ties."""

    order: Order = "desc"

    limit: int = 20
    """Maximum number of rows."""

    offset: int = 0
    """Rows to skip; 0 with `after`."""

    after: Cursor | None = None
    """The row before the part; None for the beginning of the list."""

    total: Total | None = None
    """The total of the list, if an earlier page has it."""


@dataclass(frozen=True, slots=True)
class RowPage(Generic[R]):
    """One page of a list."""

    rows: list[R]

    total: int
    """Number of rows that match the filters, at most `MAXIMUM_TOTAL`."""

    capped: bool
    """True if more rows than that match."""

    next: Cursor | None
    """The cursor of the next page; None on the last page."""

    keeps_total: bool = False
    """True if the next pages have the same total, from the cursor."""

    searched_until: int | None = None
    """The time of the last row that was compared, in microseconds UTC, if the page ends there."""

    matches: Sequence[Match] = ()
    """A text of each row that a search has found; empty without a search."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions on the rows of a list, with the values of their parameters."""

    texts: tuple[str, ...] = ()
    values: Mapping[str, Value] = field(default_factory=dict)

    def with_condition(self, text: str, **values: Value) -> Conditions:
        """Add a condition."""
        return Conditions((*self.texts, text), {**self.values, **values})

    def with_present(self, text: str, **value: Value) -> Conditions:
        """Add a condition unless its value is None."""
        if None in value.values():
            return self
        return self.with_condition(text, **value)

    def with_all(self, other: Conditions) -> Conditions:
        """Add other conditions."""
        return Conditions((*self.texts, *other.texts), {**self.values, **other.values})

    def with_prefix(self, column: str, prefix: str | None, name: str = "") -> Conditions:
        """Add the condition that a column begins with a text; `name` as in `build_any`."""
        if prefix is None:
            return self
        first = f"{name or column}_from"
        last = f"{name or column}_to"
        bounded = self.with_condition(f"{column} >= :{first}", **{first: prefix})
        return bounded.with_present(f"{column} < :{last}", **{last: prefix_end(prefix)})

    def with_any(self, column: str, values: Collection[Value]) -> Conditions:
        """Add the condition that a column has one of some values."""
        text, parameters = build_any(column, values)
        return self.with_condition(text, **parameters)

    def with_times(
        self, since: int | None, before: int | None, column: str = "created_at"
    ) -> Conditions:
        """Add the bounds of a time: inclusive and exclusive, microseconds UTC."""
        bounded = self.with_present(f"{column} >= :since", since=since)
        return bounded.with_present(f"{column} < :before", before=before)

    def with_equal(self, **values: Value) -> Conditions:
        """Add `column = value` for each column whose value is not None."""
        present_values = {name: value for name, value in values.items() if value is not None}
        texts = (f"{name} = :{name}" for name in present_values)
        return Conditions((*self.texts, *texts), {**self.values, **present_values})


class Joined(NamedTuple):
    """The row of another table that belongs to each row of a page, NULL if there is none."""

    columns: str
    """The columns of that row, separated by commas."""

    join: str
    """The LEFT JOIN; `page` is the row of the page."""


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """A table with lists. Each table has one object, which is the key of its cached statements."""

    table: str
    """The name of the table."""

    columns: str
    """The selected columns, separated by commas."""

    id: str
    """The column that breaks ties."""

    removals: str = ""
    """The column of the table `removals` that counts removed rows; "" if nothing counts them."""

    joined: Joined | None = None
    """Adds columns of other rows."""

    @single_unit
    def list_page(
        self,
        conditions: Conditions,
        page: Slice,
        make: Callable[..., R],
        totals: ListTotals | None = None,
        times: Times = (None, None),
        *,
        sort_ids: bool = False,
    ) -> Steps[RowPage[R]]:
        """Read a page and its total in one statement.

        Further statements count the list if the page has no rows, or if so many rows were removed
        that its remembered total may be wrong.

        Args:
            conditions: the conditions of the list.
            page: the page.
            make: creates a row from the columns.
            totals: the remembered totals of the database. Without them every list is counted.
            times: the bounds of the time of the order: inclusive and exclusive.
            sort_ids: set if an index that is not in the order of the list finds all rows that
                match. Then only ids are sorted, and only the rows of the page are read.
        """
        whole = conditions.with_times(*times, page.sort)
        conditions, page = narrow(conditions, page, *times)

        counted = _count_sql(self, whole.texts)
        key = (counted, *sorted(whole.values.items()))
        reads_removals = totals is not None and bool(self.removals)
        extra = (build_removals_sql(self),) if reads_removals else ()
        is_known = totals is not None and totals.has(key)
        if not is_known:
            extra = (*extra, counted)

        sql = build_page_sql(self, *order_page(conditions, page), sort_ids=sort_ids, extra=extra)
        rows = yield Statement(sql, {**whole.values, **bind_page(conditions, page)})

        total: int | None = None
        if not rows:
            if page.after is None and not page.offset:
                # The first page is empty, and so is the list.
                total = 0
        else:
            removed = rows[0][-len(extra)] if reads_removals else 0
            if not is_known:
                total = rows[0][-1]
                self._remember(totals, key, total, removed)
            elif totals is not None:
                total = totals.find(key, removed)

        if total is None:
            total = yield from self.count(whole, totals)
        return self.build_page(rows, page, make, total, len(extra))

    @unit
    def count(self, conditions: Conditions, totals: ListTotals | None = None) -> Steps[int]:
        """Count the rows that match.

        Args:
            totals: as for `list_page`.

        Returns:
            The number of rows, up to `MAXIMUM_TOTAL`; some larger number for a longer list.
        """
        sql = _count_sql(self, conditions.texts)
        key = (sql, *sorted(conditions.values.items()))

        removed = 0
        if totals is not None and self.removals:
            # Read before the rows are counted: a later removal must not go unnoticed.
            ((removed,),) = yield Statement(build_removals_sql(self))
        if totals is not None:
            known_total = totals.find(key, removed)
            if known_total is not None:
                return known_total

        ((count,),) = yield Statement(sql, conditions.values)
        self._remember(totals, key, count, removed)
        return int(count)

    def _remember(self, totals: ListTotals | None, key: Hashable, total: int, removed: int) -> None:
        surplus = total - MAXIMUM_TOTAL
        if totals is None or surplus <= 0:
            return

        seconds = math.inf if self.removals else MAXIMUM_SECONDS
        totals.learn(key, total, removed=removed, surplus=surplus, seconds=seconds)

    @unit
    def read(
        self,
        conditions: Conditions,
        page: Slice,
        make: Callable[..., R],
        total: int,
        *,
        sort_ids: bool,
    ) -> Steps[RowPage[R]]:
        """Read a page of a list whose total, the result of `count`, is known.

        The other arguments are those of `list_page`.
        """
        sql = build_page_sql(self, *order_page(conditions, page), sort_ids=sort_ids)
        rows = yield Statement(sql, bind_page(conditions, page))
        return self.build_page(rows, page, make, total)

    @unit
    def read_counted(
        self, conditions: Conditions, page: Slice, make: Callable[..., R], searched: str
    ) -> Steps[RowPage[R]]:
        """Read a page, and its total if it has rows, from searched rows.

        Args:
            conditions: those on the rows of the page. They may read the table `searched`.
            searched: the query of the searched rows, whose column `matches` is true for the rows of
                the list. It is executed once.
        """
        sql = _build_searched_page_sql(self, *order_page(conditions, page), searched)
        rows = yield Statement(sql, bind_page(conditions, page))
        total = rows[0][-1] if rows else 0
        return self.build_page(rows, page, make, total, 1)

    def read_some(
        self, ids: Sequence[Value], conditions: Conditions, make: Callable[..., R]
    ) -> Work[list[R]]:
        """Read the rows with some ids that match, in any order."""
        where = _where((f"{self.id} IN ({ID_GROUP})", *conditions.texts))
        sql = f"SELECT {self.columns} FROM {self.table}{where}"
        joined = self.joined
        if joined is not None:
            sql = f"SELECT page.*, {joined.columns} FROM ({sql}) AS page {joined.join}"
        return read_by_ids(Sql(sql), ids, make, **conditions.values)

    def build_page(
        self,
        read_rows: Sequence[Row],
        page: Slice,
        make: Callable[..., R],
        total: int,
        extra: int = 0,
    ) -> RowPage[R]:
        """Build a page from the rows of the statement of `build_page_sql`.

        Args:
            extra: the number of further columns, which `make` does not get.
        """
        columns = slice(0, -extra or None)
        rows = [make(*row[columns]) for row in read_rows[: page.limit]]

        next_cursor: Cursor | None = None
        if len(read_rows) > page.limit:
            last_row = rows[-1]
            next_cursor = (getattr(last_row, page.sort), getattr(last_row, self.id))
        return RowPage(rows, min(total, MAXIMUM_TOTAL), total > MAXIMUM_TOTAL, next_cursor)


def narrow(
    conditions: Conditions, page: Slice, since: int | None, before: int | None
) -> tuple[Conditions, Slice]:
    """Return the conditions and the page of a list within two times of its order.

    Of a time and a cursor that limit the same side, only the tighter one is a condition: a database
    that starts at the other one reads all pages in between.
    """
    if page.after is None:
        return conditions.with_times(since, before, page.sort), page

    cursor_time, _ = page.after
    if page.order == "asc" and since is not None:
        if since > cursor_time:
            page = replace(page, after=None)
        else:
            since = None
    elif page.order == "desc" and before is not None:
        if before <= cursor_time:
            page = replace(page, after=None)
        else:
            before = None
    return conditions.with_times(since, before, page.sort), page


def build_any(
    column: str, values: Collection[Value], name: str = ""
) -> tuple[str, dict[str, Value]]:
    """Return the text and the parameters of the condition that a column has one of some values.

    Args:
        name: the beginning of the names of the parameters; by default the name of the column.
    """
    parameters = {f"{name or column}_{number}": value for number, value in enumerate(values)}
    if not parameters:
        # No row has one of no values; an empty list is no SQL.
        return f"{column} IN (NULL)", parameters
    return f"{column} IN ({', '.join(f':{key}' for key in parameters)})", parameters


def fold_ascii(text: str) -> str:
    """Return a text as `lower()` of both databases changes it: only ASCII letters are folded."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in text)


def prefix_end(prefix: str) -> str | None:
    """Return the end of the range of texts that begin with `prefix`, by code point.

    A text begins with the prefix if and only if it is not less than the prefix, and less than the
    end. None: no text is greater than all texts with the prefix.
    """
    trimmed = prefix.rstrip(chr(0x10FFFF))
    if not trimmed:
        return None

    next_code = ord(trimmed[-1]) + 1
    if 0xD800 <= next_code <= 0xDFFF:
        # Surrogates are no characters of UTF-8.
        next_code = 0xE000
    return trimmed[:-1] + chr(next_code)


@lru_cache(MAXIMUM_STATEMENTS)
def _count_sql(listing: Listing, conditions: tuple[str, ...]) -> Sql:
    # In the order of an index: PostgreSQL would read the table itself, in its own order.
    order = "" if conditions else f" ORDER BY created_at, {listing.id}"
    rows = f"SELECT 1 FROM {listing.table}{_where(conditions)}{order}"
    return Sql(f"SELECT count(*) FROM ({rows} LIMIT {MAXIMUM_TOTAL + MAXIMUM_SURPLUS}) AS counted")


@lru_cache
def build_removals_sql(listing: Listing) -> Sql:
    """Return the statement that reads how many rows of a table were removed."""
    return Sql(f"SELECT {listing.removals} FROM removals WHERE id = 1")


def order_page(conditions: Conditions, page: Slice) -> tuple[tuple[str, ...], str, Order, bool]:
    """Return what determines the text of the statement of a page."""
    has_cursor = page.after is not None
    return conditions.texts, page.sort, page.order, has_cursor


def bind_page(conditions: Conditions, page: Slice) -> dict[str, Value]:
    """Return the values of the statement of a page."""
    # One row more than the page shows whether there is another page.
    values = {**conditions.values, "limit": page.limit + 1, "offset": page.offset}
    if page.after is not None:
        values["after_key"], values["after_id"] = page.after
    return values


def follow_cursor(listing: Listing, sort: str, order: Order) -> str:
    """Return the condition of the rows after a cursor, `:after_key` and `:after_id`."""
    return f"({sort}, {listing.id}) {'>' if order == 'asc' else '<'} (:after_key, :after_id)"


@lru_cache(MAXIMUM_STATEMENTS)
def build_rows_sql(
    listing: Listing,
    columns: str,
    conditions: tuple[str, ...],
    sort: str,
    order: Order,
    after: bool,
    limits: str = " LIMIT :limit OFFSET :offset",
) -> Sql:
    """Build the statement that reads rows of a list in its order.

    Args:
        after: True for the rows after a cursor (`follow_cursor`).
    """
    if after:
        conditions = (*conditions, follow_cursor(listing, sort, order))
    return Sql(
        f"SELECT {columns} FROM {listing.table}{_where(conditions)}"
        f" ORDER BY {sort} {order}, {listing.id} {order}{limits}"
    )


@lru_cache(MAXIMUM_STATEMENTS)
def build_page_sql(
    listing: Listing,
    conditions: tuple[str, ...],
    sort: str,
    order: Order,
    after: bool,
    *,
    sort_ids: bool = False,
    extra: tuple[str, ...] = (),
    tables: str = "",
) -> Sql:
    """Build the statement of a page.

    Args:
        extra: queries of one value each. Their values are the last columns of each row.
        tables: the WITH clause of the tables that conditions and `extra` may read; "" for none.
    """
    # Each is evaluated once and not for each row, because it does not depend on the row.
    further = "".join(f", ({query})" for query in extra)
    columns = listing.columns if listing.joined is not None else f"{listing.columns}{further}"
    parts = (conditions, sort, order, after)
    if sort_ids:
        sql = (
            f"SELECT {columns} FROM {listing.table}"
            f" WHERE {listing.id} IN ({build_rows_sql(listing, listing.id, *parts)})"
            f" ORDER BY {sort} {order}, {listing.id} {order}"
        )
    else:
        sql = build_rows_sql(listing, columns, *parts)

    if listing.joined is None:
        return Sql(f"{tables}{sql}")

    return Sql(
        f"{tables}SELECT page.*, {listing.joined.columns}{further} FROM ({sql}) AS page"
        f" {listing.joined.join} ORDER BY page.{sort} {order}, page.{listing.id} {order}"
    )


@lru_cache(MAXIMUM_STATEMENTS)
def _build_searched_page_sql(
    listing: Listing,
    conditions: tuple[str, ...],
    sort: str,
    order: Order,
    after: bool,
    searched: str,
) -> Sql:
    tables = f"WITH searched AS MATERIALIZED ({searched}) "
    counted = ("SELECT count(*) FROM searched WHERE matches",)
    return build_page_sql(listing, conditions, sort, order, after, extra=counted, tables=tables)


def _where(conditions: tuple[str, ...]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def group_ids(ids: Sequence[Value]) -> Iterator[dict[str, Value]]:
    """Yield the values of `ID_GROUP` for each group of ids."""
    for first in range(0, len(ids), GROUP_SIZE):
        group = ids[first : first + GROUP_SIZE]
        parameters: dict[str, Value] = {f"id_{number}": None for number in range(GROUP_SIZE)}
        parameters |= {f"id_{number}": row_id for number, row_id in enumerate(group)}
        yield parameters


@unit
def read_by_ids(
    sql: Sql, ids: Sequence[Value], build: Callable[..., R], **values: Value
) -> Steps[list[R]]:
    """Run a statement with `ID_GROUP` for each group of ids; return an object for each row."""
    built_rows = list[R]()
    for group in group_ids(ids):
        rows = yield Statement(sql, {**group, **values})
        built_rows += [build(*row) for row in rows]
    return built_rows


def as_columns(*columns: Any) -> tuple[Any, ...]:
    """Return the columns of a row, as the objects of `read_by_ids`."""
    return columns


def read_group(group: Mapping[str, Value]) -> list[str]:
    """Return the ids of a group that `group_ids` has yielded."""
    return [str(value) for value in group.values() if value is not None]
