"""The operations on service accounts; see `agentctl.interface.operations`."""

# The methods have no statements: `execute` or a backend executes them.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import Annotated

from agentctl.interface.bodies import NewAccountBody
from agentctl.interface.declarations import Body, Family, Path, operation
from agentctl.interface.requests.administration import AccountFilter, NewAccount
from agentctl.interface.requirements import NeedsScope
from agentctl.records.accounts import AccountPage, NewAccountRecord
from agentctl.records.document import Document


class AccountsFamily(Family):
    """The operations on service accounts."""

    @operation(
        "create_service_account",
        "POST",
        "/service-accounts",
        needs=NeedsScope("service_accounts", "write"),
        tag="Service accounts",
        body=Body(NewAccountBody),
        status=201,
        errors=(409,),
    )
    async def create(self, account: NewAccount) -> Document[NewAccountRecord]:
        """Create a service account.

        The response has its token, which is shown once. The caller must have each granted scope.
        """

    @operation(
        "list_service_accounts",
        "GET",
        "/service-accounts",
        needs=NeedsScope("service_accounts", "read"),
        tag="Service accounts",
        without=("sort_by",),
    )
    async def list(self, filter: AccountFilter) -> Document[AccountPage]:
        """List service accounts.

        One page of all accounts of the instance, including expired and revoked accounts.
        """

    @operation(
        "revoke_service_account",
        "DELETE",
        "/service-accounts/{account_id}",
        needs=NeedsScope("service_accounts", "delete"),
        tag="Service accounts",
    )
    async def revoke(
        self, account_id: Annotated[str, Path("Id of the service account", "service_account")]
    ) -> None:
        """Revoke a service account.

        Its token is rejected within a second. The account stays in the list; its name can be
        reused.
        """
