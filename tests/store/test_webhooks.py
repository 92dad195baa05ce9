"""The repository of webhook deliveries, on both engines."""

from __future__ import annotations

import pytest

from agentctl.store.repositories import webhooks
from agentctl.store.repositories.webhooks import AttemptEnd, NewDelivery
from agentctl.webhooks.attempts import SCHEDULE
from agentctl.webhooks.deliveries import _WAITS
from tests.kit.rows import START
from tests.store.conftest import Store

DAY = 24 * 60 * 60 * 1_000_000


def add(store: Store, name: str, created_at: int, state: str = "waiting") -> None:
    """Store a delivery of the endpoint `ops`, and the end of its first attempt."""
    store.write(
        webhooks.create(NewDelivery(name, name, "ops", "run.failed", "r", "{}", created_at))
    )
    if state != "waiting":
        (attempt,) = store.write(webhooks.claim("ops", "w", created_at, created_at + 9, 1))
        end = AttemptEnd(state, created_at, 200, None, created_at if state == "delivered" else None)
        assert store.write(webhooks.end_attempt(attempt, "w", end))


def list_left(store: Store, *names: str) -> list[str]:
    return [name for name in names if store.read(webhooks.get(name)) is not None]


def test_old_deliveries_are_deleted_by_their_state(store: Store) -> None:
    for name, state in (("a", "delivered"), ("b", "dead")):
        add(store, f"{name}-old", START, state)
        add(store, f"{name}-new", START + 10 * DAY, state)
    add(store, "c-old", START)
    before = START + 7 * DAY
    assert store.read(webhooks.has_older(before, START))
    assert store.write(webhooks.delete_older(before, START)) == 1
    everything = ("a-old", "a-new", "b-old", "b-new", "c-old")
    assert list_left(store, *everything) == ["a-new", "b-old", "b-new", "c-old"]
    assert store.write(webhooks.delete_older(before, before)) == 2
    assert list_left(store, *everything) == ["a-new", "b-new"]
    assert not store.read(webhooks.has_older(before, before))


def test_surplus_drops_what_waits_last(store: Store) -> None:
    add(store, "dead", START, "dead")
    for number in range(2):
        add(store, f"delivered-{number}", START + 10 + number, "delivered")
    for number in range(3):
        add(store, f"waiting-{number}", START + 20 + number)
    everything = (
        "dead", "delivered-0", "delivered-1", "waiting-0", "waiting-1", "waiting-2",
    )  # fmt: skip
    assert store.write(webhooks.drop_surplus(6)) == 0
    assert store.write(webhooks.drop_surplus(5)) == 0
    assert "delivered-0" not in list_left(store, *everything)
    assert store.write(webhooks.drop_surplus(2)) == 1
    assert list_left(store, *everything) == ["waiting-1", "waiting-2"]


def test_ended_lease_is_claimed_again_and_its_end_is_refused(store: Store) -> None:
    add(store, "a", START)
    (first,) = store.write(webhooks.claim("ops", "w1", START, START + 60, 4))
    assert store.write(webhooks.claim("ops", "w2", START + 59, START + 99, 4)) == []
    (second,) = store.write(webhooks.claim("ops", "w2", START + 60, START + 120, 4))
    end = AttemptEnd("delivered", START, 204, None, START)
    assert not store.write(webhooks.end_attempt(first, "w1", end))
    assert store.write(webhooks.end_attempt(second, "w2", end))
    row = store.read(webhooks.get("a"))
    assert row is not None
    assert (row.state, row.attempts) == ("delivered", 2)


def add_failed(store: Store, name: str, attempts: int, status: int, seconds: float) -> None:
    """Store a delivery after some failures, whose next attempt is due in some seconds."""
    store.write(webhooks.create(NewDelivery(name, name, "ops", "run.failed", "r", "{}", 0)))
    for number in range(1, attempts + 1):
        (attempt,) = store.write(webhooks.claim("ops", "w", 0, 0, 1))
        due = int(seconds * 1_000_000) if number == attempts else 0
        end = AttemptEnd("waiting", due, status, "x", None)
        assert store.write(webhooks.end_attempt(attempt, "w", end))


@pytest.mark.parametrize("attempts", range(1, len(SCHEDULE)))
def test_wait_that_the_schedule_allows_is_kept(store: Store, attempts: int) -> None:
    allowed = SCHEDULE[attempts] * 1.1
    add_failed(store, "due", attempts, 500, allowed)
    assert store.write(webhooks.recall(_WAITS, 0)) == 0
    # A minute of tolerance, because the clocks of servers differ.
    assert store.write(webhooks.recall(_WAITS, -61_000_000)) == 1


def test_wait_that_the_receiver_asked_for_is_kept(store: Store) -> None:
    add_failed(store, "due", 1, 503, 86_400)
    assert not store.read(webhooks.has_too_long_waits(_WAITS, 0))


def test_lease_of_another_process_is_kept(store: Store) -> None:
    store.write(webhooks.create(NewDelivery("leased", "leased", "ops", "run.failed", "r", "{}", 0)))
    (_,) = store.write(webhooks.claim("ops", "w", 0, 60_000_000, 1))
    assert not store.read(webhooks.has_too_long_waits(_WAITS, 0))
    assert store.read(webhooks.has_too_long_waits(_WAITS, -3_600_000_000))
