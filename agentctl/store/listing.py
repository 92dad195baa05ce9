"""Lists: filters, order, pages and cursors, as statements that each find an index.

A filter that may be absent, written as `(:x is null or column = :x)`, keeps a database from using
the column's index. So there is one statement for each set of filters that is present, built of
fixed pieces; values are always parameters.

Of several filters one index leads: what it begins with is all that is written so that an index
serves it. SQLite has no statistics of our tables and would as soon walk all sessions of a type as
the few of a user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations, product
from typing import Generic, Literal, NamedTuple, TypeVar

from agentctl.store.database import Sql, Statement, Steps, Value, unit
from agentctl.store.totals import Totals

__all__ = [
    "MAXIMUM_TOTAL",
    "Cursor",
    "Filter",
    "Lead",
    "Listing",
    "Order",
    "RowPage",
    "Slice",
    "prefix_range",
    "present_filters",
]

MAXIMUM_TOTAL = 10_000
"""Up to here a total is exact (contract.md 4)."""

SPARE = 1_000
"""Rows beyond that are counted as well: so many may go before it is counted again."""

R = TypeVar("R")

Order = Literal["asc", "desc"]

Cursor = tuple[int, str]
"""The time and the id of the last row of a page: what the next one follows."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Which part of a list, in which order.

    Attributes:
        limit: rows at most.
        offset: rows to skip; 0 with `after`.
        after: the row that the part follows.
    """

    sort: str
    order: Order
    limit: int
    offset: int
    after: Cursor | None

    def parameters(self) -> dict[str, Value]:
        """Those of the statement; one row more is read, to know whether there is another page."""
        values: dict[str, Value] = {"limit": self.limit + 1, "offset": self.offset}
        if self.after is not None:
            values["after_key"], values["after_id"] = self.after
        return values


@dataclass(frozen=True, slots=True)
class RowPage(Generic[R]):
    """One page of a list.

    Attributes:
        rows: the page.
        total: how many rows the filters leave, at most `COUNTED`.
        capped: whether there are more than that.
        next: what the next page follows; None on the last one.
    """

    rows: list[R]
    total: int
    capped: bool
    next: Cursor | None


class Filter(NamedTuple):
    """A condition: what is compared, and how. The parameter has the name of the filter.

    What compares a sorted column bounds the order itself: every index has that column behind what
    leads, so such a filter narrows the reading whatever leads.
    """

    compared: str
    how: str


class Lead(NamedTuple):
    """An index that a list can be read by.

    Attributes:
        compared: what it begins with, all of which must be asked for.
        sorts: the columns of which one stands behind that, in this index or in another like it.
            None at all: it has an order of its own, and all that match are to be sorted. So it
            leads no more once it leaves more than `COUNTED` rows: then a page is found sooner in
            the order that is asked for.
    """

    compared: tuple[str, ...]
    sorts: tuple[str, ...] = ()


NO_LEAD = Lead(())


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """What can be listed of a table. There is one object of it, by which its statements are kept.

    Attributes:
        table: its name.
        columns: what is selected, with commas.
        id: the column that breaks ties.
        sorts: the columns that it can be ordered by.
        free: filters that can be present in any combination, by name.
        choices: groups of filters, of which one set at a time is present, or none.
        leads: the most selective first.
        implied: what is compared by filters that others imply, and that only lead.
        promoted: what a caller may have lead for the sake of its value.
        removals: the column that counts rows which were removed; "": totals are not remembered.
    """

    table: str
    columns: str
    id: str
    sorts: tuple[str, ...]
    free: Mapping[str, Filter]
    choices: tuple[tuple[Mapping[str, Filter], ...], ...]
    leads: tuple[Lead, ...]
    implied: tuple[str, ...] = ()
    promoted: tuple[Lead, ...] = ()
    removals: str = ""

    @unit
    def page(
        self,
        filters: Mapping[str, Value],
        part: Slice,
        make: Callable[..., R],
        promote: Lead = NO_LEAD,
        known: Totals | None = None,
    ) -> Steps[RowPage[R]]:
        """Read a page and count what the filters leave.

        Args:
            filters: the filters that are present, with their values.
            part: which page.
            make: makes a row of the columns.
            promote: one of `promoted`, to lead.
            known: what is known of the database; it learns. Without it every row is counted.
        """
        present = tuple(filters)
        found = yield from self._count(_counting(self, present, promote), filters, known)
        capped = found > MAXIMUM_TOTAL
        kind = part.sort, part.order, part.after is not None
        sql = _selecting(self, present, promote, kind, capped)
        found_rows = yield Statement(sql, {**filters, **part.parameters()})
        rows = [make(*row) for row in found_rows[: part.limit]]
        last = rows[-1] if len(found_rows) > part.limit else None
        following = None if last is None else (getattr(last, part.sort), getattr(last, self.id))
        return RowPage(rows, min(found, MAXIMUM_TOTAL), capped, following)

    @unit
    def _count(self, sql: Sql, filters: Mapping[str, Value], known: Totals | None) -> Steps[int]:
        """How many rows the filters leave; of more than `COUNTED` it is only said that it is so."""
        if known is None or not self.removals:
            return int((yield Statement(sql, filters))[0][0])
        key = (sql, *sorted(filters.items()))
        removed = (yield Statement(_removed(self.removals)))[0][0]
        if known.is_beyond(key, removed):
            return MAXIMUM_TOTAL + 1
        found: int = (yield Statement(sql, filters))[0][0]
        if found > MAXIMUM_TOTAL:
            known.learn(key, removed, found - MAXIMUM_TOTAL)
        return found

    def count(self, present: tuple[str, ...], lead: Lead) -> Sql:
        """The statement that counts rows, some more than `COUNTED` at most."""
        return _count(self.table, self._conditions(present, lead))

    def select(
        self, present: tuple[str, ...], lead: Lead, sort: str, order: Order, after: bool
    ) -> Sql:
        """The statement that reads a page; with `after` it follows (:after_key, :after_id)."""
        sign = ">" if order == "asc" else "<"
        conditions = self._conditions(present, lead, sign if after else "")
        if after:
            conditions = (*conditions, f"({sort}, {self.id}) {sign} (:after_key, :after_id)")
        ordered = f"{sort} {order}, {self.id} {order}"
        if lead.compared and not lead.sorts:
            return _select_by_id(self.table, self.columns, self.id, conditions, ordered)
        return _select(self.table, self.columns, conditions, ordered)

    def variants(self) -> Iterator[Sql]:
        """Every statement that `page` can run."""
        if self.removals:
            yield _removed(self.removals)
        orders: tuple[Order, ...] = ("asc", "desc")
        for present, promote in product(self.combinations(), (NO_LEAD, *self.promoted)):
            yield self.count(present, self.lead(present, promote))
            for sort, unordered in product(self.sorts, (True, False)):
                lead = self.lead(present, promote, sort, unordered)
                for order, after in product(orders, (False, True)):
                    yield self.select(present, lead, sort, order, after)

    def combinations(self) -> Iterator[tuple[str, ...]]:
        """Every set of filters that can be present."""
        subsets = chain.from_iterable(combinations(self.free, n) for n in range(len(self.free) + 1))
        for subset, *chosen in product(subsets, *self.choices):
            yield (*subset, *chain.from_iterable(chosen))

    def lead(
        self,
        present: tuple[str, ...],
        promote: Lead = NO_LEAD,
        sort: str = "",
        unordered: bool = True,
    ) -> Lead:
        """What leads when these filters are present.

        Args:
            sort: what it must be in the order of; "" for whatever, to count.
            unordered: also what is in its own order only.
        """
        compared = {known.compared for name, known in self._known().items() if name in present}
        for lead in (promote, *self.leads):
            ordered = sort in lead.sorts if lead.sorts else unordered
            if lead.compared and compared.issuperset(lead.compared) and (ordered or not sort):
                return lead
        return NO_LEAD

    def _conditions(
        self, present: tuple[str, ...], lead: Lead, cursor: str = ""
    ) -> tuple[str, ...]:
        """The filters that are present, each written so that it finds an index, or that it cannot.

        Args:
            cursor: the side that a cursor bounds. It alone has to say where the reading starts: an
                index that starts at a bound of that side walks over all earlier pages.
        """
        return tuple(
            self._condition(known, lead, cursor)
            for name, known in self._known().items()
            if name in present
            and (known.compared not in self.implied or known.compared in lead.compared)
        )

    def _condition(self, known: Filter, lead: Lead, cursor: str) -> str:
        compared, how = known
        if compared in self.sorts:
            bounded = cursor and how.startswith(cursor)
            return f"{compared} + 0 {how}" if bounded else f"{compared} {how}"
        return f"{compared} {how}" if compared in lead.compared else f"{compared} || '' {how}"

    def _known(self) -> dict[str, Filter]:
        groups = chain.from_iterable(self.choices)
        return dict(self.free) | {name: known for group in groups for name, known in group.items()}


def present_filters(query: object, names: Iterable[str]) -> dict[str, Value]:
    """What a query asks for by these of its fields: those that are not None."""
    values: dict[str, Value] = {name: getattr(query, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def prefix_range(prefix: str) -> tuple[str, str | None]:
    """The range of texts that begin with `prefix`, without regard to the case of ASCII letters.

    Ordered by code point, as both databases order: a text begins with the prefix just when it is
    not before the first result and before the second. None: nothing is behind them. Only ASCII
    letters are folded, as `lower()` does in both: the same answer everywhere, from an index.
    """
    start = "".join(letter.lower() if letter.isascii() else letter for letter in prefix)
    trimmed = start.rstrip(chr(0x10FFFF))
    if not trimmed:
        return start, None
    following = ord(trimmed[-1]) + 1
    if 0xD800 <= following <= 0xDFFF:  # surrogates are no characters of UTF-8
        following = 0xE000
    return start, trimmed[:-1] + chr(following)


def _where(conditions: tuple[str, ...]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


@cache
def _counting(listing: Listing, present: tuple[str, ...], promote: Lead) -> Sql:
    """The statement that counts what is to be listed."""
    return listing.count(present, listing.lead(present, promote))


@cache
def _selecting(
    listing: Listing,
    present: tuple[str, ...],
    promote: Lead,
    kind: tuple[str, Order, bool],
    capped: bool,
) -> Sql:
    """The statement that reads a page of it: by what, in which order, and whether by cursor."""
    sort, order, after = kind
    lead = listing.lead(present, promote, sort, unordered=not capped)
    return listing.select(present, lead, sort, order, after)


@cache
def _removed(column: str) -> Sql:
    return Sql(f"SELECT {column} FROM removals WHERE id = 1")


def _count(table: str, conditions: tuple[str, ...]) -> Sql:
    some = f"SELECT 1 FROM {table}{_where(conditions)} LIMIT {MAXIMUM_TOTAL + SPARE}"
    return Sql(f"SELECT count(*) FROM ({some}) AS counted")


def _select(table: str, columns: str, conditions: tuple[str, ...], order: str) -> Sql:
    return Sql(
        f"SELECT {columns} FROM {table}{_where(conditions)}"
        f" ORDER BY {order} LIMIT :limit OFFSET :offset"
    )


def _select_by_id(
    table: str, columns: str, id: str, conditions: tuple[str, ...], order: str
) -> Sql:
    """The same where all that match are to be sorted: the index is, and only a page is read."""
    page = _select(table, id, conditions, order)
    return Sql(f"SELECT {columns} FROM {table} WHERE {id} IN ({page}) ORDER BY {order}")
