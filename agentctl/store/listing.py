"""Lists: filters, pages, cursors and totals.

A statement contains a condition for each filter that is present, and nothing for the others: a
condition such as `(:x IS NULL OR column = :x)` keeps a database from using an index. The planner of
the database chooses the index. PostgreSQL gathers the statistics for that; SQLite has those of
migration 3 (docs/decisions/0036).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Generic, Literal, TypeVar

from agentctl.store.database import ListTotals, Sql, Statement, Steps, Value, unit

MAXIMUM_TOTAL = 10_000
"""The largest exact total (docs/contract.md "Lists")."""

MAXIMUM_SURPLUS = 1_000
"""Rows above `MAXIMUM_TOTAL` that are counted at most, for `ListTotals`."""

GROUP_SIZE = 20
"""Ids that one statement looks up. A smaller last group is filled with NULL, so that the statement
has one text, which the database prepares once."""

ID_GROUP = ", ".join(f":id_{number}" for number in range(GROUP_SIZE))
"""The parameters of `group_ids`, for a condition such as `run_id IN (…)`."""

R = TypeVar("R")

Order = Literal["asc", "desc"]

Cursor = tuple[int, str]
"""The time (microseconds UTC) and the id of the last row of a page: the next page follows them."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a list, in an order.

    Attributes:
        sort: the column of the order; the id breaks ties.
        limit: maximum number of rows.
        offset: rows to skip; 0 with `after`.
        after: the row before the part.
    """

    sort: Literal["created_at", "updated_at"] = "created_at"
    order: Order = "desc"
    limit: int = 20
    offset: int = 0
    after: Cursor | None = None


@dataclass(frozen=True, slots=True)
class RowPage(Generic[R]):
    """One page of a list.

    Attributes:
        rows: the rows of the page.
        total: number of rows that match the filters, at most `MAXIMUM_TOTAL`.
        capped: True if more rows than that match.
        next: the cursor of the next page; None on the last page.
    """

    rows: list[R]
    total: int
    capped: bool
    next: Cursor | None


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions on the rows of a list, with the values of their parameters."""

    texts: tuple[str, ...] = ()
    values: Mapping[str, Value] = field(default_factory=dict)

    def with_condition(self, text: str, **values: Value) -> Conditions:
        """Add a condition."""
        return Conditions((*self.texts, text), {**self.values, **values})

    def with_prefix(self, column: str, prefix: str) -> Conditions:
        """Add the condition that a column begins with a text."""
        end = prefix_end(prefix)
        bounded = self.with_condition(f"{column} >= :{column}_from", **{f"{column}_from": prefix})
        if end is None:
            return bounded
        return bounded.with_condition(f"{column} < :{column}_to", **{f"{column}_to": end})

    def with_any(self, column: str, values: Collection[Value], name: str = "") -> Conditions:
        """Add the condition that a column has one of some values."""
        text, named = build_any(column, values, name)
        return self.with_condition(text, **named)

    def with_times(self, since: int | None, before: int | None) -> Conditions:
        """Add the bounds of `created_at`: inclusive and exclusive, microseconds UTC."""
        bounded = self
        if since is not None:
            bounded = bounded.with_condition("created_at >= :since", since=since)
        if before is not None:
            bounded = bounded.with_condition("created_at < :before", before=before)
        return bounded

    def with_equal(self, **values: Value) -> Conditions:
        """Add `column = value` for each column whose value is not None."""
        present = {name: value for name, value in values.items() if value is not None}
        texts = (f"{name} = :{name}" for name in present)
        return Conditions((*self.texts, *texts), {**self.values, **present})


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """A table with lists. Each table has one object, which is the key of its cached statements.

    Attributes:
        table: the name of the table.
        columns: the selected columns, separated by commas.
        id: the column that breaks ties.
        removals: the column of the table `removals` that counts removed rows; "" if totals are
            not remembered.
    """

    table: str
    columns: str
    id: str
    removals: str = ""

    @unit
    def count(self, conditions: Conditions, totals: ListTotals | None = None) -> Steps[int]:
        """Count the rows that match.

        Args:
            totals: the remembered totals of the database. Without them every list is counted.

        Returns:
            The number of rows, up to `MAXIMUM_TOTAL`; some larger number for a longer list.
        """
        sql = _count_sql(self, conditions.texts)
        if totals is None or not self.removals:
            return int((yield Statement(sql, conditions.values))[0][0])
        key = (sql, *sorted(conditions.values.items()))
        # Read before the rows are counted: a later removal must not go unnoticed.
        removals = Sql(f"SELECT {self.removals} FROM removals WHERE id = 1")
        removed = (yield Statement(removals))[0][0]
        if totals.is_beyond(key, removed):
            return MAXIMUM_TOTAL + 1
        count: int = (yield Statement(sql, conditions.values))[0][0]
        if count > MAXIMUM_TOTAL:
            totals.learn(key, removed, count - MAXIMUM_TOTAL)
        return count

    @unit
    def read(
        self,
        conditions: Conditions,
        page: Slice,
        make: Callable[..., R],
        total: int,
        *,
        sort_ids: bool = False,
    ) -> Steps[RowPage[R]]:
        """Read a page.

        Args:
            page: the page.
            make: creates a row from the columns.
            total: the result of `count`.
            sort_ids: set if an index that is not in the order of the list finds all rows that
                match. Then only ids are sorted, and only the rows of the page are read.
        """
        # One row more than the page shows whether there is another page.
        values = {**conditions.values, "limit": page.limit + 1, "offset": page.offset}
        if page.after is not None:
            values["after_key"], values["after_id"] = page.after
        after = page.after is not None
        sql = _page_sql(self, conditions.texts, page.sort, page.order, after, sort_ids)
        matches = yield Statement(sql, values)
        rows = [make(*row) for row in matches[: page.limit]]
        last = rows[-1] if len(matches) > page.limit else None
        following = None if last is None else (getattr(last, page.sort), getattr(last, self.id))
        return RowPage(rows, min(total, MAXIMUM_TOTAL), total > MAXIMUM_TOTAL, following)

    @unit
    def list_page(
        self,
        conditions: Conditions,
        page: Slice,
        make: Callable[..., R],
        totals: ListTotals | None = None,
    ) -> Steps[RowPage[R]]:
        """Count the rows that match, and read a page of them."""
        total = yield from self.count(conditions, totals)
        return (yield from self.read(conditions, page, make, total))


