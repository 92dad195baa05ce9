"""Check webhooks: their keys, disabled endpoints, and events that were not delivered."""

from __future__ import annotations

import shlex

from agentctl.admin.doctor.finding import Finding, from_failure, note, ok, wrong
from agentctl.config.settings import Settings
from agentctl.errors import AgentctlError
from agentctl.records.times import format_span, now
from agentctl.store.repositories import webhooks
from agentctl.webhooks.deliveries import Waiting, count_waiting
from agentctl.webhooks.signing import load_signer

_CHECK = "webhooks"

LATE_SECONDS = 3_600
"""Age of a waiting event from which a server may be missing, or the endpoint be down."""


def check_keys(settings: Settings) -> list[Finding]:
    """Check that each endpoint has a secret or a key; return the problems."""
    findings = []
    for webhook in settings.webhooks:
        try:
            load_signer(webhook, str(settings.path or "the configuration"))
        except AgentctlError as failure:
            findings.append(from_failure(_CHECK, failure))
    return findings


async def check_webhooks(settings: Settings) -> list[Finding]:
    """Check the endpoints of the configuration, and their deliveries in databases that exist."""
    from agentctl.service.service import Service

    findings = check_keys(settings)
    config = f" --config {shlex.quote(str(settings.path))}"
    try:
        async with Service.open(settings) as service:
            databases = service.hosting.databases
            await databases.open_all()
            disabled = {
                row.webhook_id: row.reason
                for row in await databases.system.read(webhooks.list_disabled())
            }
            dead = {
                (row.webhook_id, row.count)
                for database in databases.values()
                for row in await database.read(webhooks.count_by_state(), size="large")
                if row.state == "dead"
            }
            waiting = await count_waiting(databases)
    except AgentctlError as failure:
        return [*findings, from_failure(_CHECK, failure)]
    known = {webhook.id for webhook in settings.webhooks}
    for webhook_id in sorted(known & disabled.keys()):
        remedy = f"agentctl webhooks enable {webhook_id}{config}"
        findings.append(wrong(_CHECK, f"{webhook_id} is disabled: {disabled[webhook_id]}", remedy))
    for webhook_id, count in sorted(dead):
        remedy = f"agentctl webhooks redeliver --dead --webhook {webhook_id}{config}"
        findings.append(wrong(_CHECK, f"{webhook_id} did not accept {count} events", remedy))
    for webhook_id, row in sorted(waiting.items()):
        findings += _check_waiting(webhook_id, row, is_known=webhook_id in known)
    count = len(settings.webhooks)
    text = "1 endpoint has no problem" if count == 1 else f"{count} endpoints have no problem"
    return findings or [ok(_CHECK, text)]


def _check_waiting(webhook_id: str, row: Waiting, *, is_known: bool) -> list[Finding]:
    age = (now() - (row.oldest_at or now())) / 1_000_000
    if not is_known:
        what = f"{row.count} events wait for {webhook_id}, which is not configured"
        return [note(_CHECK, what, "configure it again, or wait: they are deleted after 30 days")]
    if age > LATE_SECONDS:
        return [note(_CHECK, f"an event for {webhook_id} has waited for {format_span(age)}")]
    return []
