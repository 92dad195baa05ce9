"""The words by which rows of users are found: a table with one row for each word of a row.

They are rows of our own, and not a full-text index of the engine, because a search must cost the
same for a user with a thousand and with a hundred thousand rows (decision 41).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest

from agentctl.records.memories import split_words
from agentctl.store.database import Sql, Statement, Steps, Value, unit

SEARCH_WORDS = 16
"""Words of a search that count."""

_CANDIDATES = 200
"""The newest rows with a word that a search considers."""

_TERMS = tuple(f"term{number}" for number in range(16))
"""Terms in one statement. A smaller last group is filled with NULL."""


class TermTable:
    """A table of words.

        _TERMS = TermTable("memory_terms", "memory_id")
        yield from _TERMS.replace(row.memory_id, terms, user_id=row.user_id, updated_at=at)

    Args:
        name: the table, with the columns `term`, `user_id` and `updated_at`.
        id: the column with the id of the row that has the words.
        scope: a further column with a text of the row, whose beginning each search gives; "" if
            there is none.
    """

    def __init__(self, name: str, id: str, scope: str = "") -> None:
        column = ""
        value = ""
        within = ""

        if scope:
            column = f", {scope}"
            value = f", cast(:{scope} as text)"
            within = f" AND {scope} >= :{scope}_from AND {scope} < :{scope}_to"

        self.statements = {
            "create": Sql(
                f"INSERT INTO {name} ({id}, term, user_id, updated_at{column})"
                " SELECT cast(:id as text), column1, cast(:user_id as text),"
                f" cast(:updated_at as bigint){value}"
                f" FROM (VALUES {', '.join(f'(cast(:{term} as text))' for term in _TERMS)})"
                " AS terms WHERE column1 IS NOT NULL"
            ),
            "delete": Sql(f"DELETE FROM {name} WHERE {id} = :id"),
            "find": Sql(
                f"SELECT {id}, updated_at FROM {name} WHERE user_id = :user_id AND term = :term"
                f"{within} ORDER BY updated_at DESC, {id} DESC LIMIT {_CANDIDATES}"
            ),
        }
        """Its statements: `create`, `delete` and `find`."""

    @unit
    def add(self, row_id: str, terms: Sequence[str], **row: Value) -> Steps[None]:
        """Store the terms of a row.

        Args:
            row: the values of `user_id`, `updated_at` and the scope.
        """
        for first in range(0, len(terms), len(_TERMS)):
            group_values = dict(zip_longest(_TERMS, terms[first : first + len(_TERMS)]))
            yield Statement(self.statements["create"], {"id": row_id, **row, **group_values})

    @unit
    def replace(self, row_id: str, terms: Sequence[str], **row: Value) -> Steps[None]:
        """Store the terms of a row in place of those that it has."""
        yield Statement(self.statements["delete"], {"id": row_id})
        yield from self.add(row_id, terms, **row)

    @unit
    def rank(self, text: str, **within: Value) -> Steps[dict[str, float]]:
        """Return the ids of the rows of a user that share words with a text, the best first.

        A row scores for each word that it shares, a rare word more than a frequent one; of equal
        scores the newer row comes first. Of each word only the newest 200 rows count, so that the
        cost does not depend on the number of rows.

        Args:
            within: the value of `user_id`, and the bounds of the scope.

        Returns:
            The scores by the ids.
        """
        scores = defaultdict[str, float](float)
        times = dict[str, int]()
        for word in split_words(text)[:SEARCH_WORDS]:
            matches = yield Statement(self.statements["find"], {**within, "term": word})
            for row_id, updated_at in matches:
                scores[row_id] += 1 / math.log2(1 + len(matches) + 1)
                times[row_id] = updated_at

        def rate(row_id: str) -> tuple[float, int, str]:
            # The id only keeps the order the same.
            return scores[row_id], times[row_id], row_id

        best_ids = sorted(scores, key=rate, reverse=True)
        return {row_id: scores[row_id] for row_id in best_ids}
