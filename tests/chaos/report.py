"""The report of a chaos experiment, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.chaos.faults import Outage
from tests.chaos.ledger import Ledger

__all__ = ["Result", "format_report"]


@dataclass(frozen=True)
class Result:
    """The result of an experiment.

    Attributes:
        seconds: duration of the load.
        idle_after: seconds from the end of the load until no run was live.
        lines: number of lines in the server logs.
        tracebacks: number of tracebacks in the server logs.
    """

    seconds: float
    clients: int
    ledger: Ledger
    outages: list[Outage]
    idle_after: float
    lines: int
    tracebacks: int


def format_report(result: Result) -> str:
    """Format the report that docs/internals/chaos.md contains."""
    return "\n".join([*_summary(result), "", *_requests(result), "", *_outages(result)])


def _summary(result: Result) -> Iterator[str]:
    ledger = result.ledger
    known = ledger.acknowledged
    final = sum(note.status is not None for note in known)
    keyed = sum(note.key is not None for note in known)
    events = sum(len(note.events) for note in known)
    yield f"- {result.clients} clients for {result.seconds:.0f} s"
    yield f"- {len(ledger.runs)} runs requested, {len(known)} acknowledged ({keyed} with an"
    yield f"  idempotency key), {final} with a final status; {events} events"
    yield f"- {len(result.outages)} outages; idle {result.idle_after:.1f} s after the load"
    yield f"- {result.lines} lines in the server logs, {result.tracebacks} tracebacks"
    if not ledger.violations:
        yield "- the check is clean: nothing lost, nothing doubled, nothing stuck, no 500"
    for violation, count in ledger.violations.most_common():
        yield f"- **violated {count} times: {violation}**"


def _requests(result: Result) -> Iterator[str]:
    yield "| request | succeeded | 503 | broken off | p50 ms | p99 ms | longest ms |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, counts in sorted(result.ledger.requests.items()):
        seconds = sorted(counts.seconds) or [0.0]
        figures = [_quantile(seconds, 0.5), _quantile(seconds, 0.99), seconds[-1]]
        numbers = [len(counts.seconds), counts.unavailable, counts.broken]
        cells = [*map(str, numbers), *(f"{1_000 * figure:.0f}" for figure in figures)]
        yield f"| {name} | {' | '.join(cells)} |"


def _quantile(seconds: list[float], share: float) -> float:
    return seconds[min(len(seconds) - 1, int(share * len(seconds)))]


def _outages(result: Result) -> Iterator[str]:
    yield "| at s | fault | back in service after s |"
    yield "| --- | --- | --- |"
    for outage in result.outages:
        yield f"| {outage.at:.0f} | {outage.fault} | {outage.back:.2f} |"
