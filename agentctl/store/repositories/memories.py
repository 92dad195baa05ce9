"""Memories of users, in the system database, with the terms that find them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

import orjson

from agentctl.interface.requests.memories import MemoryFilter
from agentctl.records.memories import (
    TOPIC_PREFIX,
    build_terms,
    check_memory,
    check_topics,
    split_words,
)
from agentctl.records.text import new_id
from agentctl.store.compared import Filtered, FilterRange, build_lead
from agentctl.store.database import Sql, Statement, Steps, Value, Work, build_insert, unit
from agentctl.store.listing import (
    ID_GROUP,
    Conditions,
    Listing,
    RowPage,
    Slice,
    prefix_end,
    read_by_ids,
)
from agentctl.store.repositories.terms import SEARCH_WORDS, TermTable
from agentctl.store.totals import ListTotals
from agentctl.store.visibility import IS_VISIBLE, Visibility


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """A stored memory. Times are microseconds UTC."""

    memory_id: str
    user_id: str

    agent_id: str | None
    """The agent that stored it; None for a team or a person."""

    team_id: str | None
    """The team that stored it; None for an agent or a person."""

    run_id: str | None
    created_at: int
    updated_at: int

    topics: str
    """A JSON array of strings."""

    memory: str


_NAMES = tuple(field.name for field in fields(MemoryRow))
_COLUMNS = ", ".join(_NAMES)

LISTING = Listing(table="memories", columns=_COLUMNS, id="memory_id")

_LEADS = (build_lead("user_id"), build_lead(""))

MAXIMUM_SORTED = 25
"""Memories with a term that are sorted for a page; more are compared in the order of the list."""

_CREATE = build_insert("memories", _NAMES)

_GET = Sql(f"SELECT {_COLUMNS} FROM memories WHERE memory_id = :memory_id AND {IS_VISIBLE}")

_UPDATE = Sql(
    "UPDATE memories SET memory = :memory, topics = :topics, updated_at = :now"
    f" WHERE memory_id = :memory_id AND {IS_VISIBLE} RETURNING {_COLUMNS}"
)

_DELETE = Sql(
    f"DELETE FROM memories WHERE memory_id = :memory_id AND {IS_VISIBLE} RETURNING memory_id"
)

_COUNT_OF_USER = Sql("SELECT count(*) FROM memories WHERE user_id = :user_id")

_DELETE_OF_USER = Sql("DELETE FROM memories WHERE user_id = :user_id")

_RECENT = Sql(
    f"SELECT {_COLUMNS} FROM memories WHERE user_id = :user_id"
    " ORDER BY updated_at DESC, memory_id DESC LIMIT :limit"
)

_GET_ALL = Sql(f"SELECT {_COLUMNS} FROM memories WHERE memory_id IN ({ID_GROUP})")

_TERMS = TermTable("memory_terms", "memory_id")

MAXIMUM_FOUND = 50
"""The largest limit of a search."""

# With literals, because a partial index has the same condition.
_IS_TOPIC = f"term >= '{TOPIC_PREFIX}' AND term < '{prefix_end(TOPIC_PREFIX)}'"

_ALL_TOPICS = Sql(f"SELECT DISTINCT term FROM memory_terms WHERE {_IS_TOPIC} ORDER BY term")

_TOPICS_OF_USER = Sql(
    f"SELECT DISTINCT term FROM memory_terms WHERE user_id = :user_id AND {_IS_TOPIC} ORDER BY term"
)


def build_memory(
    user_id: str,
    memory: str,
    topics: Iterable[str],
    *,
    now: int,
    agent_id: str | None = None,
    team_id: str | None = None,
    run_id: str | None = None,
) -> MemoryRow:
    """Build the row of a new memory.

    Raises:
        ValidationFailed: the text or a topic is not allowed.
    """
    return MemoryRow(
        memory_id=new_id(),
        user_id=user_id,
        agent_id=agent_id,
        team_id=team_id,
        run_id=run_id,
        created_at=now,
        updated_at=now,
        topics=orjson.dumps(check_topics(topics)).decode(),
        memory=check_memory(memory),
    )


@unit
def create(row: MemoryRow) -> Steps[None]:
    """Store a new memory with its terms."""
    yield Statement(_CREATE, asdict(row))
    yield from _TERMS.add(row.memory_id, **_list_terms(row))


def get(memory_id: str, visibility: Visibility) -> Work[MemoryRow | None]:
    """Return the visible memory with this id."""
    return _GET.first(MemoryRow, memory_id=memory_id, **visibility.parameters())


@unit
def update(
    memory_id: str, visibility: Visibility, memory: str, topics: Iterable[str], now: int
) -> Steps[MemoryRow | None]:
    """Replace the text and the topics of a visible memory; return None if there is none."""
    rows = yield Statement(
        _UPDATE,
        {
            "memory_id": memory_id,
            "memory": check_memory(memory),
            "topics": orjson.dumps(check_topics(topics)).decode(),
            "now": now,
            **visibility.parameters(),
        },
    )

    if not rows:
        return None

    row = MemoryRow(*rows[0])
    yield from _TERMS.replace(row.memory_id, **_list_terms(row))

    return row


def delete(memory_id: str, visibility: Visibility) -> Work[bool]:
    """Delete a visible memory; return False if there is none."""
    return _DELETE.has_rows(memory_id=memory_id, **visibility.parameters())


@unit
def delete_all_of_user(user_id: str) -> Steps[int]:
    """Delete every memory of a user and return their number."""
    ((count,),) = yield Statement(_COUNT_OF_USER, {"user_id": user_id})
    yield Statement(_DELETE_OF_USER, {"user_id": user_id})
    return int(count)


def list_page(
    filter: MemoryFilter, visibility: Visibility, page: Slice, totals: ListTotals | None = None
) -> Work[RowPage[MemoryRow]]:
    """Read a page of the visible memories that match a filter, and their total.

    Args:
        totals: the remembered totals of the database.
    """
    owner = filter.user_id if visibility.everyone else visibility.user_id
    terms = [
        Conditions((f"term = :topic{number}",), {f"topic{number}": TOPIC_PREFIX + topic})
        for number, topic in enumerate(filter.topics)
    ]
    for number, word in enumerate(split_words(filter.search_content or "")[:SEARCH_WORDS]):
        terms.append(Conditions().with_prefix("term", word, f"word{number}"))

    compared = Conditions()
    ranges = list[FilterRange]()
    for term in terms:
        of_any_user = _has_term(term, None)
        if owner is None:
            compared = compared.with_all(of_any_user)
        else:
            ranges.append(FilterRange(_has_term(term, owner), of_any_user, MAXIMUM_SORTED))

    equal: dict[str, Value] = {
        "user_id": filter.user_id,
        "agent_id": filter.agent_id,
        "team_id": filter.team_id,
    }
    filtered = Filtered(
        LISTING,
        _LEADS,
        visibility,
        equal,
        compared=compared,
        ranges=ranges,
        totals=totals,
        parts=1 + len(terms),
    )
    return filtered.list_page(page, MemoryRow)


@unit
def list_topics(visibility: Visibility, user_id: str | None) -> Steps[list[str]]:
    """Return the distinct topics of the visible memories, of one user or of all, in order."""
    owner = user_id
    if owner is None and not visibility.everyone:
        owner = visibility.user_id

    if owner is None and visibility.everyone:
        rows = yield Statement(_ALL_TOPICS)
    elif owner is None or not visibility.sees(owner):
        return []
    else:
        rows = yield Statement(_TOPICS_OF_USER, {"user_id": owner})
    return [row[0].removeprefix(TOPIC_PREFIX) for row in rows]


def list_recent(user_id: str, limit: int) -> Work[list[MemoryRow]]:
    """Return the newest memories of a user, the last changed first."""
    return _RECENT.rows(MemoryRow, user_id=user_id, limit=limit)


@unit
def search(user_id: str, text: str, limit: int) -> Steps[list[MemoryRow]]:
    """Return the memories of a user that share words with a text, the best first.

    `limit` is at most `MAXIMUM_FOUND`.
    """
    scores = yield from _TERMS.rank(text, user_id=user_id)
    best_ids = list(scores)[:limit]
    rows = yield from read_by_ids(_GET_ALL, best_ids, MemoryRow)
    rows_by_id = {row.memory_id: row for row in rows}
    return [rows_by_id[memory_id] for memory_id in best_ids if memory_id in rows_by_id]


def _list_terms(row: MemoryRow) -> dict[str, Any]:
    terms = build_terms(row.memory, orjson.loads(row.topics))
    return {"terms": terms, "user_id": row.user_id, "updated_at": row.updated_at}


def _has_term(term: Conditions, owner: str | None) -> Conditions:
    """Return the condition that a memory has a term.

    For one user an index finds the memories with the term; without a user, each memory is checked.
    """
    condition = " AND ".join(term.texts)
    if owner is None:
        terms = "memory_terms WHERE memory_terms.memory_id = memories.memory_id"
        # Without an offset PostgreSQL reads all memories with the term into a table of hashes.
        first = f"SELECT 1 FROM {terms} AND {condition} LIMIT 1 OFFSET 0"
        return Conditions((f"EXISTS ({first})",), term.values)
    ids = f"SELECT memory_id FROM memory_terms WHERE user_id = :owner AND {condition}"
    return Conditions((f"memory_id IN ({ids})",), {**term.values, "owner": owner})
