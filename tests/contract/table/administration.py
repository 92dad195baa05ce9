"""Rows about service accounts, the audit log, halts, webhooks, usage and the data of users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentctl.interface.requests import Page
from agentctl.interface.requests.administration import (
    AccountFilter,
    AuditFilter,
    AuditHeadFilter,
    DeliveryFilter,
    Erasure,
    Grant,
    NewAccount,
    OverviewFilter,
    PersonalRowsFilter,
    UsageFilter,
)
from agentctl.interface.requests.halts import HaltFilter, NewHalt
from tests.contract.rows import FORBIDDEN, INVALID, NOT_FOUND, Call, Row

__all__ = ["administration_rows"]


def administration_rows() -> Iterator[Row]:
    yield from _account_rows()
    yield from _audit_rows()
    yield from _halt_rows()
    yield from _webhook_rows()
    yield from _usage_rows()
    yield from _user_rows()


def _account_rows() -> Iterator[Row]:
    who = "manager"
    operation = "create_service_account"

    def build(name: str, *scopes: str, **more: Any) -> tuple[Call, dict[str, Any]]:
        """Return the call and the body for a new account."""
        grants = tuple(map(Grant, scopes))
        new = NewAccount(name, grants, **more)
        granted = [{"scope": scope, "effect": "allow"} for scope in scopes]
        return lambda o, at: o.accounts.create(new), {"name": name, "scopes": granted, **more}

    for status, has, (call, body) in (
        (201, ('"token":"agentctl_pat_', '"created_by":"max"'), build("ci", "agents:echo:read")),
        (201, ('"expires_at":null',), build("ever", "agents:read", never_expires=True)),
        (409, ("CONFLICT",), build("ci", "agents:read")),
        (403, ("do not have: agents:run",), build("more", "agents:run")),
        (400, ("allow_privileged_scopes",), build("privileged", "service_accounts:read")),
        (422, ("did you mean agents:read",), build("near", "agents:raed")),
        (422, ("expires_in_days",), build("days", "agents:read", expires_in_days=0)),
        (422, ("scopes",), build("none")),
    ):
        yield Row(
            operation,
            "POST /service-accounts",
            call,
            who,
            status,
            has,
            body=body,
            keeps={f"{body['name']}_account": "id"} if status == 201 else {},
        )

    call, body = build("meant", "service_accounts:read", allow_privileged_scopes=True)
    yield Row(operation, "POST /service-accounts", call, who, 201, body=body)

    operation = "list_service_accounts"
    path = "GET /service-accounts"
    yield Row(
        operation,
        f"{path}?limit=2&sort_order=asc",
        lambda o, at: o.accounts.list(AccountFilter(page=Page(limit=2, sort_order="asc"))),
        who,
        has=("{ci_account}", '"token_hint"', '"next_cursor":"'),
        lacks=("_pat_",),
    )

    yield Row(
        operation,
        f"{path}?name=ever",
        lambda o, at: o.accounts.list(AccountFilter("ever")),
        who,
        has=("{ever_account}",),
        lacks=("{ci_account}",),
    )

    yield Row(
        operation,
        f"{path}?limit=101",
        lambda o, at: o.accounts.list(AccountFilter(page=Page(limit=101))),
        who,
        422,
        ("limit", *INVALID),
    )

    operation = "revoke_service_account"
    for status in (204, 404):
        yield Row(
            operation,
            "DELETE /service-accounts/{ci_account}",
            lambda o, at: o.accounts.revoke(at["ci_account"]),
            who,
            status,
        )

    yield Row(
        operation,
        "DELETE /service-accounts/a%20b%C3%BC%3F%25",
        lambda o, at: o.accounts.revoke("a bü?%"),
        "me",
        403,
        FORBIDDEN,
    )


def _audit_rows() -> Iterator[Row]:
    operation = "get_audit"
    path = "GET /audit"
    yield Row(
        operation,
        f"{path}?principal=me&operation=update_session&outcome=allowed"
        "&since=1970-01-01T00%3A00%3A01.500000Z&limit=7",
        lambda o, at: o.audit.list(AuditFilter("me", "update_session", "allowed", 1_500_000, 7)),
        "auditor",
        has=('"principal":"me"', '"resource":"session:named"'),
        # It names the target.
        is_same=False,
    )

    yield Row(
        operation,
        f"{path}?limit=0",
        lambda o, at: o.audit.list(AuditFilter(limit=0)),
        "auditor",
        422,
        ("limit", *INVALID),
    )

    yield Row(
        operation, path, lambda o, at: o.audit.list(AuditFilter()), "me", 403, ("audit:read",)
    )

    operation = "get_audit_heads"
    yield Row(
        operation,
        f"{path}/heads?limit=7",
        lambda o, at: o.audit.list_heads(AuditHeadFilter(7)),
        "auditor",
        has=('"data":[]', '"next_cursor":null'),
    )

    yield Row(
        operation,
        f"{path}/heads?cursor=x",
        lambda o, at: o.audit.list_heads(AuditHeadFilter(cursor="x")),
        "auditor",
        422,
        ("cursor", *INVALID),
    )


def _halt_rows() -> Iterator[Row]:
    """Yield a halt of a user that starts nothing here, from its beginning to its end."""
    until = "2999-01-01T00:00:00Z"
    body = {
        "scope": "user",
        "reason": "why",
        "scope_id": "nobody-at-all",
        "until": until,
        "stop_running": True,
    }

    yield Row(
        "create_halt",
        "POST /halts",
        lambda o, at: o.halts.create(NewHalt("user", "why", "nobody-at-all", until, True)),
        "admin",
        201,
        ('"state":"active"',),
        body=body,
        keeps={"halt": "halt_id"},
    )

    yield Row(
        "create_halt",
        "POST /halts",
        lambda o, at: o.halts.create(NewHalt("agent", "")),
        "admin",
        422,
        INVALID,
        body={"scope": "agent", "reason": ""},
    )

    yield Row(
        "get_halts",
        "GET /halts?state=active&scope=user&scope_id=nobody-at-all&limit=5",
        lambda o, at: o.halts.list(HaltFilter("active", "user", "nobody-at-all", Page(limit=5))),
        "admin",
        has=("{halt}", '"total_count":1'),
    )

    yield Row(
        "get_halt",
        "GET /halts/{halt}",
        lambda o, at: o.halts.get(at["halt"]),
        "admin",
        has=("{halt}",),
    )

    yield Row(
        "get_halt", "GET /halts/none", lambda o, at: o.halts.get("none"), "admin", 404, NOT_FOUND
    )
    yield Row(
        "end_halt", "DELETE /halts/none", lambda o, at: o.halts.end("none"), "admin", 404, NOT_FOUND
    )

    yield Row(
        "end_halt",
        "DELETE /halts/{halt}",
        lambda o, at: o.halts.end(at["halt"]),
        "me",
        403,
        FORBIDDEN,
    )

    yield Row(
        "end_halt", "DELETE /halts/{halt}", lambda o, at: o.halts.end(at["halt"]), "admin", 204
    )


def _webhook_rows() -> Iterator[Row]:
    """Yield requests about webhooks, of which the deployment has none (`tests/webhooks`)."""
    yield Row(
        "get_webhooks", "GET /webhooks", lambda o, at: o.webhooks.list(), "admin", has=("[]",)
    )

    yield Row(
        "get_webhook_deliveries",
        "GET /webhooks/deliveries?state=dead&webhook_id=ops&run_id=r&db_id=main&limit=5"
        "&created_after=1970-01-01T00%3A00%3A01.500000Z&id_prefix=01234567",
        lambda o, at: o.webhooks.list_deliveries(
            DeliveryFilter("dead", "ops", "r", "main", Page(limit=5), 1_500_000, "01234567")
        ),
        "admin",
        has=('"data":[]',),
    )

    yield Row(
        "redeliver_webhook",
        "POST /webhooks/deliveries/a%3Fb/redeliver",
        lambda o, at: o.webhooks.redeliver("a?b"),
        "admin",
        404,
        NOT_FOUND,
    )

    yield Row(
        "test_webhook",
        "POST /webhooks/a%3Fb/test",
        lambda o, at: o.webhooks.test("a?b"),
        "admin",
        404,
        NOT_FOUND,
    )

    yield Row(
        "enable_webhook",
        "POST /webhooks/a%3Fb/enable",
        lambda o, at: o.webhooks.enable("a?b"),
        "admin",
        404,
        NOT_FOUND,
    )


def _usage_rows() -> Iterator[Row]:
    yield Row(
        "get_usage",
        "GET /usage?by=user%2Cmodel&since=1970-01-01T00%3A00%3A00.000001Z&component_type=agent"
        "&component_id=echo&model=echo&user_id=me&db_id=main",
        lambda o, at: o.usage.get(
            UsageFilter(("user", "model"), 1, None, "agent", "echo", "echo", "me", "main")
        ),
        "admin",
        has=('"total":{"runs":', '"user_id":"me"'),
    )

    yield Row(
        "get_usage",
        "GET /usage?limit=0",
        lambda o, at: o.usage.get(UsageFilter(limit=0)),
        "admin",
        422,
        ("limit", *INVALID),
    )

    yield Row(
        "get_usage_overview",
        "GET /usage/overview?step=day&by=user&user_id=nobody&limit=5",
        lambda o, at: o.usage.get_overview(
            OverviewFilter("day", "user", user_id="nobody", limit=5)
        ),
        "admin",
        has=('"groups":',),
    )

    yield Row(
        "get_usage_overview",
        "GET /usage/overview",
        lambda o, at: o.usage.get_overview(OverviewFilter()),
        "me",
        403,
        ("usage:read", *FORBIDDEN),
    )

    yield Row(
        "get_budgets", "GET /budgets", lambda o, at: o.usage.list_budgets(), "admin", has=("[]",)
    )

    yield Row(
        "get_budgets",
        "GET /budgets?user_id=%00",
        lambda o, at: o.usage.list_budgets(user_id="\0"),
        "admin",
        422,
        ("user_id", *INVALID),
    )


def _user_rows() -> Iterator[Row]:
    yield Row(
        "get_user_data",
        "GET /user-data?user_id=a%2Fb",
        lambda o, at: o.users.get_data("a/b"),
        "admin",
        has=('"open_runs":0',),
        # It names the engine.
        is_same=False,
    )

    yield Row(
        "get_user_rows",
        "GET /user-data/rows?user_id=me&part=audit&db_id=main&limit=1",
        lambda o, at: o.users.list_rows(PersonalRowsFilter("me", "audit", "main", 1)),
        "admin",
        has=('"data":[{',),
        # The entry names the target.
        is_same=False,
    )

    yield Row(
        "get_user_rows",
        "GET /user-data/rows?user_id=me&db_id=none",
        lambda o, at: o.users.list_rows(PersonalRowsFilter("me", "usage", "none")),
        "admin",
        404,
        NOT_FOUND,
    )

    yield Row(
        "erase_user_data",
        "POST /user-data/erase",
        lambda o, at: o.users.erase(Erasure("none", True, "never")),
        "admin",
        has=('"erased":[]',),
        body={"user_id": "none", "cancel": True, "vacuum": "never"},
        # It has the sizes of files, and seconds.
        is_same=False,
    )

    yield Row(
        "erase_user_data",
        "POST /user-data/erase",
        lambda o, at: o.users.erase(Erasure("none", cursor="bad")),
        "admin",
        422,
        INVALID,
        body={"user_id": "none", "cursor": "bad"},
    )

    yield Row(
        "erase_user_data",
        "POST /user-data/erase",
        lambda o, at: o.users.erase(Erasure("me")),
        "me",
        403,
        FORBIDDEN,
        body={"user_id": "me"},
    )
