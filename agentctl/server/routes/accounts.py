"""The service accounts family (contract.md 6)."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from starlette.responses import Response

from agentctl.operations import DEFAULT_LIMIT, AccountFilter, Grant, NewAccount, Page
from agentctl.records.accounts import AccountPage, NewAccountRecord
from agentctl.server.answers import document_response, no_content_response
from agentctl.server.bodies import RequestBody
from agentctl.server.requests import NewAccountBody
from agentctl.server.routes.declared import (
    AfterCursor,
    Limit,
    PageNumber,
    SortOrder,
    build_operation,
)
from agentctl.server.routing import Operation
from agentctl.server.state import Call

__all__ = [
    "build_operations",
    "create_service_account",
    "list_service_accounts",
    "revoke_service_account",
]

AccountId = Annotated[str, Path(description="The service account")]

_NEW = RequestBody(NewAccountBody)


async def create_service_account(call: Call) -> Response:
    """Create a service account.

    The answer has its token, which is told this once. Nobody grants scopes that they do not hold.
    """
    body = await _NEW.read(call)
    account = NewAccount(
        name=body["name"],
        scopes=tuple(Grant(**grant) for grant in body["scopes"]),
        expires_in_days=body.get("expires_in_days"),
        never_expires=body.get("never_expires", False),
        allow_privileged_scopes=body.get("allow_privileged_scopes", False),
    )
    return document_response(await call.operations.create_service_account(account), 201)


async def list_service_accounts(
    call: Call,
    name: Annotated[str | None, Query(description="Only accounts of this name")] = None,
    limit: Limit = DEFAULT_LIMIT,
    page: PageNumber = 1,
    cursor: AfterCursor = None,
    sort_order: SortOrder = "desc",
) -> Response:
    """List service accounts.

    A page of them, whoever has made them, those that have expired or are revoked too.
    """
    wanted = AccountFilter(name, Page(limit, page, cursor, sort_order=sort_order))
    return document_response(await call.operations.list_service_accounts(wanted))


async def revoke_service_account(call: Call, account_id: AccountId) -> Response:
    """Revoke a service account.

    Its token is dead within a second. The account stays in the list; its name can be given again.
    """
    await call.operations.revoke_service_account(account_id)
    return no_content_response()


def build_operations() -> list[Operation]:
    """The routes of the family."""
    tag = "Service accounts"
    return [
        build_operation(
            create_service_account,
            tag=tag,
            answers=NewAccountRecord,
            status=201,
            errors=(409, 413, 415),
            body=_NEW,
        ),
        build_operation(list_service_accounts, tag=tag, answers=AccountPage),
        build_operation(revoke_service_account, tag=tag, answers=None, status=204),
    ]
