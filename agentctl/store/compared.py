"""Pages of lists with filters that no index has in the order of the list.

A page follows the index of one filter, the lead, and compares the next rows with the others. Their
number is bounded, and so is the cost of a page: it ends early if few rows match, with a cursor
(docs/decisions/0118).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from agentctl.light_dataclass import dataclass
from agentctl.store.database import Statement, Steps, Value, Work, unit
from agentctl.store.listing import (
    MAXIMUM_TOTAL,
    Conditions,
    Cursor,
    Listing,
    RowPage,
    Slice,
    Times,
    bind_page,
    build_rows_sql,
    narrow,
    order_page,
)
from agentctl.store.totals import ListTotals
from agentctl.store.visibility import Visibility

MAXIMUM_COMPARED = MAXIMUM_TOTAL
"""Rows that a page is searched for if the index that it follows has the columns of all filters."""

MAXIMUM_READ = 1_000
"""Rows that a page is searched for if each has to be read, and rows that are sorted for a page."""

R = TypeVar("R")


class Lead(NamedTuple):
    """An index in the order of a list.

    Attributes:
        columns: those before the time of the order.
        covered: those after it.
        condition: that on an expression before the time of the order.
    """

    columns: frozenset[str] = frozenset()
    covered: frozenset[str] = frozenset()
    condition: Conditions = Conditions()


class FilterRange(NamedTuple):
    """A filter whose index is not in the order of the list.

    If it finds at most `maximum` rows, they are sorted; more are compared in the order of the list.

    Attributes:
        found: the condition that uses the index, with that on the owner if it is part of the index.
        compared: the same condition for single rows.
        lasting: True if a row leaves the range only when it is deleted: its size is remembered.
    """

    found: Conditions
    compared: Conditions
    maximum: int = MAXIMUM_READ
    lasting: bool = True


@dataclass(frozen=True, slots=True)
class Filtered:
    """The filters of a list.

    Attributes:
        listing: the table.
        leads: its indexes in the order of the list, the most selective first, the last without
            columns.
        visibility: the rows that the caller sees.
        equal: values that columns have; None for no filter.
        few: the condition of an index of few rows, all of which may be sorted.
        compared: the conditions that no index has.
        ranges: filters with an index in another order, the one with the fewest rows first.
        times: the bounds of the time of the order: inclusive and exclusive.
        totals: the remembered totals; None if the list is always counted.
    """

    listing: Listing
    leads: Sequence[Lead]
    visibility: Visibility
    equal: Mapping[str, Value]
    few: Conditions = Conditions()
    compared: Conditions = Conditions()
    ranges: Sequence[FilterRange] = ()
    times: Times = (None, None)
    totals: ListTotals | None = None

    def list_page(self, page: Slice, make: Callable[..., R]) -> Work[RowPage[R]]:
        """Read a page and its total.

        Args:
            make: creates a row from the columns.
        """
        if self.ranges:
            return self._list_ranges(page, make)
        return self._follow(page, make)

    @unit
    def _list_ranges(self, page: Slice, make: Callable[..., R]) -> Steps[RowPage[R]]:
        """Sort the rows of the first range that has few, or compare rows in the list's order."""
        for each in self.ranges:
            size = yield from self.listing.count(each.found, self.totals if each.lasting else None)
            if size <= each.maximum:
                _, others, _ = self._divide(Lead())
                found = each.found.with_all(self.few).with_all(others).with_all(self.compared)
                for other in self.ranges:
                    found = found if other is each else found.with_all(other.compared)
                return (
                    yield from self.listing.list_page(
                        found, page, make, times=self.times, sort_ids=True
                    )
                )
        compared = self.compared
        for each in self.ranges:
            compared = compared.with_all(each.compared)
        return (yield from replace(self, compared=compared, ranges=())._follow(page, make))

    def _follow(self, page: Slice, make: Callable[..., R]) -> Work[RowPage[R]]:
        is_few = bool(self.few.texts)
        if is_few:
            given = {name: value for name, value in self.equal.items() if value is not None}
            followed = self.visibility.conditions().with_equal(**given).with_all(self.few)
            compared, maximum = self.compared, MAXIMUM_READ
        else:
            known = {name for name, value in self.equal.items() if value is not None}
            known |= set() if self.visibility.everyone else {"user_id"}
            lead = next(lead for lead in self.leads if lead.columns <= known)
            followed, compared, maximum = self._divide(lead)
            compared = compared.with_all(self.compared)
        if compared.texts:
            return self._read_compared(followed, compared, maximum, page, make)
        totals = None if is_few else self.totals
        return self.listing.list_page(followed, page, make, totals, self.times, sort_ids=is_few)

    def _divide(self, lead: Lead) -> tuple[Conditions, Conditions, int]:
        """Return the conditions of the lead, the other ones on columns, and the rows to compare."""
        followed, compared, is_covered = lead.condition, Conditions(), not self.compared.texts
        has_owner = not self.visibility.everyone
        if has_owner and "user_id" in lead.columns:
            followed = followed.with_all(self.visibility.conditions())
        elif has_owner:
            compared = self.visibility.conditions("user_id || ''")
            is_covered = is_covered and "user_id" in lead.covered
        for name, value in self.equal.items():
            if value is None:
                continue
            if name in lead.columns and not (has_owner and name == "user_id"):
                followed = followed.with_equal(**{name: value})
            else:
                # With the empty text no other index is used: the rows that it has are not bounded.
                compared = compared.with_condition(f"{name} || '' = :{name}", **{name: value})
                is_covered = is_covered and name in lead.columns | lead.covered
        return followed, compared, MAXIMUM_COMPARED if is_covered else MAXIMUM_READ

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
        begins after these rows. The total is that of the first page, and capped if that has not
        compared all rows.
        """
        end = yield from self._find_end(followed, page, maximum)
        total, whole = page.total, followed.with_all(compared)
        if total is None:
            first_end = end
            if page.after is not None:
                first_end = yield from self._find_end(followed, replace(page, after=None), maximum)
            all_times = whole.with_times(*self.times, page.sort)
            count = yield from self.listing.count(_until(self.listing, first_end, all_times, page))
            total = count, first_end is not None
        matching, part = narrow(whole, page, *self.times)
        matching = _until(self.listing, end, matching, page)
        sort_ids = bool(self.few.texts)
        found = yield from self.listing.read(matching, part, make, total[0], sort_ids=sort_ids)
        return RowPage(found.rows, *total, found.next or end, keeps_total=True)

    @unit
    def _find_end(self, followed: Conditions, page: Slice, maximum: int) -> Steps[Cursor | None]:
        """Return the last row that is compared for a page, None if no row follows it."""
        matching, part = narrow(followed, page, *self.times)
        values = {**bind_page(matching, part), "limit": 2, "offset": maximum - 1}
        sql = build_rows_sql(
            self.listing, f"{page.sort}, {self.listing.id}", *order_page(matching, part)
        )
        rows = yield Statement(sql, values)
        return (rows[0][0], rows[0][1]) if len(rows) > 1 else None


def _until(listing: Listing, end: Cursor | None, conditions: Conditions, page: Slice) -> Conditions:
    if end is None:
        return conditions
    sign = "<=" if page.order == "asc" else ">="
    bound = f"({page.sort}, {listing.id}) {sign} (:end_key, :end_id)"
    return conditions.with_condition(bound, end_key=end[0], end_id=end[1])
