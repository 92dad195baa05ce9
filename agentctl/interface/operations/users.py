"""The operations on the data of a person; see `agentctl.interface.operations`."""

# The methods have no statements: `execute` or a backend executes them.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from agentctl.interface.bodies import EraseBody
from agentctl.interface.declarations import Body, Family, operation
from agentctl.interface.requests.administration import (
    ERASE_WAIT,
    Erasure,
    OwnerOfData,
    PersonalRowsFilter,
)
from agentctl.interface.requirements import Admin
from agentctl.records.document import Document
from agentctl.records.personal_data import ErasureRecord, PersonalDataRecord, PersonalRowsPage


class UsersFamily(Family):
    """The operations on the data of a person, for administrators."""

    @operation("get_user_data", "GET", "/user-data", needs=Admin(), tag="Users")
    async def get_data(self, user_id: OwnerOfData = "") -> Document[PersonalDataRecord]:
        """Count the data of a person.

        By database and table, with what an erasure does with the rows.
        """

    @operation("get_user_rows", "GET", "/user-data/rows", needs=Admin(), tag="Users")
    async def list_rows(self, filter: PersonalRowsFilter) -> Document[PersonalRowsPage]:
        """List data of a person.

        One page of the rows of a person that no other list contains.
        """

    @operation(
        "erase_user_data",
        "POST",
        "/user-data/erase",
        needs=Admin(),
        tag="Users",
        body=Body(EraseBody),
        errors=(409,),
        wait=ERASE_WAIT,
    )
    async def erase(self, erasure: Erasure) -> Document[ErasureRecord]:
        """Erase the data of a person.

        Executes one part of the erasure. The erasure is complete after a part without
        `next_cursor`.
        """
