"""Checks of runs, workers, jobs, budgets and webhooks.

Runs and workers: the number of problems of each kind that `doctor --runs` finds.

Jobs: no database has the times at which they ran. The lease shows a sweep of the last seconds, and
work that is left although it was due shows a job that is late. Backups have separate checks.

Budgets: prices that are not known. Webhooks: keys, disabled endpoints, events that were not
delivered.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentctl.config.budgets import Budget
from agentctl.config.settings import Agent, Settings, Team
from agentctl.errors import AgentctlError
from agentctl.records.system import Finding, from_failure, note, ok, wrong
from agentctl.records.text import format_count
from agentctl.records.times import DAY, format_span, now
from agentctl.runs.gate.budgets import Prices
from agentctl.store.repositories import webhooks
from agentctl.webhooks.deliveries import Waiting, count_waiting
from agentctl.webhooks.signing import load_signer

if TYPE_CHECKING:
    from agentctl.admin.runs_doctor.find import ProblemKind
    from agentctl.service.hosting import Hosting

_CHECK = "runs"
_BUDGETS = "budgets"

LATE_SECONDS = 300
"""Seconds after which work that was due is late.

Rows may be deleted a day later: a process that doubts its clock waits for a day.
"""

NEWEST_RUNS = 500
"""Ended runs of a database that are read; `agentctl doctor --runs` reads all."""

NEWEST_SECONDS = 2.0
"""Maximum time to check the ended runs of all databases."""

_DESCRIPTIONS: dict[ProblemKind, tuple[str, bool]] = {
    "lost": ("are live, but their workers are dead", True),
    "no_session": ("belong to no session", True),
    "open_calls": ("have tool calls without a result", True),
    "unreadable": ("have messages that cannot be parsed", True),
    "unclaimed": ("were decided, but no server goes on with them", True),
    "inconsistent": ("have rows that contradict each other", True),
    "unknown_call": ("calls have an unknown outcome", True),
    "paused": ("have waited for a decision for more than a day", False),
    "silent": ("belong to workers without a recent heartbeat", False),
    "dead_worker": ("rows belong to dead workers", False),
}
"""The text of each kind of problem, and True if it is `wrong`."""

_WEBHOOKS = "webhooks"

LATE_DELIVERY_SECONDS = 3_600
"""Age of a waiting event from which a server may be missing, or the endpoint be down."""


async def check_runs(settings: Settings) -> list[Finding]:
    """Count the problems of recent and open runs in databases that exist, and find late jobs."""
    from agentctl.admin.runs_doctor.find import RunsDoctor
    from agentctl.service.service import Service

    try:
        async with Service.open(settings) as service:
            doctor = RunsDoctor(service.hosting, None)
            total = await doctor.estimate_count()
            count = await doctor.find_recent_problems(NEWEST_RUNS, NEWEST_SECONDS)
            jobs = await check_jobs(service.hosting)
    except AgentctlError as failure:
        return [from_failure(_CHECK, failure)]

    problems = doctor.problems
    findings = list[Finding]()
    if count < total:
        text = f"checked the newest {count} of about {total} runs, and all that have not ended"
        findings.append(ok(_CHECK, text))
    elif not problems:
        text = "1 run is consistent" if count == 1 else f"{count:,} runs are consistent"
        findings.append(ok(_CHECK, text))

    remedy = f"agentctl doctor --runs --config {shlex.quote(str(settings.path))}"
    counts = Counter(problem.kind for problem in problems)
    for kind, (description, is_wrong) in _DESCRIPTIONS.items():
        if counts[kind]:
            build_finding = wrong if is_wrong else note
            findings.append(build_finding(_CHECK, f"{counts[kind]} {description}", remedy))

    return [*findings, jobs]


async def check_jobs(hosting: Hosting) -> Finding:
    """Check that no work of the jobs is late."""
    from agentctl.runs.engine.claims import QUEUE_SECONDS
    from agentctl.runs.jobs.cleanup import EVENT_RETENTION
    from agentctl.store.repositories import approvals, events, queue, workers

    at = now()
    databases = [hosting.databases[name] for name in hosting.databases]
    before = at - LATE_SECONDS * 1_000_000
    queued_before = before - QUEUE_SECONDS * 1_000_000
    signs = {
        "approvals have expired": approvals.list_due(before),
        "runs have waited in the queue for too long": queue.list_overdue(queued_before),
        "events are kept for too long": events.has_older(before - DAY - EVENT_RETENTION),
    }

    late_texts = [
        text
        for text, sign in signs.items()
        if any([await database.read(sign, size="large") for database in databases])
    ]

    sweeper = await hosting.databases.system.read(workers.get_sweeper(at))
    what = f"worker {sweeper} sweeps" if sweeper else "no server sweeps now"
    if not late_texts:
        return ok("jobs", f"{what}, and no work is late")

    text = f"{what}, but {', '.join(late_texts)}"
    if sweeper:
        return wrong("jobs", text, "the log of a server names the reason: agentctl.runs")
    return note("jobs", text, "agentctl serve")


async def check_budgets(settings: Settings) -> list[Finding]:
    """Check the budgets of the configuration."""
    prices = Prices(settings)
    findings = list[Finding]()
    for budget in settings.budgets:
        if budget.cost is None:
            continue
        for model in dict.fromkeys(_list_models(settings, budget)):
            if await prices.is_known(model):
                continue
            if budget.unknown == "refuse":
                text = f"{budget.id} refuses runs of the model {model}, whose price is not known"
                findings.append(wrong(_BUDGETS, text, f"set price of the model {model}"))
            else:
                text = f"{budget.id} does not count the model {model}, whose price is not known"
                findings.append(note(_BUDGETS, text, f"set price of the model {model}"))

    count = len(settings.budgets)
    return findings or [ok(_BUDGETS, format_count(count, "budget"))]


def _list_models(settings: Settings, budget: Budget) -> Iterator[str]:
    """Yield the models of the components that count for a budget."""
    fallbacks = {model.id: model.fallbacks for model in settings.models}
    components: tuple[Agent | Team, ...] = (*settings.agents, *settings.teams)
    for component in components:
        if component.model and budget.component in ("", component.id):
            yield component.model
            yield from fallbacks[component.model]


def check_webhook_keys(settings: Settings) -> list[Finding]:
    """Check that each endpoint has a secret or a key; return the problems."""
    findings = []
    for webhook in settings.webhooks:
        try:
            load_signer(webhook, str(settings.path or "the configuration"))
        except AgentctlError as failure:
            findings.append(from_failure(_WEBHOOKS, failure))
    return findings


async def check_webhooks(settings: Settings) -> list[Finding]:
    """Check the endpoints of the configuration, and their deliveries in databases that exist."""
    from agentctl.service.service import Service

    findings = check_webhook_keys(settings)
    config = f" --config {shlex.quote(str(settings.path))}"

    try:
        async with Service.open(settings) as service:
            databases = service.hosting.databases
            await databases.open_all()
            disabled = {
                row.webhook_id: row.reason
                for row in await databases.system.read(webhooks.list_disabled())
            }
            dead = Counter[str]()
            for database in databases.values():
                for deliveries in await database.read(webhooks.count_by_state(), size="large"):
                    if deliveries.state == "dead":
                        dead[deliveries.webhook_id] += deliveries.count
            waiting = await count_waiting(databases)
    except AgentctlError as failure:
        return [*findings, from_failure(_WEBHOOKS, failure)]

    configured_ids = {webhook.id for webhook in settings.webhooks}
    for webhook_id in sorted(configured_ids & disabled.keys()):
        remedy = f"agentctl webhooks enable {webhook_id}{config}"
        findings.append(
            wrong(_WEBHOOKS, f"{webhook_id} is disabled: {disabled[webhook_id]}", remedy)
        )

    for webhook_id, count in sorted(dead.items()):
        remedy = f"agentctl webhooks redeliver --dead --webhook {webhook_id}{config}"
        findings.append(
            wrong(_WEBHOOKS, f"{webhook_id} did not accept {format_count(count, 'event')}", remedy)
        )

    for webhook_id, row in sorted(waiting.items()):
        findings += _check_waiting(webhook_id, row, is_known=webhook_id in configured_ids)

    count = len(settings.webhooks)
    text = "1 endpoint has no problem" if count == 1 else f"{count} endpoints have no problem"
    return findings or [ok(_WEBHOOKS, text)]


def _check_waiting(webhook_id: str, row: Waiting, *, is_known: bool) -> list[Finding]:
    if not is_known:
        text = f"{format_count(row.count, 'event')} for {webhook_id}, which is not configured"
        remedy = "configure it again, or wait: they are deleted after 30 days"
        return [note(_WEBHOOKS, text, remedy)]

    if row.oldest_at is None:
        return []
    age = (now() - row.oldest_at) / 1_000_000
    if age > LATE_DELIVERY_SECONDS:
        return [note(_WEBHOOKS, f"an event for {webhook_id} has waited for {format_span(age)}")]
    return []
