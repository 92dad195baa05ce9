"""The repository of idempotency keys, on both engines."""

from __future__ import annotations

import asyncio

import pytest

from agentctl.store.database import Steps, unit
from agentctl.store.repositories import idempotency, run_reads, runs, sessions
from agentctl.store.repositories.idempotency import KEY_LIFETIME, Claim, claim_key
from tests.kit.rows import START, a_run, a_session
from tests.store.conftest import Store


def test_a_key_belongs_to_the_first_run_that_claims_it(store: Store) -> None:
    assert store.write(claim_key("ann", "k", "hash", "r1", START)) is None
    earlier = Claim("r1", "hash", START)
    assert store.write(claim_key("ann", "k", "hash", "r2", START + 1)) == earlier
    assert store.write(claim_key("ann", "k", "another", "r3", START + 2)) == earlier
    assert store.write(claim_key("ann", "k", "hash", "r4", START + 3)) == earlier


def test_equal_keys_of_two_principals_are_different(store: Store) -> None:
    assert store.write(claim_key("ann", "k", "hash", "r1", START)) is None
    assert store.write(claim_key("bob", "k", "hash", "r2", START)) is None
    assert store.write(claim_key("ann", "K", "hash", "r3", START)) is None
    assert store.write(claim_key("ann", "k", "hash", "r4", START)) == Claim("r1", "hash", START)
    assert store.write(claim_key("bob", "k", "hash", "r4", START)) == Claim("r2", "hash", START)


def test_a_key_expires_after_a_day(store: Store) -> None:
    assert store.write(claim_key("ann", "k", "old", "r1", START)) is None
    last = START + KEY_LIFETIME - 1
    assert store.write(claim_key("ann", "k", "new", "r2", last)) == Claim("r1", "old", START)
    assert store.write(claim_key("ann", "k", "new", "r2", last + 1)) is None
    assert store.write(claim_key("ann", "k", "new", "r3", last + 2)) == Claim("r2", "new", last + 1)


def test_a_claim_is_rolled_back_with_its_run(store: Store) -> None:
    @unit
    def refused() -> Steps[None]:
        assert (yield from claim_key("ann", "k", "hash", "r1", START)) is None
        raise LookupError

    with pytest.raises(LookupError):
        store.write(refused())
    assert store.write(claim_key("ann", "k", "other", "r2", START)) is None


def test_concurrent_claims_create_one_run(store: Store) -> None:
    @unit
    def submit(number: int) -> Steps[str]:
        run_id = f"r{number}"
        earlier = yield from claim_key("ann", "k", "hash", run_id, START + number)
        if earlier is not None:
            return earlier.run_id
        yield from runs.create(a_run(run_id))
        return run_id

    async def all_at_once() -> list[str]:
        writes = (store.database.write(submit(number)) for number in range(20))
        return await asyncio.gather(*writes)

    store.write(sessions.create(a_session()))
    (run_id,) = set(store.run(all_at_once()))
    assert [row.run_id for row in store.read(run_reads.list_in_session("s1", limit=100))] == [
        run_id
    ]


def test_old_keys_are_deleted_in_batches(store: Store) -> None:
    @unit
    def many() -> Steps[None]:
        for number in range(idempotency.DELETE_BATCH + 3):
            yield from claim_key("ann", f"k{number}", "hash", f"r{number}", START)
        yield from claim_key("ann", "young", "hash", "r", START + 1)

    store.write(many())
    assert not store.read(idempotency.has_older(START))
    assert store.read(idempotency.has_older(START + 1))
    removed = [store.write(idempotency.delete_older(START + 1)) for _ in range(3)]
    assert removed == [idempotency.DELETE_BATCH, 3, 0]
    assert not store.read(idempotency.has_older(START + 1))
    kept = store.write(claim_key("ann", "young", "hash", "r2", START + 1))
    assert kept == Claim("r", "hash", START + 1)


def test_a_key_outlives_its_run(store: Store) -> None:
    store.write(sessions.create(a_session()))
    store.write(claim_key("ann", "k", "hash", "r1", START))
    store.write(runs.create(a_run("r1")))
    store.write(sessions.delete("s1"))
    assert store.write(claim_key("ann", "k", "hash", "r2", START)) == Claim("r1", "hash", START)
