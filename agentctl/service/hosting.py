"""The shared objects of an open service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentctl.auth.tokens.account_lookup import AccountTokens
from agentctl.config.settings import Settings
from agentctl.records.document import Document
from agentctl.records.kinds import ComponentKind
from agentctl.runs.cancel import Canceller
from agentctl.runs.changes import DatabaseChanges
from agentctl.runs.engine import Engine
from agentctl.runs.liveness import WorkerMonitor
from agentctl.runtime.components.catalog import Catalog
from agentctl.service.audit_log import AuditLog
from agentctl.service.readiness import Readiness
from agentctl.store.databases import Databases

if TYPE_CHECKING:
    from agentctl.auth.verifier import Verifier


@dataclass(frozen=True, slots=True)
class Hosting:
    """The objects that the operations of every principal share.

    Attributes:
        verifier: returns the verifier of the configuration. The first call creates it and raises
            InvalidKey if its keys are rejected.
        listings: documents of all components of a kind, filled by the first request for them.
    """

    settings: Settings
    databases: Databases
    catalog: Catalog
    engine: Engine
    canceller: Canceller
    changes: DatabaseChanges
    monitor: WorkerMonitor
    account_tokens: AccountTokens
    audit_log: AuditLog
    readiness: Readiness
    verifier: Callable[[], Verifier]
    listings: dict[ComponentKind, Document[list[Any]]] = field(default_factory=dict)
