"""No text of one user reaches another one; AGENTCTL_TEST_LONG=1 searches for an hour."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from tests.lab import ledger
from tests.lab.markers.judge import Note, Outcome, judge_ledger
from tests.lab.markers.search import Plan, search
from tests.lab.markers.text import Marker, find_markers, write_entry

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"

SEED = 36

RUNS = 10**9 if LONG else 110
SAMPLE = 12
SECONDS = 1_800.0 if LONG else 300.0

PLACES = frozenset({"model over HTTP", "model over TLS", "mcp over HTTP", "mcp over stdio"})

ANN = Marker("a", "11111111", "aaaaaaaa")
LATER = Marker("a", "11111111", "bbbbbbbb")
OTHER_SESSION = Marker("a", "22222222", "cccccccc")
BOB = Marker("b", "33333333", "dddddddd")


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
async def test_texts_of_two_users_stay_apart(engine: str) -> None:
    # The libraries of vendors do not know the engine.
    vendors = LONG or engine == "sqlite"
    plan = Plan(engine, RUNS, SECONDS, SEED, kill_every=50, places=PLACES, vendors=vendors)
    outcome = await search(plan)
    assert outcome.violations == [], outcome.format()
    # The search has inspected something.
    assert outcome.kills
    assert sum(note.status == "COMPLETED" for note in outcome.notes) > RUNS / 4 or LONG
    assert outcome.entries.keys() >= PLACES
    names = {note.component.partition("/")[2] for note in outcome.notes}
    assert ({"anthropic", "google", "bedrock"} <= names) is vendors


async def test_texts_of_two_users_stay_apart_in_a_sample() -> None:
    plan = Plan(
        "sqlite",
        SAMPLE,
        SECONDS,
        SEED,
        deployment="one on sqlite",
        kill_every=10**9,
        vendors=False,
        run_seconds=4,
    )
    outcome = await search(plan)
    assert outcome.violations == []
    assert sum(note.status == "COMPLETED" for note in outcome.notes) > SAMPLE / 4


def test_marker_names_user_session_and_run() -> None:
    session = Marker("a").new_session(Random(1))
    marker = session.new_run(Random(2))
    assert find_markers(f"x{marker}, {marker}y") == {marker}
    assert find_markers(str(BOB).encode()) == {BOB}
    assert marker.may_see(session)
    assert marker.may_see(Marker("a"))
    assert not marker.may_see(OTHER_SESSION)
    assert not Marker("a").may_see(BOB)


@pytest.mark.parametrize("foreign", [BOB, OTHER_SESSION])
def test_client_with_a_foreign_marker_is_reported(foreign: Marker) -> None:
    outcome = Outcome()
    outcome.receive(ANN, f"{ANN} {LATER}".encode(), "sse")
    assert outcome.violations == []
    outcome.receive(ANN, f"{ANN} {foreign}".encode(), "sse")
    (violation,) = outcome.violations
    assert str(foreign) in violation


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ({"place": "model", "markers": [str(ANN), str(LATER)]}, ""),
        ({"place": "model", "markers": [str(ANN), str(BOB)]}, "together with"),
        ({"place": "model", "markers": [str(ANN), str(OTHER_SESSION)]}, "together with"),
        ({"place": "tool", "run": str(ANN), "argument": [str(ANN)], "run_id": "1"}, ""),
        ({"place": "tool", "run": str(ANN), "argument": [str(LATER)], "run_id": "1"}, "called it"),
        ({"place": "tool", "run": str(LATER), "argument": [str(LATER)], "run_id": "1"}, "metadata"),
    ],
)
def test_ledger_with_a_foreign_marker_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: dict[str, object], found: str
) -> None:
    path = tmp_path / "ledger.jsonl"
    monkeypatch.setenv(ledger.VARIABLE, str(path))
    write_entry("model", [ANN])
    ledger.write(**{"markers": [], **entry})
    outcome = Outcome(notes=[Note(ANN, "agents/http", "rest", "plain", "read", 0, run_id="1")])
    judge_ledger(ledger.Ledger(path), outcome)
    assert [found in each for each in outcome.violations] == ([True] if found else [])
    assert sum(outcome.entries.values()) == 2
