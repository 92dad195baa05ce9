"""Check runs, workers and jobs: the number of problems of each kind that `runs doctor` finds."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

from agentctl.admin.doctor.finding import Finding, from_failure, note, ok, wrong
from agentctl.config.settings import Settings
from agentctl.errors import AgentctlError

if TYPE_CHECKING:
    from agentctl.admin.runs_doctor.find import ProblemKind

_CHECK = "runs"

_DESCRIPTIONS: dict[ProblemKind, tuple[str, bool]] = {
    "lost": ("are live, but their workers are dead", True),
    "no_session": ("belong to no session", True),
    "open_calls": ("have tool calls without a result", True),
    "unreadable": ("have messages that cannot be parsed", True),
    "unclaimed": ("were decided, but no server goes on with them", True),
    "unknown_call": ("calls have an unknown outcome", True),
    "paused": ("have waited for a decision for more than a day", False),
    "silent": ("belong to workers without a recent heartbeat", False),
    "dead_worker": ("rows belong to dead workers", False),
}
"""The text of each kind of problem, and True if it is `wrong`."""


async def check_runs(settings: Settings) -> list[Finding]:
    """Count the problems in databases that exist and are valid, and find late jobs."""
    from agentctl.admin.doctor.jobs import check_jobs
    from agentctl.admin.runs_doctor.find import RunsDoctor
    from agentctl.service.service import Service

    checked: list[int] = []
    try:
        async with Service.open(settings) as service:
            problems = await RunsDoctor(service.hosting, None).find_problems(checked.append)
            jobs = await check_jobs(service.hosting)
    except AgentctlError as failure:
        return [from_failure(_CHECK, failure)]
    if not problems:
        count = sum(checked)
        text = "1 run is consistent" if count == 1 else f"{count} runs are consistent"
        return [ok(_CHECK, text), jobs]
    kinds = Counter(problem.kind for problem in problems)
    remedy = f"agentctl runs doctor --config {shlex.quote(str(settings.path))}"
    return [
        (wrong if is_wrong else note)(_CHECK, f"{kinds[kind]} {text}", remedy)
        for kind, (text, is_wrong) in _DESCRIPTIONS.items()
        if kinds[kind]
    ] + [jobs]
