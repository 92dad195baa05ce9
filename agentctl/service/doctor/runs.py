"""Runs and workers, as `runs doctor` sees them: how much of what, and where to look closer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentctl.config.settings import Settings
from agentctl.errors import AgentctlError
from agentctl.service.doctor.finding import Finding, from_failure, note, ok, wrong

if TYPE_CHECKING:
    from agentctl.service.runs_doctor.find import ProblemKind

__all__ = ["check_runs"]

_CHECK = "runs"

_DESCRIPTIONS: dict[ProblemKind, tuple[str, bool]] = {
    "lost": ("did not end, and their workers are gone", True),
    "no_session": ("belong to no session", True),
    "open_calls": ("have tool calls without a result", True),
    "unreadable": ("have messages that cannot be read", True),
    "silent": ("are of workers that have been silent for long", False),
    "dead_worker": ("rows are of workers that are gone", False),
}
"""What is said of each kind of problem, and whether it is wrong."""


async def check_runs(settings: Settings) -> list[Finding]:
    """Count what `service.doctor` finds in databases that are there and sound."""
    from agentctl.service.runs_doctor.find import RunsDoctor
    from agentctl.service.service import Service

    looked_at: list[int] = []
    try:
        async with Service.open(settings) as service:
            problems = await RunsDoctor(service.hosting, None).examine(looked_at.append)
    except AgentctlError as failure:
        return [from_failure(_CHECK, failure)]
    if not problems:
        count = sum(looked_at)
        runs = "1 run is as it" if count == 1 else f"{count} runs are as they"
        return [ok(_CHECK, f"{runs} should be")]
    return list(_count_problems(Counter(problem.kind for problem in problems), _remedy(settings)))


def _count_problems(kinds: Counter[ProblemKind], remedy: str) -> Iterator[Finding]:
    for kind, (text, is_wrong) in _DESCRIPTIONS.items():
        if kinds[kind]:
            yield (wrong if is_wrong else note)(_CHECK, f"{kinds[kind]} {text}", remedy)


def _remedy(settings: Settings) -> str:
    import shlex

    return f"agentctl runs doctor --config {shlex.quote(str(settings.path))}"
