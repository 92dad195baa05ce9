"""Some pairs of operations on one run at sampled points, and those that once broke a rule.

With AGENTCTL_TEST_LONG=1 every pair stops at every point, as by `python -m tests.lab pairs`.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from random import Random

import pytest

from tests.kit.model import ModelEndpoint
from tests.lab.pairs import hosted, schedule, trial
from tests.lab.pairs.judge import Facts
from tests.lab.pairs.operations import OPERATIONS, SCENES, Place, wait_for
from tests.lab.pairs.queued import QUEUE_SCENES, list_kinds
from tests.lab.pairs.schedule import Actor, create_task
from tests.lab.pairs.search import (
    KINDS,
    Arena,
    Table,
    list_pairs,
    opened,
    search_pair,
    search_three,
)
from tests.lab.pairs.trial import Schedule
from tests.runs.components import LONG, collect_garbage, ignore_never_awaited

__all__ = ["collect_garbage"]

pytestmark = [
    ignore_never_awaited,
    pytest.mark.usefixtures("collect_garbage"),
    # The clients of libraries are not closed.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


SEED = 36

SHORT_KINDS = ["agent", "team", "durable-team", "workflow", "queued", "queued-durable"]
"""The kinds of the short search: their components need no library."""

KEPT = [
    ("agent", ("calling", "cancel", "cancel")),
    ("team", ("claiming member", "cancel", "cancel")),
    ("team", ("pausing", "cancel", "run")),
]
"""Pairs that have found defects."""

THREES = 200 if LONG else 4

SAMPLE = 12
"""Pairs that `make test` tries, those that have found defects among them."""


@pytest.fixture(autouse=True)
def points(monkeypatch: pytest.MonkeyPatch, model_endpoint: ModelEndpoint) -> None:
    """Install the points of the databases."""
    schedule.install(monkeypatch.setattr)
    monkeypatch.setattr(hosted, "URL", model_endpoint.base_url)


async def begin(arena: Arena, kind: str, scene: str) -> Place:
    """Execute a run until it is in a scene."""
    place = await arena.prepare(kind)
    await SCENES[scene][0](place)
    return place


async def end(place: Place) -> Facts:
    """Let the run of a scene go on to its end."""
    assert place.run is not None
    place.run.open()
    await wait_for(place.run)
    return await place.facts()


@pytest.mark.parametrize("kind", ["team", "agno-team"])
async def test_member_whose_claim_is_cancelled_ends_with_its_parent(
    model_endpoint: ModelEndpoint, kind: str
) -> None:
    async with opened("sqlite", "", model_endpoint, [kind]) as arena:
        place = await begin(arena, kind, "member claimed")
        await OPERATIONS["cancel"](place, place.servers[0])
        facts = await end(place)
    assert [run["status"] for run in facts.runs] == ["CANCELLED", "CANCELLED"], facts.describe()


@pytest.mark.parametrize("kind", ["agent", "team", "durable-team", "pydantic-ai"])
async def test_cancel_that_the_worker_does_not_know_yet_ends_an_approved_call(
    model_endpoint: ModelEndpoint, kind: str
) -> None:
    async with opened("sqlite", "", model_endpoint, [kind]) as arena:
        place = await begin(arena, kind, "calling")
        # The worker of the run does not look for requests any more.
        await place.servers[0].service.hosting.background.cancel_all()
        asked = len(model_endpoint.requests())
        await OPERATIONS["cancel"](place, place.servers[1])
        facts = await end(place)
        assert len(model_endpoint.requests()) == asked
    assert {run["status"] for run in facts.runs} == {"CANCELLED"}, facts.describe()


async def test_cancel_during_a_recovery_ends_the_run(model_endpoint: ModelEndpoint) -> None:
    async with opened("sqlite", "", model_endpoint, []) as arena:
        place = await begin(arena, "agent", "called")
        recovery = Actor("recover", stop_before="return_tree")
        recovery.start(OPERATIONS["recover"](place, place.servers[1]), place.servers[1])
        await recovery.reached.wait()
        await OPERATIONS["cancel"](place, place.servers[0])
        recovery.open()
        await wait_for(recovery)
        facts = await end(place)
    assert [run["status"] for run in facts.runs] == ["CANCELLED"], facts.describe()


async def test_cancel_of_a_member_counts_after_the_death_of_its_worker(
    model_endpoint: ModelEndpoint,
) -> None:
    async with opened("sqlite", "", model_endpoint, []) as arena:
        place = await begin(arena, "team", "lost")
        # The cancel finds that the worker is dead, and recovers its runs.
        await OPERATIONS["cancel member"](place, place.servers[1])
        facts = await place.facts()
    assert [run["status"] for run in facts.runs] == ["PENDING", "CANCELLED"], facts.describe()
    assert facts.pending == []


async def test_members_of_a_library_end_with_a_server_that_is_killed(
    model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The cancel waits for nothing before its point, also if it takes long.
    for name in ("BLOCKED_SECONDS", "WAIT_SECONDS"):
        monkeypatch.setattr(trial, name, 60.0)
    kill = Schedule("agno-team", "called", ("cancel member", "kill"), (3,), (0, 0))
    async with opened("sqlite", "", model_endpoint, ["agno-team"]) as arena:
        outcome = await arena.run(kill)
    assert outcome.reached, "the cancel ended before its point"
    assert not outcome.violations, outcome.violations


async def test_a_task_of_a_killed_server_is_not_left_to_the_garbage_collection() -> None:
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    loop = asyncio.get_running_loop()
    found = weakref.ref(create_task(loop, wait()))
    await asyncio.sleep(0)
    gc.collect()
    task = found()
    assert task is not None
    task.cancel()


async def test_pairs_leave_no_run_without_a_way_on(model_endpoint: ModelEndpoint) -> None:
    await search("sqlite", "", model_endpoint)


async def test_pairs_leave_no_run_without_a_way_on_with_postgres(
    model_endpoint: ModelEndpoint, postgres_url: str
) -> None:
    await search("postgres", postgres_url, model_endpoint)


async def test_sample_of_pairs_leaves_no_run_without_a_way_on(
    model_endpoint: ModelEndpoint,
) -> None:
    random = Random(SEED)
    table = Table()
    async with opened("sqlite", "", model_endpoint, SHORT_KINDS) as arena:
        for kind, pair in choose(random, SHORT_KINDS)[:SAMPLE]:
            await search_pair(arena, table, kind, pair, random=random, samples=1)
        table.violations += await arena.find_remaining()
    assert not table.violations, f"seed {SEED}\n{table.format()}"


async def search(engine: str, url: str, endpoint: ModelEndpoint) -> None:
    """Run the chosen pairs and some triples."""
    random = Random(SEED)
    table = Table()
    kinds = list(KINDS) if LONG else SHORT_KINDS
    async with opened(engine, url, endpoint, kinds) as arena:
        for kind, pair in choose(random, kinds):
            samples = None if LONG else 1
            await search_pair(arena, table, kind, pair, random=random, samples=samples)
        for _ in range(THREES):
            await search_three(arena, table, kinds, random)
        table.violations += await arena.find_remaining()
    assert not table.violations, f"seed {SEED}\n{table.format()}"


def choose(random: Random, kinds: list[str]) -> list[tuple[str, tuple[str, str, str]]]:
    """Return pairs with each operation as the first and as the second one, or, if long, all."""
    if LONG:
        return [(kind, pair) for pair in list_pairs() for kind in list_kinds(pair[0], kinds)]
    chosen = [*KEPT]
    for pairs in (list_pairs(SCENES), list_pairs(QUEUE_SCENES)):
        seen = set[tuple[str, str]]()
        random.shuffle(pairs)
        for pair in pairs:
            new = {("first", pair[1]), ("second", pair[2])} - seen
            if new:
                seen |= new
                chosen.append((random.choice(list_kinds(pair[0], kinds)), pair))
    return chosen


async def test_client_that_leaves_at_any_point_takes_its_run_out_of_the_queue(
    model_endpoint: ModelEndpoint,
) -> None:
    table = Table()
    async with opened("sqlite", "", model_endpoint, []) as arena:
        pair = ("queueing", "start", "leave")
        await search_pair(arena, table, "queued", pair, random=Random(SEED))
    assert not table.violations, table.format()
    assert table.schedules[pair[1:]] > 20


@pytest.mark.parametrize(
    "pair", [("pausing", "cancel", "run"), ("called", "recover", "run")], ids=", ".join
)
async def test_pair_at_every_statement_with_postgres(
    model_endpoint: ModelEndpoint, postgres_url: str, pair: tuple[str, str, str]
) -> None:
    table = Table()
    async with opened("postgres", postgres_url, model_endpoint, ["team"]) as arena:
        await search_pair(arena, table, "team", pair, random=Random(SEED))
    assert not table.violations, table.format()
    assert table.schedules[pair[1:]] > 10
