"""Rows about memories."""

from __future__ import annotations

from collections.abc import Iterator

from agentctl.interface.requests import Page
from agentctl.interface.requests.memories import (
    MemoryDeletion,
    MemoryFilter,
    MemoryPatch,
    NewMemory,
)
from tests.contract.rows import FORBIDDEN, INVALID, NOT_FOUND, Row

__all__ = ["memory_rows"]

WHO = "rememberer"


def memory_rows() -> Iterator[Row]:
    yield from _creation_rows()
    yield from _read_rows()
    yield from _change_rows()


def _creation_rows() -> Iterator[Row]:
    operation = "create_memory"
    path = "POST /memories"
    yield Row(
        operation,
        path,
        lambda o, at: o.memories.create(NewMemory("Likes GREEN tea, straße")),
        WHO,
        201,
        ('"user_id":"me"', '"run_id":null', '"topics":[]'),
        body={"memory": "Likes GREEN tea, straße", "topics": []},
        keeps={"memory": "memory_id"},
    )

    yield Row(
        operation,
        path,
        lambda o, at: o.memories.create(
            NewMemory("Lives in Rome", ("home", "é"), "me", "echo", "crew")
        ),
        WHO,
        201,
        ('"topics":["home","é"]', '"agent_id":"echo"', '"team_id":"crew"'),
        body={
            "memory": "Lives in Rome",
            "topics": ["home", "é"],
            "user_id": "me",
            "agent_id": "echo",
            "team_id": "crew",
        },
        keeps={"bulk_memory": "memory_id"},
    )

    yield Row(
        operation,
        path,
        lambda o, at: o.memories.create(NewMemory("Likes black tea", ("secret",), "other")),
        "admin",
        201,
        ('"user_id":"other"',),
        body={"memory": "Likes black tea", "topics": ["secret"], "user_id": "other"},
        keeps={"their_memory": "memory_id"},
    )

    for who, status, text, user in (
        (WHO, 403, "FORBIDDEN", "other"),
        ("me", 403, "memories:write", None),
        ("nameless", 400, "no subject", None),
    ):
        yield Row(
            operation,
            path,
            lambda o, at, user=user: o.memories.create(NewMemory("x", (), user)),  # type: ignore[misc]
            who,
            status,
            (text,),
            body={"memory": "x", "topics": []} | ({"user_id": user} if user else {}),
        )

    yield Row(
        operation,
        path,
        lambda o, at: o.memories.create(NewMemory(" ", ("a,b",))),
        WHO,
        422,
        INVALID,
        body={"memory": " ", "topics": ["a,b"]},
    )


def _read_rows() -> Iterator[Row]:
    operation = "get_memories"
    yield Row(
        operation,
        "GET /memories?sort_by=updated_at",
        lambda o, at: o.memories.list(MemoryFilter()),
        WHO,
        has=("{memory}", "{bulk_memory}"),
        lacks=("{their_memory}",),
    )

    yield Row(
        operation,
        "GET /memories?user_id=me&agent_id=echo&team_id=crew&topics=home%2C%C3%A9"
        "&search_content=ROME&limit=5&sort_order=asc&sort_by=created_at",
        lambda o, at: o.memories.list(
            MemoryFilter(
                "me", "echo", "crew", ("home", "é"), "ROME", Page(limit=5, sort_order="asc")
            )
        ),
        WHO,
        has=("{bulk_memory}", '"total_count":1'),
    )

    yield Row(
        operation,
        "GET /memories?search_content=Strasse%20likes&sort_by=updated_at",
        lambda o, at: o.memories.list(MemoryFilter(search_content="Strasse likes")),
        WHO,
        has=("{memory}", '"total_count":1'),
    )

    yield Row(
        operation,
        "GET /memories?user_id=other&sort_by=updated_at",
        lambda o, at: o.memories.list(MemoryFilter("other")),
        WHO,
        has=('"data":[]',),
    )

    yield Row(
        operation,
        "GET /memories?search_content=%3F&sort_by=updated_at",
        lambda o, at: o.memories.list(MemoryFilter(search_content="?")),
        WHO,
        422,
        ("search_content",),
    )

    operation = "get_memory"
    yield Row(
        operation,
        "GET /memories/{memory}",
        lambda o, at: o.memories.get(at["memory"]),
        WHO,
        has=("Likes GREEN tea",),
    )

    yield Row(
        operation,
        "GET /memories/{their_memory}",
        lambda o, at: o.memories.get(at["their_memory"]),
        WHO,
        404,
        NOT_FOUND,
    )

    yield Row(
        operation,
        "GET /memories/{their_memory}",
        lambda o, at: o.memories.get(at["their_memory"]),
        "admin",
        has=('"user_id":"other"',),
    )

    operation = "get_memory_topics"
    yield Row(
        operation,
        "GET /memory_topics",
        lambda o, at: o.memories.list_topics(),
        WHO,
        has=('["home","é"]',),
    )

    yield Row(
        operation,
        "GET /memory_topics?user_id=other",
        lambda o, at: o.memories.list_topics(user_id="other"),
        WHO,
        has=("[]",),
    )


