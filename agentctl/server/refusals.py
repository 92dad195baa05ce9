"""401s in the audit log: counted by cause, not recorded one by one."""

from __future__ import annotations

from agentctl.auth.explain.checks import CHECKS
from agentctl.errors import InvalidToken, Unauthenticated
from agentctl.records.audit import AUTHENTICATE
from agentctl.records.times import now
from agentctl.service.audit_log import EntryCounter
from agentctl.store.repositories.audit import NewAuditEntry

NO_CREDENTIAL = "no credential"
OTHER_CAUSE = "other"


def count_rejection(counter: EntryCounter, failure: Unauthenticated) -> None:
    """Count a rejected credential. The causes are names of checks, so their number is fixed."""
    cause = NO_CREDENTIAL
    if isinstance(failure, InvalidToken):
        cause = failure.check if failure.check in CHECKS else OTHER_CAUSE
    entry = NewAuditEntry(
        at=now(),
        principal=None,
        via="http",
        operation=AUTHENTICATE,
        resource=None,
        outcome="denied",
        status=Unauthenticated.status,
        reason=cause,
        request_id=None,
    )
    counter.count((AUTHENTICATE, cause), entry)
