"""The operations on approvals; see `agentctl.interface.operations`."""

# The methods have no statements: `execute` or a backend executes them.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import Annotated

from agentctl.interface.bodies import DecisionBody
from agentctl.interface.declarations import Body, Family, Path, component_operation, operation
from agentctl.interface.operations.components import ComponentId
from agentctl.interface.requests import PAGE_LAST, IdempotencyKey
from agentctl.interface.requests.approvals import ApprovalFilter, Ruling
from agentctl.interface.requirements import NeedsScope, OfComponent
from agentctl.records.approvals import ApprovalPage, ApprovalRecord, ReceiptRecord
from agentctl.records.document import Document
from agentctl.records.kinds import ComponentKind

ApprovalId = Annotated[str, Path("Id of the approval", "approval")]

_APPROVAL = "/{component_id}/approvals/{approval_id}"


class ApprovalsFamily(Family):
    """The operations on the approvals that runs wait for."""

    @operation(
        "get_approvals",
        "GET",
        "/approvals",
        needs=NeedsScope("approvals", "read", filters_list=True),
        tag="Approvals",
        without=("sort_by",),
        order=PAGE_LAST,
    )
    async def list(self, filter: ApprovalFilter) -> Document[ApprovalPage]:
        """List approvals.

        One page of the approvals that the caller can see: those of all users for components about
        whose approvals the caller decides, and its own.
        """

    @component_operation("get_approval", "GET", _APPROVAL, needs=OfComponent("read", "approvals"))
    async def get(
        self, kind: ComponentKind, component_id: ComponentId, approval_id: ApprovalId
    ) -> Document[ApprovalRecord]:
        """Get an approval of a component."""

    @component_operation(
        "get_receipt",
        "GET",
        f"{_APPROVAL}/receipt",
        needs=OfComponent("read", "approvals"),
        errors=(409,),
    )
    async def get_receipt(
        self, kind: ComponentKind, component_id: ComponentId, approval_id: ApprovalId
    ) -> Document[ReceiptRecord]:
        """Get the receipt of an approval.

        A signed statement of who decided, about which call, and what followed: anybody can verify
        it without this server. A pending approval is a conflict.
        """

    @component_operation(
        "decide_approval",
        "POST",
        f"{_APPROVAL}/decide",
        needs=OfComponent("write", "approvals"),
        body=Body(DecisionBody),
        errors=(409,),
        without=("approval_id", "tool_call_id"),
    )
    async def decide(
        self,
        kind: ComponentKind,
        component_id: ComponentId,
        approval_id: ApprovalId,
        ruling: Ruling,
        idempotency_key: IdempotencyKey = None,
    ) -> Document[ApprovalRecord]:
        """Decide about an approval of a component.

        The decision counts for the call that was shown: `arguments_hash` names it. An approval is
        decided once. The last decision that a run waits for lets the run continue.

        With an `Idempotency-Key` the request can be repeated for 24 hours.
        """
