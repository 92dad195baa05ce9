"""The operations on webhooks; see `agentctl.interface.operations`."""

# The methods have no statements: `execute` or a backend executes them.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import Annotated

from agentctl.interface.declarations import Family, Path, operation
from agentctl.interface.requests.administration import DeliveryFilter
from agentctl.interface.requirements import NeedsScope
from agentctl.records.document import Document
from agentctl.records.webhooks import DeliveryPage, DeliveryRecord, WebhookRecord, WebhookTestRecord

# The method that returns them is named `list`.
WebhookRecords = list[WebhookRecord]

WebhookId = Annotated[str, Path("Id of the webhook in the configuration", "webhook")]


class WebhooksFamily(Family):
    """The operations on webhooks and their deliveries."""

    @operation(
        "get_webhooks", "GET", "/webhooks", needs=NeedsScope("webhooks", "read"), tag="Webhooks"
    )
    async def list(self) -> Document[WebhookRecords]:
        """List webhooks.

        The endpoints of the configuration, with the numbers of their stored deliveries.
        """

    @operation(
        "get_webhook_deliveries",
        "GET",
        "/webhooks/deliveries",
        needs=NeedsScope("webhooks", "read"),
        tag="Webhooks",
        without=("sort_by",),
    )
    async def list_deliveries(self, filter: DeliveryFilter) -> Document[DeliveryPage]:
        """List deliveries.

        One page of the stored deliveries, newest first. The bodies are not part of it.
        """

    @operation(
        "redeliver_webhook",
        "POST",
        "/webhooks/deliveries/{delivery_id}/redeliver",
        needs=NeedsScope("webhooks", "write"),
        tag="Webhooks",
    )
    async def redeliver(
        self, delivery_id: Annotated[str, Path("Id of the delivery", "delivery")]
    ) -> Document[DeliveryRecord]:
        """Deliver again.

        Lets the delivery wait again, with all its attempts and the same event id, although it was
        delivered or is dead.
        """

    @operation(
        "test_webhook",
        "POST",
        "/webhooks/{webhook_id}/test",
        needs=NeedsScope("webhooks", "write"),
        tag="Webhooks",
        wait=30.0,
    )
    async def test(self, webhook_id: WebhookId) -> Document[WebhookTestRecord]:
        """Test a webhook.

        Sends one signed event `webhook.test` to the endpoint, even if it is disabled, and returns
        the outcome. The event is not stored and not sent again.
        """

    @operation(
        "enable_webhook",
        "POST",
        "/webhooks/{webhook_id}/enable",
        needs=NeedsScope("webhooks", "write"),
        tag="Webhooks",
    )
    async def enable(self, webhook_id: WebhookId) -> Document[WebhookRecord]:
        """Enable a webhook.

        Events are sent again to an endpoint that was disabled by a response with the status 410,
        also those that wait.
        """
