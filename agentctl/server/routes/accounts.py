"""Operations on service accounts (docs/contract.md "Authorization")."""

from __future__ import annotations

from typing import Annotated

from starlette.responses import Response

from agentctl.records.accounts import AccountPage, NewAccountRecord
from agentctl.requests import (
    DEFAULT_LIMIT,
    AccountFilter,
    Grant,
    NewAccount,
    Page,
)
from agentctl.server.answers import document_response, no_content_response
from agentctl.server.bodies import RequestBody
from agentctl.server.parameters import Path, Query
from agentctl.server.requests import NewAccountBody
from agentctl.server.routes.declared import (
    AfterCursor,
    Limit,
    PageNumber,
    SortOrder,
)
from agentctl.server.routing import Operation
from agentctl.server.state import Call

AccountId = Annotated[str, Path("Id of the service account")]

_NEW = RequestBody(NewAccountBody)


async def create_service_account(call: Call) -> Response:
    """Create a service account.

    The response has its token, which is shown once. The caller must have each granted scope.
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
    name: Annotated[str | None, Query("Only accounts with this name")] = None,
    limit: Limit = DEFAULT_LIMIT,
    page: PageNumber = 1,
    cursor: AfterCursor = None,
    sort_order: SortOrder = "desc",
) -> Response:
    """List service accounts.

    One page of all accounts of the instance, including expired and revoked ones.
    """
    wanted = AccountFilter(name, Page(limit, page, cursor, sort_order=sort_order))
    return document_response(await call.operations.list_service_accounts(wanted))


async def revoke_service_account(call: Call, account_id: AccountId) -> Response:
    """Revoke a service account.

    Its token is rejected within a second. The account stays in the list; its name can be reused.
    """
    await call.operations.revoke_service_account(account_id)
    return no_content_response()


def build_operations() -> list[Operation]:
    """Return the operations on service accounts."""
    tag = "Service accounts"
    return [
        Operation(
            create_service_account,
            tag=tag,
            result=NewAccountRecord,
            status=201,
            errors=(409, 413, 415),
            body=_NEW,
        ),
        Operation(list_service_accounts, tag=tag, result=AccountPage),
        Operation(revoke_service_account, tag=tag, status=204),
    ]
