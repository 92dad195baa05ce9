"""The repository of service accounts, on both engines."""

from __future__ import annotations

import asyncio
from typing import Any

from agentctl.interface.requests.administration import AccountFilter
from agentctl.store.listing import Slice
from agentctl.store.repositories import accounts
from agentctl.store.repositories.accounts import AccountRow
from tests.kit.rows import START
from tests.store.conftest import Store

MINUTE = 60_000_000


def an_account(account_id: str = "a1", **given: Any) -> AccountRow:
    values: dict[str, Any] = {
        "name": "ci",
        "token_hash": f"hash of {account_id}",
        "token_hint": "b3Xk",
        "scopes": '["agents:read"]',
        "created_by": "ann",
        "created_at": START,
        "expires_at": START + 9 * MINUTE,
        "last_used_at": None,
        "revoked_at": None,
    }
    return AccountRow(account_id, **values | given)


def test_a_stored_account_is_read_unchanged(store: Store) -> None:
    row = an_account(scopes='["agents:é:read"]', created_by=None, expires_at=None)
    assert store.write(accounts.create(row))
    assert store.read(accounts.get("a1")) == row
    assert store.read(accounts.get_by_token_hash("hash of a1")) == row


def test_only_the_whole_hash_finds_an_account(store: Store) -> None:
    assert store.write(accounts.create(an_account()))
    for text in ("", "hash of a", "hash of a11", "HASH OF A1", "hash of a_", "%"):
        assert store.read(accounts.get_by_token_hash(text)) is None, text
        assert store.read(accounts.get(text)) is None, text


def test_one_active_account_has_a_name(store: Store) -> None:
    assert store.write(accounts.create(an_account()))
    assert not store.write(accounts.create(an_account("a2")))
    assert store.read(accounts.get("a2")) is None
    assert store.write(accounts.create(an_account("a3", name="CI")))


def test_a_revoked_account_frees_its_name(store: Store) -> None:
    assert store.write(accounts.create(an_account()))
    assert store.write(accounts.revoke("a1", START + 1))
    assert store.write(accounts.create(an_account("a2")))
    assert not store.write(accounts.create(an_account("a3")))


def test_an_expired_account_frees_its_name(store: Store) -> None:
    assert store.write(accounts.create(an_account()))
    end = START + 9 * MINUTE
    assert not store.write(accounts.create(an_account("a2", created_at=end - 1, expires_at=None)))
    assert store.write(accounts.create(an_account("a2", created_at=end, expires_at=None)))
    assert not store.write(accounts.create(an_account("a3", created_at=end + 99 * MINUTE)))


def test_one_of_many_concurrent_accounts_gets_the_name(store: Store) -> None:
    async def all_at_once() -> list[bool]:
        rows = (an_account(f"a{number}") for number in range(20))
        return await asyncio.gather(*(store.database.write(accounts.create(row)) for row in rows))

    assert store.run(all_at_once()).count(True) == 1


def test_an_account_is_revoked_once_expired_or_not(store: Store) -> None:
    store.write(accounts.create(an_account()))
    store.write(accounts.create(an_account("a2", name="old", expires_at=START + 1)))
    assert not store.write(accounts.revoke("missing", START + 1))
    for account_id in ("a1", "a2"):
        assert store.write(accounts.revoke(account_id, START + 2))
        assert not store.write(accounts.revoke(account_id, START + 3))
        row = store.read(accounts.get(account_id))
        assert row is not None
        assert row.revoked_at == START + 2


def test_a_use_is_stored_when_it_is_due(store: Store) -> None:
    def last_used() -> int | None:
        row = store.read(accounts.get("a1"))
        assert row is not None
        return row.last_used_at

    store.write(accounts.create(an_account()))
    store.write(accounts.record_use("a1", START, due=START - MINUTE))
    assert last_used() == START
    store.write(accounts.record_use("a1", START + 59, due=START))
    assert last_used() == START
    store.write(accounts.record_use("a1", START + MINUTE + 1, due=START + 1))
    assert last_used() == START + MINUTE + 1
    store.write(accounts.record_use("missing", START, due=START))


def test_accounts_are_listed_by_creation_time(store: Store) -> None:
    for number in range(5):
        row = an_account(f"a{number}", name=f"n{number % 2}", created_at=START + number // 2)
        store.write(accounts.create(row))
        store.write(accounts.revoke(row.id, START + 9))

    def page(name: str | None = None, **part: Any) -> Any:
        return store.read(accounts.list_page(AccountFilter(name), Slice(**part)))

    assert [row.id for row in page().rows] == ["a4", "a3", "a2", "a1", "a0"]
    assert [row.id for row in page(order="asc", offset=1, limit=2).rows] == ["a1", "a2"]
    first = page(limit=2)
    assert (first.total, first.capped, first.next) == (5, False, (START + 1, "a3"))
    second = page(limit=3, after=first.next)
    assert ([row.id for row in second.rows], second.next) == (["a2", "a1", "a0"], None)
    named = page(name="n1")
    assert ([row.id for row in named.rows], named.total) == (["a3", "a1"], 2)
    assert page(name="N1").rows == []
