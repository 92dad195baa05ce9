"""The report of a run of chaos, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.chaos.ledger import Ledger
from tests.chaos.trouble import Outage

__all__ = ["Result", "format_report"]


@dataclass(frozen=True)
class Result:
    """What came of it.

    Attributes:
        settled: seconds until no run was live when the clients had gone.
        said: complaints in the servers' logs, those with a traceback, by their number.
    """

    seconds: float
    clients: int
    ledger: Ledger
    outages: list[Outage]
    settled: float
    lines: int
    tracebacks: int


def format_report(result: Result) -> str:
    """All of it, as it is kept in docs/chaos.md."""
    return "\n".join([*_summary(result), "", *_requests(result), "", *_outages(result)])


def _summary(result: Result) -> Iterator[str]:
    ledger = result.ledger
    named = ledger.acknowledged
    final = sum(told.status is not None for told in named)
    keyed = sum(told.key is not None for told in named)
    yield f"- {result.clients} clients for {result.seconds:.0f} s"
    yield f"- {len(ledger.runs)} runs asked for, {len(named)} acknowledged, {keyed} of them with a"
    yield f"  key; {final} with their end; {sum(len(told.heard) for told in named)} events"
    yield f"- {len(result.outages)} outages; no run was live {result.settled:.1f} s after the load"
    yield f"- {result.lines} lines in the servers' logs, {result.tracebacks} tracebacks"
    if not ledger.wrong:
        yield "- nothing lost, nothing doubled, nothing stuck, no 500: the audit is clean"
    for what, count in ledger.wrong.most_common():
        yield f"- **wrong, {count} times: {what}**"


def _requests(result: Result) -> Iterator[str]:
    yield "| request | answered | 503 | broken off | p50 ms | p99 ms | longest ms |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, tried in sorted(result.ledger.tried.items()):
        took = sorted(tried.seconds) or [0.0]
        figures = [_at(took, 0.5), _at(took, 0.99), took[-1]]
        shown = " | ".join(f"{1_000 * seconds:.0f}" for seconds in figures)
        yield f"| {name} | {len(tried.seconds)} | {tried.refused} | {tried.broken} | {shown} |"


def _at(took: list[float], share: float) -> float:
    return took[min(len(took) - 1, int(share * len(took)))]


def _outages(result: Result) -> Iterator[str]:
    yield "| at s | what | back in service after s |"
    yield "| --- | --- | --- |"
    for outage in result.outages:
        yield f"| {outage.at:.0f} | {outage.what} | {outage.back:.2f} |"
