"""The operations of an AgentOS server, as those of this interface (docs/agentos.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentctl import errors
from agentctl.interface.operations.partial import Fault
from agentctl.interop.agentos.mapping import read_account, read_component, read_memory
from agentctl.interop.agentos.remote.approvals import AgentOSApprovals
from agentctl.interop.agentos.remote.faults import list_faults
from agentctl.interop.agentos.remote.requests import Record
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import ComponentKind
from agentctl.records.times import now

_MODELS_IN_CONFIG = (3,)
"""The release from which `/models` is a part of `/config`."""

_CONCURRENT_REQUESTS = 8

_SAME_REQUESTS: Mapping[str, Callable[..., Record]] = {
    "get_api": lambda record: record,
    "get_health": lambda record: record,
    "get_info": lambda record: record,
    "get_config": lambda record: record,
    "create_session": lambda record, **_: record,
    "get_component": lambda record, kind, **_: read_component(kind, record),
    "get_memory": lambda record, **_: read_memory(record),
    "create_service_account": lambda record, **_: read_account(record, now()),
}
"""Operations with the requests of this interface: builds the record from that of AgentOS."""


class AgentOSOperations(AgentOSApprovals):
    """The `interface.operations.Operations` of an AgentOS server that have a counterpart there."""

    def list_faults(self) -> Iterable[Fault]:
        return list_faults(self.server)

    def execute(self, name: str, arguments: Mapping[str, Any]) -> Any:
        known = name in _SAME_REQUESTS
        return self._execute(name, arguments) if known else super().execute(name, arguments)

    async def _execute(self, name: str, arguments: Mapping[str, Any]) -> Document[Any]:
        record = await self.read_object(self.build(name, **arguments))
        return build_document(_SAME_REQUESTS[name](record, **arguments))

    async def get_models(self) -> Document[Any]:
        if self.server.release < _MODELS_IN_CONFIG:
            return build_document(await self.read_list(self.build("get_models")))
        models = (await self.read_object(self.build("get_config"))).get("available_models") or []
        return build_document(
            [model if isinstance(model, dict) else {"id": str(model)} for model in models]
        )

    async def get_components(self, kind: ComponentKind) -> Document[Any]:
        """Return the components of a kind; a list of workflows has no steps, so each is read."""
        records = await self.read_list(self.build("get_components", kind=kind))
        components = [read_component(kind, record) for record in records]
        if kind == "workflow":
            semaphore = asyncio.Semaphore(_CONCURRENT_REQUESTS)

            async def read(summary: Record) -> Record:
                try:
                    async with semaphore:
                        component: Document[Record] = await self.get_component(kind, summary["id"])
                    return component.value
                except (errors.NotFound, errors.Forbidden):
                    return summary

            components = list(await asyncio.gather(*map(read, components)))
        return build_document(components)
