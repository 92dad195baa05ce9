"""Requests of the operations on webhooks; see `agentctl.interface.requests`."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from agentctl.interface.declarations import Option, Query
from agentctl.interface.requests import DatabaseId, IdPrefix, Page
from agentctl.light_dataclass import dataclass
from agentctl.records.times import ParsedTimestamp
from agentctl.records.webhooks import DeliveryState


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """The filter of a list of deliveries, ordered by `created_at`, newest first.

    Times are microseconds UTC.
    """

    state: Annotated[
        DeliveryState | None,
        Query("Only deliveries with this state"),
        Option("--state", "STATE", "Filter by state: waiting, delivered or dead", any_case=True),
    ] = None
    webhook_id: Annotated[
        str | None,
        Query("Only deliveries to this endpoint"),
        Option("--webhook", "ID", "Filter by endpoint"),
    ] = None
    run_id: Annotated[
        str | None,
        Query("Only deliveries about this run"),
        Option("--run", "ID", "Filter by run", noun="run"),
    ] = None
    db_id: DatabaseId = None
    page: Page = field(default_factory=Page)
    created_after: Annotated[
        ParsedTimestamp | None,
        Query("Only deliveries created at or after this time"),
        Option("--since", "AGE", "Filter by age: 10m, 2h, 7d, or a time in RFC 3339"),
    ] = None
    id_prefix: IdPrefix = None
