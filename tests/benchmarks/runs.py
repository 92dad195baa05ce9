"""Runs over HTTP: how many a second, how soon the first word, and the n-th of a session."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit
from uuid import uuid4

from tests.benchmarks.client import Client, build_request, encode_form
from tests.benchmarks.load import Batch, beside
from tests.benchmarks.measure import Row, at_least, at_most, compared, turns
from tests.benchmarks.places import Place
from tests.benchmarks.reads import AGENT

__all__ = ["appends", "first_words", "long_append", "rates"]

WORDS = 10


def rates(ours: Place, theirs: Place) -> Iterator[Row]:
    """Runs a second, each in a session of its own."""
    path = f"/agents/{AGENT}/runs"
    for work, stream, words, requests, goal in (
        ("runs, plain", False, 3, 160, at_least(1.5)),
        (f"runs, streamed, {WORDS} words", True, WORDS, 64, None),
    ):
        body = encode_form(stream=stream, words=words)
        other = Batch(theirs.post(path, body), requests)
        yield beside(work, ours.post(path, body, seconds=2), "AgentOS", other, 3, goal)


def first_words(ours: Place, theirs: Place, endpoint: str) -> Iterator[Row]:
    """From a request to the first word of the answer, over what the model itself takes."""
    acts = {
        "ours": _first_word(ours),
        "theirs": _first_word(theirs),
        "model": _first_of_model(endpoint),
    }
    found = turns(acts, 7)
    over = {
        name: [one - own for one, own in zip(found[name], found["model"], strict=True)]
        for name in ("ours", "theirs")
    }
    yield compared(
        "first word over the model's own", over["ours"], "AgentOS", over["theirs"], " ms"
    )


def _first_word(place: Place) -> Callable[[], float]:
    body = encode_form(stream=True, words=1)
    path, kind = f"/agents/{AGENT}/runs", "application/x-www-form-urlencoded"

    def act() -> float:
        with Client(place.port, place.work.headers) as client:
            took = [client.first_word(path, body, kind, b"RunContent") for _ in range(7)]
        return statistics.median(took) * 1_000

    return act


def _first_of_model(endpoint: str) -> Callable[[], float]:
    messages = [{"role": "user", "content": build_request(1)}]
    body = json.dumps({"model": "paced", "stream": True, "messages": messages})
    port = urlsplit(endpoint).port
    assert port is not None

    def act() -> float:
        path, kind = "/v1/chat/completions", "application/json"
        with Client(port, {}) as client:
            took = [client.first_word(path, body, kind, b"delta") for _ in range(7)]
        return statistics.median(took) * 1_000

    return act


def appends(ours: Place, theirs: Place) -> Iterator[Row]:
    """The 1,000th run of a session beside the first of one, one after the other."""
    found = turns({"new": _append(ours, 9), "long": _append(ours, 9, "append-999")}, 7)
    work, goal = "1,000th run of a session", at_most(1.2)
    yield compared(work, found["long"], "its 1st", found["new"], " ms", goal)
    found = turns({"new": _append(theirs, 1), "long": _append(theirs, 1, "append-999")}, 3)
    yield compared("the same of AgentOS", found["long"], "its 1st", found["new"], " ms")


def long_append(ours: Place) -> Iterator[Row]:
    """The 10,000th beside the first; and with the history that an agent has by default."""
    goal = at_most(1.2)
    found = turns({"new": _append(ours, 9), "long": _append(ours, 9, "runs-10000")}, 7)
    yield compared("10,000th run of a session", found["long"], "its 1st", found["new"], " ms", goal)
    agent, few, many = "remembers", "listed-0", "runs-1000"
    acts = {"few": _append(ours, 9, few, agent), "many": _append(ours, 9, many, agent)}
    found, work = turns(acts, 7), "1,000th run, 5 earlier ones sent along"
    yield compared(work, found["many"], "its 6th", found["few"], " ms", goal)


def _append(
    place: Place, count: int, session_id: str | None = None, agent: str = AGENT
) -> Callable[[], float]:
    """The median time of so many runs in a session, or each in a new one."""

    def act() -> float:
        took = []
        with Client(place.port, place.work.headers) as client:
            for _ in range(count):
                start = time.perf_counter()
                client.run(agent, session_id or uuid4().hex)
                took.append(time.perf_counter() - start)
        return statistics.median(took) * 1_000

    return act
