"""The reads of one principal without a service: a database is opened when it is first read."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from agentctl.interface.operations import Operations
from agentctl.runtime.components.catalog import Catalog
from agentctl.service.audit_log import AuditLog
from agentctl.service.reads.components import ComponentReads
from agentctl.service.reads.family import ReadHosting
from agentctl.service.reads.runs import RunReads
from agentctl.service.reads.sessions import SessionReads
from agentctl.store.databases import Databases

if TYPE_CHECKING:
    from agentctl.auth.principal import Principal
    from agentctl.config.settings import Settings


class ReadOperations(ComponentReads, SessionReads, RunReads, Operations):
    """The operations of one principal that read components, sessions and runs.

    They decide, record and answer as those of a service do. Every other operation raises
    NotImplementedError.
    """


def open_stores(
    stack: contextlib.AsyncExitStack, settings: Settings, *, create: bool
) -> tuple[Databases, AuditLog, Catalog]:
    """Return what a service and the reads of a command need alike; the stack closes it.

    The databases are closed last: the audit log writes to them.

    Args:
        create: True to create a database that does not exist when it is first needed.
    """
    databases = Databases(settings, create=create)
    stack.push_async_callback(databases.close)

    audit_log = AuditLog(databases, reads=settings.audit.reads)
    stack.push_async_callback(audit_log.counter.close)

    catalog = Catalog.from_settings(settings)
    stack.push_async_callback(catalog.close)
    return databases, audit_log, catalog


@contextlib.asynccontextmanager
async def open_reads(settings: Settings, principal: Principal) -> AsyncIterator[ReadOperations]:
    """Open the reads of a principal. A database that does not exist is not created.

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
        yield ReadOperations(hosting, principal)