def _change_rows() -> Iterator[Row]:
    operation = "update_memory"
    path = "PATCH /memories/{memory}"
    yield Row(
        operation,
        path,
        lambda o, at: o.memories.update(at["memory"], MemoryPatch("Likes coffee")),
        WHO,
        has=("Likes coffee", '"topics":[]'),
        body={"memory": "Likes coffee"},
    )

    yield Row(
        operation,
        path,
        lambda o, at: o.memories.update(at["memory"], MemoryPatch(None, ("drinks",))),
        WHO,
        has=("Likes coffee", '"topics":["drinks"]'),
        body={"topics": ["drinks"]},
    )

    yield Row(
        operation,
        path,
        lambda o, at: o.memories.update(at["memory"], MemoryPatch("")),
        WHO,
        422,
        ("memory",),
        body={"memory": ""},
    )

    yield Row(
        operation,
        "PATCH /memories/{their_memory}",
        lambda o, at: o.memories.update(at["their_memory"], MemoryPatch("x")),
        WHO,
        404,
        NOT_FOUND,
        body={"memory": "x"},
    )

    operation = "delete_memories"
    path = "DELETE /memories"
    yield Row(
        operation,
        path,
        lambda o, at: o.memories.delete_several(
            MemoryDeletion((at["bulk_memory"], at["their_memory"]))
        ),
        WHO,
        404,
        NOT_FOUND,
        body={"memory_ids": ["{bulk_memory}", "{their_memory}"]},
    )

    yield Row(
        operation,
        path,
        lambda o, at: o.memories.delete_several(MemoryDeletion(user_id="other", all=True)),
        WHO,
        403,
        FORBIDDEN,
        body={"user_id": "other", "all": True},
    )

    yield Row(
        operation,
        path,
        lambda o, at: o.memories.delete_several(MemoryDeletion((at["bulk_memory"],), "me")),
        WHO,
        204,
        body={"memory_ids": ["{bulk_memory}"], "user_id": "me"},
    )

    operation = "delete_memory"
    for status in (204, 404):
        yield Row(
            operation,
            "DELETE /memories/{memory}",
            lambda o, at: o.memories.delete(at["memory"]),
            WHO,
            status,
        )

    yield Row(
        operation,
        "DELETE /memories/a%20b%C3%BC%3F%25",
        lambda o, at: o.memories.delete("a bü?%"),
        WHO,
        404,
        NOT_FOUND,
    )

    yield Row(
        "get_memory",
        "GET /memories/{their_memory}",
        lambda o, at: o.memories.get(at["their_memory"]),
        "admin",
        has=("Likes black tea", '"topics":["secret"]'),
    )

    yield Row(
        "delete_memories",
        path,
        lambda o, at: o.memories.delete_several(MemoryDeletion((at["their_memory"],), "me")),
        "admin",
        404,
        NOT_FOUND,
        body={"memory_ids": ["{their_memory}"], "user_id": "me"},
    )

    yield Row(
        "delete_memories",
        path,
        lambda o, at: o.memories.delete_several(MemoryDeletion(user_id="other", all=True)),
        "admin",
        204,
        body={"user_id": "other", "all": True},
    )
