"""Records of webhooks: endpoints, deliveries and attempts (docs/contract.md "Webhooks")."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from agentctl.records.sessions import PageMeta
from agentctl.records.times import Timestamp

DeliveryState = Literal["waiting", "delivered", "dead"]

WebhookState = Literal["active", "disabled"]


class WebhookRecord(TypedDict):
    """An endpoint of the configuration, with its deliveries in all databases.

    `origin` is the URL without its path. `state` is `disabled` after a response with the status
    410, until it is enabled again; `reason` names the cause. `waiting`, `delivered` and `dead` are
    numbers of stored deliveries; `oldest_waiting_at` is the time of the oldest fact that waits.
    `public_key` verifies signatures with ed25519, null for a shared secret.
    """

    webhook_id: str
    origin: str
    events: list[str]
    agents: list[str]
    content: bool
    public_key: str | None
    state: WebhookState
    disabled_at: Timestamp | None
    reason: str | None
    waiting: int
    delivered: int
    dead: int
    oldest_waiting_at: Timestamp | None


class DeliveryRecord(TypedDict):
    """A fact for one endpoint, without its body. `run_id` is null for the fact of a halt.

    `event_id` is the header `webhook-id` of each attempt. `next_attempt_at` is null unless the
    delivery waits. `last_status` is the HTTP status of the last attempt, null without a response.
    """

    delivery_id: str
    event_id: str
    webhook_id: str
    type: str
    run_id: str | None
    state: DeliveryState
    attempts: int
    next_attempt_at: Timestamp | None
    last_status: int | None
    last_error: str | None
    created_at: Timestamp
    delivered_at: Timestamp | None


class DeliveryPage(TypedDict):
    """A page of deliveries."""

    data: list[DeliveryRecord]
    meta: PageMeta


class WebhookTestRecord(TypedDict):
    """The outcome of a test: `status` is the HTTP status of the response, null without one."""

    webhook_id: str
    event_id: str
    delivered: bool
    status: int | None
    error: str | None
    milliseconds: int
