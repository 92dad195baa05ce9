"""The operations of an AgentOS server, as those of this interface (docs/agentos.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from agentctl import errors
from agentctl.interop.agentos.mapping import read_component
from agentctl.interop.agentos.remote.faults import list_faults
from agentctl.interop.agentos.remote.requests import Record
from agentctl.interop.agentos.remote.runs import RunOperations
from agentctl.partial_operations import Fault
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import ComponentKind
from agentctl.records.routes import operation_ids
from agentctl.remote.connection import Request, build_path

_MODELS_IN_CONFIG = (3,)
"""The release from which `/models` is a part of `/config`."""

_CONCURRENT_REQUESTS = 8


class AgentOSOperations(RunOperations):
    """The `operations.Operations` of an AgentOS server that have a counterpart there."""

    def list_faults(self) -> Iterable[Fault]:
        return list_faults(self.server)

    async def get_api(self) -> Document[Any]:
        return build_document(await self._get("get_api"))

    async def get_health(self) -> Document[Any]:
        return build_document(await self._get("get_health"))

    async def get_info(self) -> Document[Any]:
        return build_document(await self._get("get_info"))

    async def get_config(self) -> Document[Any]:
        return build_document(await self._get("get_config"))

    async def get_models(self) -> Document[Any]:
        if self.server.release < _MODELS_IN_CONFIG:
            return build_document(await self.read_list(Request("GET", build_path("get_models"))))
        models = (await self._get("get_config")).get("available_models") or []
        return build_document(
            [model if isinstance(model, dict) else {"id": str(model)} for model in models]
        )

    async def _get(self, operation: str) -> Record:
        return await self.read_object(Request("GET", build_path(operation)))

    async def get_components(self, kind: ComponentKind) -> Document[Any]:
        """Return the components of a kind; a list of workflows has no steps, so each is read."""
        found = await self.read_list(Request("GET", build_path(operation_ids(kind).list)))
        components = [read_component(kind, record) for record in found]
        if kind == "workflow":
            semaphore = asyncio.Semaphore(_CONCURRENT_REQUESTS)

            async def read(summary: Record) -> Record:
                try:
                    async with semaphore:
                        return await self._read_component(kind, summary["id"])
                except (errors.NotFound, errors.Forbidden):
                    return summary

            components = list(await asyncio.gather(*map(read, components)))
        return build_document(components)

    async def get_component(self, kind: ComponentKind, component_id: str) -> Document[Any]:
        return build_document(await self._read_component(kind, component_id))

    async def _read_component(self, kind: ComponentKind, component_id: str) -> Record:
        ids = {f"{kind}_id": component_id}
        found = await self.read_object(Request("GET", build_path(operation_ids(kind).get, **ids)))
        return read_component(kind, found)
