"""Runs over HTTP: runs per second, time to the first word, and the n-th run of a session."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import urlsplit
from uuid import uuid4

from bench.client import Client, build_message, encode_form
from bench.load import CONNECTIONS, Batch, compare_loads
from bench.measure import Row, Target, at_most, build_ratio_row, run_rounds
from bench.reads import AGENT, LEAST
from bench.servers import RunningServer

__all__ = ["compare_appends", "compare_first_words", "compare_rates", "measure_long_session"]

WORDS = 10


def compare_rates(
    ours: RunningServer, theirs: RunningServer, name: str, goals: Mapping[str, Target]
) -> Iterator[Row]:
    """Compare runs per second, each in a new session; the other server has this name."""
    path = f"/agents/{AGENT}/runs"
    for work, stream, words, requests, clients in (
        ("runs, plain", False, 3, 160, CONNECTIONS),
        ("runs, plain, one at a time", False, 3, 100, 1),
        (f"runs, streamed, {WORDS} words", True, WORDS, 64, CONNECTIONS),
    ):
        body = encode_form(stream=stream, words=words)
        own = ours.post(path, body, seconds=2, connections=clients)
        other = Batch(theirs.post(path, body, connections=clients), requests)
        yield compare_loads(work, own, name, other, 3, goals.get(work, LEAST))


def compare_first_words(
    ours: RunningServer, theirs: RunningServer, name: str, endpoint: str
) -> Iterator[Row]:
    """Compare the time from a request to the first word, without the time of the model itself."""
    acts = {
        "ours": _measure_first_word(ours),
        "theirs": _measure_first_word(theirs),
        "model": _measure_first_word_of_model(endpoint),
    }
    if ours.twin is not None:
        acts["twin"] = _measure_first_word(ours.twin)
    found = run_rounds(acts, 7)
    over = {
        name: [one - own for one, own in zip(found[name], found["model"], strict=True)]
        for name in acts
    }
    row = build_ratio_row(
        "first word over the model's own", over["ours"], name, over["theirs"], " ms"
    )
    yield row.with_postgres(over["twin"], over["ours"], " ms") if ours.twin is not None else row


def _measure_first_word(place: RunningServer) -> Callable[[], float]:
    body = encode_form(stream=True, words=1)
    path = f"/agents/{AGENT}/runs"
    kind = "application/x-www-form-urlencoded"

    def act() -> float:
        with Client(place.port, place.headers) as client:
            took = [client.first_word(path, body, kind, b"RunContent") for _ in range(7)]
        return statistics.median(took) * 1_000

    return act


def _measure_first_word_of_model(endpoint: str) -> Callable[[], float]:
    messages = [{"role": "user", "content": build_message(1)}]
    body = json.dumps({"model": "paced", "stream": True, "messages": messages})
    port = urlsplit(endpoint).port
    assert port is not None

    def act() -> float:
        path = "/v1/chat/completions"
        kind = "application/json"
        with Client(port, {}) as client:
            took = [client.first_word(path, body, kind, b"delta") for _ in range(7)]
        return statistics.median(took) * 1_000

    return act


def compare_appends(ours: RunningServer, theirs: RunningServer, name: str) -> Iterator[Row]:
    """Compare the 1,000th run of a session with the first, one after the other."""
    acts = {"new": _measure_append(ours, 9), "long": _measure_append(ours, 9, "append-999")}
    if ours.twin is not None:
        acts["twin"] = _measure_append(ours.twin, 9, "append-999")
    found = run_rounds(acts, 7)
    work = "1,000th run of a session"
    goal = at_most(1.2)
    row = build_ratio_row(work, found["long"], "its 1st", found["new"], " ms", goal)
    yield row.with_postgres(found["twin"], found["long"], " ms") if ours.twin is not None else row
    found = run_rounds(
        {"new": _measure_append(theirs, 1), "long": _measure_append(theirs, 1, "append-999")}, 3
    )
    yield build_ratio_row(f"the same of {name}", found["long"], "its 1st", found["new"], " ms")


def measure_long_session(ours: RunningServer) -> Iterator[Row]:
    """Compare the 10,000th run with the first; measure the effect of the default history."""
    goal = at_most(1.2)
    found = run_rounds(
        {"new": _measure_append(ours, 9), "long": _measure_append(ours, 9, "runs-10000")}, 7
    )
    yield build_ratio_row(
        "10,000th run of a session", found["long"], "its 1st", found["new"], " ms", goal
    )
    agent = "remembers"
    few = "listed-0"
    many = "runs-1000"
    acts = {
        "few": _measure_append(ours, 9, few, agent),
        "many": _measure_append(ours, 9, many, agent),
    }
    found = run_rounds(acts, 7)
    work = "1,000th run, 5 earlier ones sent along"
    yield build_ratio_row(work, found["many"], "its 6th", found["few"], " ms", goal)


def _measure_append(
    place: RunningServer, count: int, session_id: str | None = None, agent: str = AGENT
) -> Callable[[], float]:
    """Return a measurement of the median time of `count` runs in one session or in new ones."""

    def act() -> float:
        took = []
        with Client(place.port, place.headers) as client:
            for _ in range(count):
                start = time.perf_counter()
                client.run(agent, session_id or uuid4().hex)
                took.append(time.perf_counter() - start)
        return statistics.median(took) * 1_000

    return act
