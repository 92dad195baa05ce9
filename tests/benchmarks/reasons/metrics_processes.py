"""Metrics of several processes: the parent's collection next to prometheus-client's files.

`python -m tests.benchmarks.reasons.metrics_processes` prints the CPU nanoseconds of one count, as
the median of the rounds, and the CPU milliseconds to join the metrics of two workers, first and
after 100 workers were replaced.
"""

from __future__ import annotations

import collections
import os
import tempfile
import time
from collections.abc import Callable
from statistics import median

from prometheus_client import CollectorRegistry, generate_latest, values
from prometheus_client.metrics import Counter
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.values import MultiProcessValue

from agentctl.server.observability.metrics_endpoint import merge_metrics

ROUNDS = 9
COUNTS = 20_000
JOINS = 5
LABELS = [f"operation {number}" for number in range(200)]
REPLACED = 100


def measure(work: Callable[[], object], calls: int) -> float:
    """Return the CPU seconds of a call, the median of the rounds."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(calls):
            work()
        rounds.append((time.process_time() - began) / calls)
    return median(rounds)


def count_by_library(worker: int) -> Counter:
    """Count in the files of a worker, as each process of the multiprocess mode does."""
    values.ValueClass = MultiProcessValue(lambda: worker)
    counter = Counter("runs", "Runs.", ("operation",), registry=None)
    for label in LABELS:
        counter.labels(label).inc()
    return counter


def render(worker: int) -> str:
    registry = CollectorRegistry()
    counter = Counter("runs", "Runs.", ("worker", "operation"), registry=registry)
    for label in LABELS:
        counter.labels(str(worker), label).inc()
    return generate_latest(registry).decode()


def join_files() -> bytes:
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def main() -> None:
    """Print the table."""
    texts = [render(worker) for worker in range(2)]
    counts = collections.Counter[str]()

    def count() -> None:
        counts[LABELS[0]] += 1

    ours = [measure(count, COUNTS) * 1e9, measure(lambda: merge_metrics(texts), JOINS) * 1e3]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        counters = [count_by_library(worker) for worker in range(2)]
        child = counters[0].labels(LABELS[0])
        theirs = [measure(child.inc, COUNTS) * 1e9, measure(join_files, JOINS) * 1e3]
        for worker in range(2, 2 + REPLACED):
            count_by_library(worker)
        later = measure(join_files, 1) * 1e3
        files = len(os.listdir(folder))  # noqa: PTH208
    print("| | agentctl | prometheus-client |\n| --- | ---: | ---: |")
    print(f"| one count, ns | {ours[0]:.0f} | {theirs[0]:.0f} |")
    print(f"| join two workers, ms | {ours[1]:.2f} | {theirs[1]:.2f} |")
    print(f"| the same after {REPLACED} workers were replaced, ms | {ours[1]:.2f} | {later:.2f} |")
    print(f"| files that are left then | 0 | {files} |")


if __name__ == "__main__":
    main()
