"""The operations on the audit log; see `agentctl.interface.operations`."""

# The methods have no statements: `execute` or a backend executes them.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from agentctl.interface.declarations import Family, operation
from agentctl.interface.requests.administration import AuditFilter, AuditHeadFilter
from agentctl.interface.requirements import NeedsScope
from agentctl.records.audit import AuditHeadPage, AuditPage
from agentctl.records.document import Document


class AuditFamily(Family):
    """The reads of the audit log."""

    @operation("get_audit", "GET", "/audit", needs=NeedsScope("audit", "read"), tag="Authorization")
    async def list(self, filter: AuditFilter) -> Document[AuditPage]:
        """List audit entries.

        The entries of all principals, newest first. There is one for every change and for every
        denied call of an identified caller; calls without a valid credential are counted by cause.
        """

    @operation(
        "get_audit_heads",
        "GET",
        "/audit/heads",
        needs=NeedsScope("audit", "read"),
        tag="Authorization",
    )
    async def list_heads(self, filter: AuditHeadFilter) -> Document[AuditHeadPage]:
        """List signed heads of the audit log.

        Newest first. Each head covers the entries since the previous head, with their digest.
        """
