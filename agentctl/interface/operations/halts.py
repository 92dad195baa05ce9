"""The operations on halts; see `agentctl.interface.operations`."""

# The methods have no statements: `execute` or a backend executes them.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import Annotated

from agentctl.interface.bodies import NewHaltBody
from agentctl.interface.declarations import Body, Family, Path, operation
from agentctl.interface.requests.halts import HALT_WAIT, HaltFilter, NewHalt
from agentctl.interface.requirements import NeedsScope
from agentctl.records.document import Document
from agentctl.records.halts import HaltPage, HaltRecord, NewHaltRecord

HaltId = Annotated[str, Path("Id of the halt", "halt")]

_HALT = "/halts/{halt_id}"
_READS = NeedsScope("halts", "read")
_WRITES = NeedsScope("halts", "write")


class HaltsFamily(Family):
    """The operations on halts."""

    @operation("get_halts", "GET", "/halts", needs=_READS, tag="Halts", without=("sort_by",))
    async def list(self, filter: HaltFilter) -> Document[HaltPage]:
        """List halts.

        One page of the halts of the instance, newest first, including ended halts.
        """

    @operation(
        "create_halt",
        "POST",
        "/halts",
        needs=_WRITES,
        tag="Halts",
        body=Body(NewHaltBody),
        status=201,
        wait=HALT_WAIT,
    )
    async def create(self, halt: NewHalt) -> Document[NewHaltRecord]:
        """Halt work.

        From the moment of the response, no server starts a call of a model or a tool in the scope
        of the halt. New runs are refused with 503, and other work waits until the halt ends.
        """

    @operation("get_halt", "GET", _HALT, needs=_READS, tag="Halts")
    async def get(self, halt_id: HaltId) -> Document[HaltRecord]:
        """Get a halt."""

    @operation("end_halt", "DELETE", _HALT, needs=_WRITES, tag="Halts", errors=(409,))
    async def end(self, halt_id: HaltId) -> None:
        """End a halt.

        The work in its scope continues where it waits, unless another halt stops it.
        """
