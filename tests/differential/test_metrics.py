"""The joined metrics of several processes, and those of prometheus-client's multiprocess mode."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest, values
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics import Counter, Gauge
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.values import MultiProcessValue

from agentctl.server.processes.metrics_endpoint import (
    MetricsChannel,
    answer_metrics_requests,
    gather_metrics,
)
from tests.differential.comparison import Comparison, Outcome
from tests.kit.conditions import PATIENCE

WORKERS = 3
LABELS = (
    "main", "", "a b", 'a"b', "a\\b", "a\\n", "line\nline", "# HELP x y", "\n# HELP x y\n",
    "\n# TYPE x gauge", "\u00e4\U0001f600", "} 1", "\r", "\u2028",
)  # fmt: skip
HELPS = ("Runs.", "Runs # HELP runs", "a\\b", "line\nline", "\u00e4")
NUMBERS = (0, 1, 0.1, 1e300, 2**53, 12)

Numbers = dict[str, float]
Samples = dict[tuple[str, str, str], float]


class Worker:
    """The numbers of a process, as both sides count them."""

    def __init__(self, slot: int, helps: tuple[str, str]) -> None:
        self.slot = slot
        self.helps = helps
        self.counts: Numbers = {}
        self.gauges: Numbers = {}

    def render(self, slot: int) -> str:
        """Return the text of the process, as `ServerMetrics.render` does."""
        registry = CollectorRegistry()
        registry.register(self)  # type: ignore[arg-type]
        assert slot == self.slot
        return generate_latest(registry).decode()

    def collect(self) -> list[Any]:
        counted = CounterMetricFamily("runs", self.helps[0], labels=("worker", "name"))
        gauged = GaugeMetricFamily("live", self.helps[1], labels=("worker", "name"))
        for family, numbers in ((counted, self.counts), (gauged, self.gauges)):
            for name, number in numbers.items():
                family.add_metric((str(self.slot), name), number)
        return [counted, gauged]

    def count_by_library(self) -> None:
        """Count the same numbers in the files of the multiprocess mode."""
        values.ValueClass = MultiProcessValue(lambda: self.slot)
        counted = Counter("runs", self.helps[0], ("name",), registry=None)
        gauged = Gauge("live", self.helps[1], ("name",), registry=None)
        for name, number in self.counts.items():
            counted.labels(name).inc(number)
        for name, number in self.gauges.items():
            gauged.labels(name).set(number)


def pick_workers(chance: Random) -> list[Worker]:
    helps = (chance.choice(HELPS), chance.choice(HELPS))
    workers = [Worker(slot, helps) for slot in range(WORKERS)]
    for worker in workers:
        for numbers in (worker.counts, worker.gauges):
            names = chance.sample(LABELS, chance.randrange(1, 5))
            numbers |= {name: chance.choice(NUMBERS) for name in names}
    return workers


def read(text: str) -> tuple[Samples, dict[str, str]]:
    """Return the samples of a text by their labels, counters as sums, and the help texts."""
    samples: Samples = {}
    helps: dict[str, str] = {}
    for family in text_string_to_metric_families(text):
        assert family.name not in helps, "a family occurs twice"
        helps[family.name] = family.documentation
        for sample in family.samples:
            if sample.name == "runs_created":
                continue
            place = sample.labels.get("worker", sample.labels.get("pid", ""))
            # The sum of all workers: the multiprocess mode keeps no worker of a counter.
            key = (
                sample.name,
                "" if sample.name == "runs_total" else place,
                sample.labels.get("name", ""),
            )
            samples[key] = samples.get(key, 0) + sample.value
    return dict(sorted(samples.items())), helps


async def gather(workers: list[Worker], cancels: list[bool]) -> tuple[str, int]:
    """Return the joined text, over the channels of running workers.

    Args:
        cancels: for each worker, True to cancel a request to it first.

    Returns:
        The text, and the number of requests that the channels still keep.
    """
    pairs = [socket.socketpair() for _ in workers]
    channels = [await MetricsChannel.open(ours) for ours, _ in pairs]
    try:
        for channel, slot, cancel in zip(channels, range(len(workers)), cancels, strict=True):
            if cancel:
                task = asyncio.create_task(channel.request(slot))
                await asyncio.sleep(0)
                task.cancel()
        async with asyncio.timeout(PATIENCE):
            blocks = [
                answer_metrics_requests(theirs, worker.render)
                for (_, theirs), worker in zip(pairs, workers, strict=True)
            ]
            async with blocks[0], blocks[1], blocks[2]:
                requests = {slot: channel.request for slot, channel in enumerate(channels)}
                text = await gather_metrics(requests)
        return text, sum(len(channel._pending) for channel in channels)
    finally:
        for channel, (_, theirs) in zip(channels, pairs, strict=True):
            channel.close()
            theirs.close()


def test_joined_metrics_are_those_of_the_multiprocess_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    with Comparison("metrics of several processes") as comparison, asyncio.Runner() as runner:
        for number in comparison.rounds(60):
            folder = tmp_path / str(number)
            folder.mkdir()
            monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
            workers = pick_workers(comparison.chance)
            for worker in workers:
                worker.count_by_library()
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
            theirs, _ = read(generate_latest(registry).decode())
            cancels = [comparison.chance.random() < 0.3 for _ in workers]
            text, kept = runner.run(gather(workers, cancels))
            ours, helps = read(text)
            assert kept == 0
            up = {key: ours.pop(key) for key in list(ours) if key[0] == "agentctl_worker_up"}
            assert list(up.values()) == [1.0] * WORKERS
            exchange = [(worker.counts, worker.gauges) for worker in workers]
            comparison.compare(exchange, Outcome(ours), Outcome(theirs))
            # The multiprocess mode loses the help texts.
            assert (helps["runs"], helps["live"]) == workers[0].helps
