"""The databases, the audit log and the catalog, which a service and the reads of a command need."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from agentctl.runtime.components.catalog import Catalog
from agentctl.service.audit_log import AuditLog
from agentctl.store.databases import Databases

if TYPE_CHECKING:
    from agentctl.config.settings import Settings


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
