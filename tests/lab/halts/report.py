"""The figures of an experiment with halts, and the judgement of what its runs have done."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab.halts.call_log import read_key
from tests.lab.halts.counting_endpoint import TAKEOVER, Call, count_tool_calls
from tests.lab.halts.paths import PATHS

CONTINUED = "continued once"
TAKEN_OVER = "continued once, by another process"
REPEATED = "continued more than once"
WAITS = "waits for a decision that was lost with a server"

LIVE_RUNS = (
    "SELECT run_id, input, owner, created_at FROM runs WHERE status IN ('PENDING', 'RUNNING')"
    " AND parent_run_id IS NULL AND purpose IS NULL"
)
"""The root runs that have not ended; `created_at` is in microseconds UTC."""

ALL_RUNS = (
    "SELECT run_id, input, status, error_code, attempt FROM runs WHERE parent_run_id IS NULL"
    " AND purpose IS NULL"
)
"""All root runs, for `judge_runs`."""


class PastHalt(NamedTuple):
    """A halt that has ended; its times are those of calls."""

    scope: str
    returned_at: float

    ended_at: float
    """A moment before its end."""

    note: str = ""


@dataclass
class PathFigures:
    """The figures of one path."""

    halts: int = 0
    """Halts that have stopped it while it worked.

    It has made a call since the last such halt. At the end of this one a run was held, a request
    had been refused, or a model had been told that its tool is halted.
    """

    halts_new: int = 0
    """Of these, halts that have held a run before its first call on the path.

    A new run, one that waits in the queue, for its takeover or after its decision.
    """

    calls: int = 0
    """Calls of the model and of the tool."""

    held: int = 0
    """Runs that waited at the end of a halt, once for each halt."""

    held_new: int = 0
    """Of these, runs that had made no call on the path yet."""

    refused: int = 0
    """Requests that a halt has refused."""

    late: int = 0
    """Calls after the return of a halt."""


@dataclass
class Report:
    """The figures of an experiment."""

    paths: dict[str, PathFigures] = field(
        default_factory=lambda: {path: PathFigures() for path in PATHS}
    )

    halts: Counter[str] = field(default_factory=Counter)
    """Halts that have returned, by their scope; `parts` are those of all components at once."""

    not_created: int = 0
    """Halts that were not accepted, or whose answer was lost as their server was killed."""

    late: list[str] = field(default_factory=list)
    """The calls after the return of a halt."""

    seconds: list[float] = field(default_factory=list)
    """The times that halts took to return while nothing was killed or stopped."""

    kills: int = 0
    takeover_kills: int = 0
    """Kills of the server whose durable runs the others take over."""

    short_stops: int = 0
    """Stops of a process with SIGSTOP while halts are created and ended."""

    long_stops: int = 0
    """Stops that have lasted until a halt had returned without the confirmation of the process."""

    dead_stops: int = 0
    """Of these, stops after which the process was declared dead before it continued."""

    held: Counter[str] = field(default_factory=Counter)
    """The runs that any halt has held, by how they have ended."""

    runs: Counter[str] = field(default_factory=Counter)
    """All runs, by status and error."""

    answers: Counter[str] = field(default_factory=Counter)
    """Answers that are neither a success nor a refusal by a halt, by path."""

    problems: Counter[str] = field(default_factory=Counter)
    """Runs that have done too much or too little, or that only a halt can have failed."""

    elapsed: float = 0.0

    def append_to(self, file: Path) -> None:
        """Add the figures to a file, as a line of JSON."""
        with file.open("a") as lines:
            lines.write(json.dumps(self, default=vars) + "\n")

    @classmethod
    def read_sum(cls, file: Path) -> Report:
        """Return the sum of the figures in a file."""
        total = cls()
        for line in file.read_text().splitlines():
            total._add(json.loads(line))
        return total

    def _add(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            total = getattr(self, name)
            if name == "paths":
                for path, figures in value.items():
                    for key, count in figures.items():
                        setattr(total[path], key, getattr(total[path], key) + count)
            elif isinstance(total, Counter):
                total.update(value)
            else:
                setattr(self, name, total + value)

    def describe(self) -> str:
        """Return the figures in lines."""
        times = sorted(self.seconds) or [0.0]
        halts = sum(self.halts.values())
        lines = [f"{'path':10}" + _format_row(_HEADINGS)]
        for path, row in self.paths.items():
            columns = (
                row.halts,
                row.halts_new,
                row.calls,
                row.held,
                row.held_new,
                row.refused,
                row.late,
            )
            lines.append(f"{path:10}" + _format_row(columns))

        lines += [
            f"{halts} halts in {self.elapsed:.0f} s, {halts / max(self.elapsed, 1):.2f} a second:"
            f" {_format(self.halts)}; {self.not_created} not created",
            f"time of a halt: middle {times[len(times) // 2] * 1_000:.0f} ms,"
            f" 99% {times[len(times) * 99 // 100] * 1_000:.0f} ms, longest {times[-1]:.2f} s",
            f"kills {self.kills}, of the server with durable runs {self.takeover_kills}; stops"
            f" {self.short_stops} short, {self.long_stops} longer than a permit, of these"
            f" {self.dead_stops} until the process was declared dead",
            f"calls after the return of a halt: {len(self.late)}",
            f"held runs: {_format(self.held)}",
            f"all runs: {_format(self.runs)}",
            f"other answers: {_format(self.answers)}",
            f"problems: {_format(self.problems)}",
            *self.late,
        ]
        return "\n".join(lines)


_HEADINGS = ("halts", "of new", "calls", "held", "new", "refused", "late")


def _format_row(columns: Iterable[object]) -> str:
    return "".join(f"{column!s:>9}" for column in columns)


def _format(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"


def find_broken_halt(halts: Sequence[PastHalt], call: Call) -> PastHalt | None:
    """Return the halt that should have stopped a call; None if there is none.

    Args:
        halts: all halts, oldest first; each was ended before the next one.
    """
    index = bisect_left(halts, call.at, key=lambda halt: halt.returned_at)
    if index == 0:
        return None

    halt = halts[index - 1]
    if call.at > halt.ended_at:
        return None
    if halt.scope in ("model", "tool") and call.kind != halt.scope:
        return None
    return halt


@dataclass
class _Work:
    """The runs of one message, and the calls that were made for them."""

    runs: list[Sequence[Any]] = field(default_factory=list)
    model_calls: int = 0
    tool_calls: int = 0

    told_calls: int = 0
    """Calls of the tool that were not made, as a halt of the tool was reported to the model."""


def judge_runs(
    report: Report, rows: Iterable[Sequence[Any]], calls: Iterable[Call], held_ids: set[str]
) -> None:
    """Count how each run has ended, and compare its calls with those that it should have made.

    Args:
        rows: those of `ALL_RUNS`.
        calls: all calls.
        held_ids: the runs that a halt has held.
    """
    works: dict[tuple[str, int], _Work] = defaultdict(_Work)
    for row in rows:
        works[read_key(row[1])].runs.append(row)
    for call in calls:
        work = works[call.path, call.number]
        work.model_calls += call.kind == "model"
        work.tool_calls += call.kind == "tool"
        work.told_calls += call.is_told

    for (path, number), work in works.items():
        continuation = _judge_work(report, path, number, work)
        for run_id, _, status, error, _ in work.runs:
            report.runs[f"{status} {error}" if error else status] += 1
            if run_id in held_ids:
                report.held[_describe_end(status, error, continuation)] += 1


def _judge_work(report: Report, path: str, number: int, work: _Work) -> str:
    """Return how the completed runs of a message have continued."""
    count = len(work.runs)
    agents = count * PATHS[path].agents
    tools = count_tool_calls(path, number)
    model_calls = agents * (tools + 1) + count * PATHS[path].team_calls
    tool_calls = agents * tools - work.told_calls

    if path == "retry":
        # It begins after the last results of tools, and only the first run calls them. A result
        # that says that the tool is halted is a failure, and begins nothing.
        if work.told_calls:
            return CONTINUED
        model_calls = tools + count
        tool_calls = tools

    # The decision begins the second attempt of a run, the death of a process each other one.
    attempts = 0
    if path in ("durable", TAKEOVER):
        attempts = sum(row[4] - 1 for row in work.runs)
    elif path == "decided":
        attempts = sum(max(row[4] - 2, 0) for row in work.runs)

    # The call that a process died in may have been made, and is made again.
    is_repeated = work.model_calls > model_calls + attempts
    if is_repeated or work.tool_calls > tool_calls + attempts:
        report.problems[_describe_calls(path, number, work, model_calls, tool_calls)] += 1
        return REPEATED

    is_completed = all(row[2] == "COMPLETED" for row in work.runs)
    is_incomplete = work.model_calls < model_calls or work.tool_calls < tool_calls
    if is_completed and is_incomplete:
        report.problems[_describe_calls(path, number, work, model_calls, tool_calls)] += 1
    return TAKEN_OVER if attempts else CONTINUED


def _describe_calls(path: str, number: int, work: _Work, model_calls: int, tool_calls: int) -> str:
    return (
        f"work-{path}-{number}: {len(work.runs)} runs with {work.model_calls} calls of the model"
        f" instead of {model_calls} and {work.tool_calls} of the tool instead of {tool_calls}"
    )


def _describe_end(status: str, error: str | None, continuation: str) -> str:
    if status == "COMPLETED":
        return continuation
    if status == "PAUSED":
        return WAITS
    return f"ended as {error or status}"
