"""The reads of one principal without a service: a database is opened when it is first read."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

from agentctl.service.reads.components import ComponentReads, SystemReads
from agentctl.service.reads.family import ReadAccess, ReadHosting
from agentctl.service.reads.halts import HaltReads
from agentctl.service.reads.runs import RunReads
from agentctl.service.reads.sessions import SessionReads
from agentctl.service.reads.stores import open_stores

if TYPE_CHECKING:
    from agentctl.auth.principal import Principal
    from agentctl.config.settings import Settings
    from agentctl.interface.operations import Operations


class ReadOperations:
    """The operations of one principal that read components, sessions, runs and halts.

    They decide, record and answer as those of a service do. There are no other ones.
    """

    def __init__(self, access: ReadAccess) -> None:
        self.system = SystemReads(access)
        self.components = ComponentReads(access)
        self.sessions = SessionReads(access)
        self.runs = RunReads(access)
        self.halts = HaltReads(access)


@contextlib.asynccontextmanager
async def open_reads(settings: Settings, principal: Principal) -> AsyncIterator[Operations]:
    """Open the `ReadOperations` of a principal. A database that does not exist is not created.

    No run executes here: the spans and tokens of a live run are those that its process has stored.
    """
    async with contextlib.AsyncExitStack() as stack:
        databases, audit_log, catalog = open_stores(stack, settings, create=False)
        hosting = ReadHosting(
            settings=settings,
            databases=databases,
            catalog=catalog,
            audit_log=audit_log,
            find_spans=lambda _: None,
            find_metrics=lambda _: None,
        )
        # The declarations of all operations, with their requests, are not imported for a read.
        yield cast("Operations", ReadOperations(ReadAccess(hosting, principal)))
