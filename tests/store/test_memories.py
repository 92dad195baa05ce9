"""Memories in both databases: terms, search, and the limits of what a user sees."""

from __future__ import annotations

import pytest

from agentctl.interface.requests import Page
from agentctl.interface.requests.memories import MemoryFilter
from agentctl.records.memories import build_terms, split_words
from agentctl.records.times import now
from agentctl.store.listing import Slice
from agentctl.store.repositories import memories
from agentctl.store.visibility import EVERYONE, Visibility
from tests.store.conftest import Store

ADA = Visibility(everyone=False, user_id="ada")
BOB = Visibility(everyone=False, user_id="bob")
NEWEST = Slice("updated_at", "desc", 100, 0, None)


def _remember(store: Store, user: str, text: str, *topics: str) -> str:
    row = memories.build_memory(user, text, topics, now=now())
    store.write(memories.create(row))
    return row.memory_id


def _search(store: Store, user: str, text: str, limit: int = 10) -> list[str]:
    return [row.memory for row in store.read(memories.search(user, text, limit))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Likes tea, likes TEA.", ["likes", "tea"]),
        ("Straße ﬁne Ⅷ", ["strasse", "fine", "viii"]),
        ("Ελλάς עברית 日本語", ["ελλάσ", "עברית", "日本語"]),
        ("?! -- …", []),
        ("x" * 100, ["x" * 64]),
    ],
)
def test_words_are_folded(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def test_a_long_text_has_a_bounded_number_of_terms() -> None:
    assert len(build_terms(" ".join(map(str, range(4_000))), ["a"])) == 513


def test_a_memory_with_a_rare_word_comes_first(store: Store) -> None:
    for text in ("tea at noon", "tea in a zeppelin", "tea at night", "coffee"):
        _remember(store, "ada", text)
    assert _search(store, "ada", "Tea, zeppelin!") == [
        "tea in a zeppelin", "tea at night", "tea at noon",
    ]  # fmt: skip
    assert _search(store, "ada", "tea", limit=1) == ["tea at night"]
    assert _search(store, "ada", "te") == []
    assert _search(store, "ada", "…") == []


def test_an_update_replaces_the_terms(store: Store) -> None:
    memory_id = _remember(store, "ada", "likes tea", "food")
    changed = store.write(memories.update(memory_id, ADA, "likes coffee", ["drinks"], 2**50))
    assert changed is not None
    assert changed.updated_at == 2**50
    assert _search(store, "ada", "tea") == []
    assert _search(store, "ada", "coffee") == ["likes coffee"]
    assert store.read(memories.list_topics(ADA, None)) == ["drinks"]


def test_a_user_never_sees_the_memories_of_another(store: Store) -> None:
    mine = _remember(store, "ada", "likes tea", "food")
    _remember(store, "bob", "likes tea too", "food", "secret")
    assert _search(store, "bob", "likes tea") == ["likes tea too"]
    assert store.read(memories.get(mine, BOB)) is None
    assert not store.write(memories.delete(mine, BOB))
    unchanged = memories.update(mine, BOB, "stolen", [], 2**50)
    assert store.write(unchanged) is None
    for visibility, wanted, texts in (
        (ADA, MemoryFilter(search_content="tea"), ["likes tea"]),
        (ADA, MemoryFilter(topics=("secret",)), []),
        (ADA, MemoryFilter(user_id="bob"), []),
        (BOB, MemoryFilter(topics=("food",), search_content="like"), ["likes tea too"]),
        (EVERYONE, MemoryFilter(topics=("food",)), ["likes tea too", "likes tea"]),
        (EVERYONE, MemoryFilter(user_id="ada", search_content="tea"), ["likes tea"]),
        (EVERYONE, MemoryFilter(search_content="too"), ["likes tea too"]),
    ):
        found = store.read(memories.list_page(wanted, visibility, NEWEST))
        assert [row.memory for row in found.rows] == texts
        assert found.total == len(texts)
    assert store.read(memories.list_topics(ADA, "bob")) == []


def test_all_memories_of_a_user_are_deleted_with_their_terms(store: Store) -> None:
    for number in range(3):
        _remember(store, "ada", f"fact {number}")
    _remember(store, "bob", "fact")
    assert store.write(memories.delete_all_of_user("ada")) == 3
    assert _search(store, "ada", "fact") == []
    assert _search(store, "bob", "fact") == ["fact"]
    assert store.read(memories.list_recent("ada", 5)) == []


def test_pages_follow_each_other(store: Store) -> None:
    texts = [f"fact {number}" for number in range(5)]
    for text in texts:
        _remember(store, "ada", text)
    found = list[str]()
    position = None
    while True:
        part = Slice("created_at", "asc", 2, 0, position)
        page = store.read(memories.list_page(MemoryFilter(page=Page(limit=2)), ADA, part))
        found += [row.memory for row in page.rows]
        position = page.next
        if position is None:
            break
    assert found == texts