def narrow(
    conditions: Conditions, page: Slice, since: int | None, before: int | None
) -> tuple[Conditions, Slice]:
    """Return the conditions and the page of a list by `created_at` within two times.

    Of a time and a cursor that limit the same side, only the tighter one is a condition: a database
    that starts at the other one reads all pages in between.
    """
    if page.after is not None and page.order == "asc" and since is not None:
        since, page = (since, replace(page, after=None)) if since > page.after[0] else (None, page)
    elif page.after is not None and page.order == "desc" and before is not None:
        bounds = (before, replace(page, after=None)) if before <= page.after[0] else (None, page)
        before, page = bounds
    return conditions.with_times(since, before), page


def build_any(
    column: str, values: Collection[Value], name: str = ""
) -> tuple[str, dict[str, Value]]:
    """Return the text and the parameters of the condition that a column has one of some values.

    Args:
        name: the beginning of the names of the parameters; by default that of the column.
    """
    named = {f"{name or column}_{number}": value for number, value in enumerate(values)}
    return f"{column} IN ({', '.join(f':{key}' for key in named) or 'NULL'})", named


def fold_prefix(prefix: str) -> str:
    """Return a prefix as `lower()` of both databases changes it: only ASCII letters are folded."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in prefix)


def prefix_end(prefix: str) -> str | None:
    """Return the end of the range of texts that begin with `prefix`, by code point.

    A text begins with the prefix if and only if it is not less than the prefix, and less than the
    end. None: no text is greater than all texts with the prefix.
    """
    trimmed = prefix.rstrip(chr(0x10FFFF))
    if not trimmed:
        return None
    following = ord(trimmed[-1]) + 1
    if 0xD800 <= following <= 0xDFFF:  # surrogates are no characters of UTF-8
        following = 0xE000
    return trimmed[:-1] + chr(following)


@cache
def _count_sql(listing: Listing, conditions: tuple[str, ...]) -> Sql:
    rows = f"SELECT 1 FROM {listing.table}{_where(conditions)}"
    return Sql(f"SELECT count(*) FROM ({rows} LIMIT {MAXIMUM_TOTAL + MAXIMUM_SURPLUS}) AS counted")


@cache
def _page_sql(
    listing: Listing,
    conditions: tuple[str, ...],
    sort: str,
    order: Order,
    after: bool,
    sort_ids: bool,
) -> Sql:
    if after:
        sign = ">" if order == "asc" else "<"
        conditions = (*conditions, f"({sort}, {listing.id}) {sign} (:after_key, :after_id)")
    ordered = f"ORDER BY {sort} {order}, {listing.id} {order}"
    source = f"FROM {listing.table}{_where(conditions)} {ordered} LIMIT :limit OFFSET :offset"
    if not sort_ids:
        return Sql(f"SELECT {listing.columns} {source}")
    return Sql(
        f"SELECT {listing.columns} FROM {listing.table}"
        f" WHERE {listing.id} IN (SELECT {listing.id} {source}) {ordered}"
    )


def _where(conditions: tuple[str, ...]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def group_ids(ids: Sequence[str]) -> Iterator[dict[str, Value]]:
    """Yield the values of `ID_GROUP` for each group of ids."""
    for first in range(0, len(ids), GROUP_SIZE):
        group = ids[first : first + GROUP_SIZE]
        parameters: dict[str, Value] = {f"id_{number}": None for number in range(GROUP_SIZE)}
        yield parameters | {f"id_{number}": each for number, each in enumerate(group)}
