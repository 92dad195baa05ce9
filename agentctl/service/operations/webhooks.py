"""The operations on webhooks (docs/contract.md "Webhooks")."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import orjson

from agentctl import errors
from agentctl.config.webhooks import Webhook
from agentctl.interface.operations.webhooks import WebhooksFamily
from agentctl.interface.requests.administration import DeliveryFilter
from agentctl.records.document import Document, build_document
from agentctl.records.text import new_id
from agentctl.records.times import format_rfc3339, now
from agentctl.records.webhooks import DeliveryPage, DeliveryRecord, WebhookRecord, WebhookTestRecord
from agentctl.service.documents import documents, paging
from agentctl.service.documents.documents import RecordWriter
from agentctl.service.family import OperationFamily
from agentctl.store.repositories import webhooks
from agentctl.store.repositories.webhooks import DeliveryCount, DeliveryRow, DisabledWebhook
from agentctl.webhooks.attempts import Receiver
from agentctl.webhooks.signing import Signer, load_signer

_DELIVERY = RecordWriter(DeliveryRecord, DeliveryRow, computed=["run_id"])


class WebhookOperations(OperationFamily, WebhooksFamily):
    """Operations on the endpoints of the configuration and on their deliveries."""

    async def list_deliveries(self, filter: DeliveryFilter) -> Document[DeliveryPage]:
        async with self.audit("get_webhook_deliveries"):
            database = self.lookups.database(filter.db_id)
            paging.check_filter(filter)
            part = paging.build_slice("deliveries", filter.page)
            work = webhooks.list_page(filter, part, database.totals)
            page = await database.read(work, size="large")
            items = (orjson.dumps(_build_delivery(row)) for row in page.rows)
            return Document(documents.build_page_document("deliveries", items, filter.page, page))

    async def redeliver(self, delivery_id: str) -> Document[DeliveryRecord]:
        async with self.audit("redeliver_webhook", delivery_id=delivery_id) as call:
            databases = self.hosting.databases
            for database in databases.values():
                # A write would commit its audit entry, also in a database without the delivery.
                if await database.read(webhooks.get(delivery_id)) is None:
                    continue

                row = await call.write(database, webhooks.repeat(delivery_id, now()))
                if row is not None:
                    databases.outbox.wake()
                    return build_document(_build_delivery(row))

            raise errors.NotFound("Delivery not found")

    async def test(self, webhook_id: str) -> Document[WebhookTestRecord]:
        async with self.audit("test_webhook", webhook_id=webhook_id):
            webhook = self._find_webhook(webhook_id)
            receiver = Receiver(webhook, self._load_webhook_signer(webhook))

            event_id = new_id()
            body = orjson.dumps(
                {
                    "type": "webhook.test",
                    "timestamp": format_rfc3339(now()),
                    "data": {"webhook_id": webhook_id},
                }
            )

            clock = asyncio.get_running_loop().time
            began = clock()
            try:
                outcome = await receiver.send(event_id, body)
            finally:
                await receiver.close()

            return build_document(
                WebhookTestRecord(
                    webhook_id=webhook_id,
                    event_id=event_id,
                    delivered=outcome.error is None,
                    status=outcome.status,
                    error=outcome.error,
                    milliseconds=round((clock() - began) * 1_000),
                )
            )

    async def enable(self, webhook_id: str) -> Document[WebhookRecord]:
        async with self.audit("enable_webhook", webhook_id=webhook_id) as call:
            webhook = self._find_webhook(webhook_id)
            databases = self.hosting.databases
            await call.write(databases.system, webhooks.enable(webhook_id))
            databases.outbox.wake()
            (record,) = await self._build_webhooks([webhook])
            return build_document(record)

    def _find_webhook(self, webhook_id: str) -> Webhook:
        for webhook in self.hosting.settings.webhooks:
            if webhook.id == webhook_id:
                return webhook
        raise errors.NotFound("Webhook not found")

    def _load_webhook_signer(self, webhook: Webhook) -> Signer:
        return load_signer(webhook, str(self.hosting.settings.path or "the configuration"))

    async def _build_webhooks(self, configured: Iterable[Webhook]) -> list[WebhookRecord]:
        databases = self.hosting.databases
        counts = list[DeliveryCount]()
        for database in databases.values():
            counts += await database.read(webhooks.count_by_state(), size="large")

        disabled_rows = await databases.system.read(webhooks.list_disabled())
        disabled = {row.webhook_id: row for row in disabled_rows}

        return [
            self._build_webhook(webhook, counts, disabled.get(webhook.id)) for webhook in configured
        ]

    def _build_webhook(
        self, webhook: Webhook, counts: list[DeliveryCount], disabled: DisabledWebhook | None
    ) -> WebhookRecord:
        own_counts = [row for row in counts if row.webhook_id == webhook.id]
        waiting_since = [row.oldest_at for row in own_counts if row.state == "waiting"]

        def count(state: str) -> int:
            return sum(row.count for row in own_counts if row.state == state)

        signer = None if webhook.key_file is None else self._load_webhook_signer(webhook)
        return WebhookRecord(
            webhook_id=webhook.id,
            origin=webhook.origin,
            events=list(webhook.events),
            agents=list(webhook.agents),
            content=webhook.content,
            public_key=None if signer is None else signer.public_key,
            state="active" if disabled is None else "disabled",
            disabled_at=None if disabled is None else format_rfc3339(disabled.disabled_at),
            reason=None if disabled is None else disabled.reason,
            waiting=count("waiting"),
            delivered=count("delivered"),
            dead=count("dead"),
            oldest_waiting_at=format_rfc3339(min(waiting_since)) if waiting_since else None,
        )

    async def list(self) -> Document[list[WebhookRecord]]:
        async with self.audit("get_webhooks"):
            configured = self.hosting.settings.webhooks
            if not configured:
                return build_document([])
            return build_document(await self._build_webhooks(configured))


def _build_delivery(row: DeliveryRow) -> DeliveryRecord:
    next_at = format_rfc3339(row.next_at) if row.state == "waiting" else None
    computed = {"next_attempt_at": next_at, "run_id": row.run_id or None}
    record: DeliveryRecord = _DELIVERY.build(row, computed)
    return record
