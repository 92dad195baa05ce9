"""`agentctl webhooks`: the endpoints of the configuration, and their deliveries."""

from __future__ import annotations

from typing import Annotated

from agentctl.cli.durations import microseconds_ago
from agentctl.cli.help import CommandApp
from agentctl.cli.lists import ListOutput
from agentctl.cli.parameters import argument, flag, option
from agentctl.cli.show.columns import format_distance
from agentctl.cli.show.output import CommandOutput, FieldsOutput, write_line
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.target import Target, with_target
from agentctl.errors import Unavailable, UsageError
from agentctl.interface.requests import MAXIMUM_LIMIT, Page
from agentctl.interface.requests.administration import DeliveryFilter
from agentctl.interface.requests.lists import read_rows

app = CommandApp(
    help="List and test webhooks, and redeliver events.",
    epilog="Example: agentctl webhooks deliveries --state dead",
)

WebhookId = Annotated[str, argument("WEBHOOK_ID", "Id of the webhook")]


def _join(name: str) -> Column:
    return Column(name, lambda row: ", ".join(row.get(name) or []), look="text")


_WEBHOOK = [
    *plain_columns("webhook_id", "origin"),
    _join("events"),
    _join("agents"),
    *plain_columns(
        "content", "public_key", "state", "disabled_at", "reason", "waiting", "delivered", "dead",
        "oldest_waiting_at",
    ),
]  # fmt: skip
_WEBHOOKS = Columns(
    tsv=_WEBHOOK,
    table=[
        Column("webhook_id", heading="id", look="id"),
        Column("origin", look="text"),
        Column("state", style=lambda row: "red" if row.get("state") == "disabled" else ""),
        Column("waiting", right=True),
        Column("oldest", lambda row: format_distance(row.get("oldest_waiting_at")), right=True),
        Column("delivered", right=True),
        Column("dead", right=True, style=lambda row: "red" if row.get("dead") else ""),
        _join("events"),
    ],
)
_DELIVERY = plain_columns(
    "delivery_id", "event_id", "webhook_id", "type", "run_id", "state", "attempts",
    "next_attempt_at", "last_status", "last_error", "created_at", "delivered_at",
)  # fmt: skip
_STYLES = {"dead": "red", "waiting": "yellow"}
_DELIVERIES = Columns(
    tsv=_DELIVERY,
    table=[
        Column("delivery_id", heading="id", look="id"),
        Column("webhook_id", heading="webhook"),
        Column("type"),
        Column("state", style=lambda row: _STYLES.get(str(row.get("state")), "")),
        Column("attempts", right=True),
        Column("last_error", heading="last error", look="text"),
        Column("run_id", heading="run", look="id"),
        Column("age", lambda row: format_distance(row.get("created_at")), right=True),
    ],
)
_TEST = plain_columns("webhook_id", "event_id", "delivered", "status", "error", "milliseconds")


@app.command("list", epilog="Example: agentctl webhooks list")
@with_target()
async def list_webhooks(target: Target, out: FieldsOutput) -> None:
    """List the configured endpoints with their delivery counts."""
    document = await target.operations.webhooks.list()
    out.show_list(document, _WEBHOOKS, "webhook_id")


@app.command("test", epilog="Example: agentctl webhooks test ops")
@with_target(create=True)
async def send_test(target: Target, out: CommandOutput, webhook_id: WebhookId) -> None:
    """Send one signed event to an endpoint; exit code 7 if it is not accepted."""
    tested = await target.operations.webhooks.test(webhook_id)
    out.show_record(tested, _TEST, "event_id")
    if not tested.value["delivered"]:
        raise Unavailable(
            f"The webhook {webhook_id} did not accept the event",
            cause=str(tested.value["error"]),
            hint=f"the event was sent {target.place}",
        )
    target.report_done(f"webhook {webhook_id} accepted the event")


_DELIVERIES_ORDER = (
    "state", "webhook_id", "run_id", "created_after", "limit", "page", "cursor", "sort_order",
    "all_pages", "db_id", ...,
)  # fmt: skip
"""The options of `webhooks deliveries` in the order of its help."""


@app.command("deliveries", epilog="Example: agentctl webhooks deliveries --state dead")
@with_target(without=("sort_by",), order=_DELIVERIES_ORDER)
async def list_deliveries(target: Target, out: ListOutput, filter: DeliveryFilter) -> None:
    """List stored deliveries, newest first."""
    await out.show(
        target, target.operations.webhooks.list_deliveries, filter, _DELIVERIES, "delivery_id"
    )


@app.command("redeliver", epilog="Example: agentctl webhooks redeliver --dead --since 2h")
@with_target()
async def redeliver(
    target: Target,
    delivery_ids: list[str] | None = argument("DELIVERY_ID", "Ids of deliveries"),
    dead: bool = flag("--dead", "All dead deliveries"),
    webhook: str | None = option("--webhook", "ID", "With --dead: of this endpoint"),
    since: str | None = option("--since", "AGE", "With --dead: at most this old: 10m, 2h, 7d"),
) -> None:
    """Redeliver events with the same event ids."""
    ids = list(delivery_ids or ())
    if bool(ids) == dead:
        raise UsageError("give DELIVERY_ID, or --dead")
    if not dead and (webhook or since):
        raise UsageError("--webhook and --since need --dead")

    if dead:
        after = microseconds_ago("--since", since)
        page = Page(limit=MAXIMUM_LIMIT)
        wanted = DeliveryFilter("dead", webhook, created_after=after, page=page)
        rows = read_rows(target.operations.webhooks.list_deliveries, wanted)
        ids = [str(row["delivery_id"]) async for row in rows]

    for delivery_id in ids:
        await target.operations.webhooks.redeliver(delivery_id)
    target.report_done(f"deliveries to make again: {len(ids)}")


@app.command("enable", epilog="Example: agentctl webhooks enable ops")
@with_target()
async def enable_webhook(target: Target, webhook_id: WebhookId) -> None:
    """Re-enable an endpoint that was disabled by a response with status 410."""
    await target.operations.webhooks.enable(webhook_id)
    target.report_done(f"webhook {webhook_id} is enabled")


@app.command("secret", epilog="Example: agentctl webhooks secret")
def create_secret() -> None:
    """Print a new secret for the variable in `secret_env` (nothing is stored)."""
    from agentctl.webhooks.signing import generate_secret

    write_line(generate_secret())
