"""What the instance says of itself."""

from __future__ import annotations

from starlette.responses import Response

from agentctl.records.document import document_of
from agentctl.records.system import (
    ApiRecord,
    ConfigRecord,
    HealthRecord,
    InfoRecord,
    ModelEntry,
    ReadinessRecord,
)
from agentctl.server.answers import Answer, document
from agentctl.server.openapi.document import NOT_READY
from agentctl.server.routes.declared import operation
from agentctl.server.routing import Operation
from agentctl.server.state import Call

__all__ = [
    "get_api",
    "get_config",
    "get_health",
    "get_info",
    "get_models",
    "get_readiness",
    "operations",
]


async def get_api(call: Call) -> Response:
    """Name the service."""
    return document(await call.operations.get_api())


async def get_health(call: Call) -> Response:
    """Check that the process lives."""
    return document(await call.operations.get_health())


async def get_readiness(call: Call) -> Response:
    """Check that the instance can serve.

    503 when it cannot; the record says which dependency keeps it from it.
    """
    found = await call.operations.get_readiness()
    verifier = call.caller.door.verifier
    if verifier is not None and verifier.problem is not None:
        checks = {**found.value["checks"], "keys": "stale"}
        found = document_of({**found.value, "checks": checks})
    if found.value["status"] == "ready":
        return document(found)
    return Answer(found.raw, 503, headers={"Retry-After": "1"})


async def get_info(call: Call) -> Response:
    """Get versions, counts and the authorization mode."""
    return document(await call.operations.get_info())


async def get_config(call: Call) -> Response:
    """Get what is configured.

    Databases, models and components, without secrets, paths or hosts.
    """
    return document(await call.operations.get_config())


async def get_models(call: Call) -> Response:
    """List the configured models."""
    return document(await call.operations.get_models())


def operations() -> list[Operation]:
    """The routes."""
    tag = "System"
    return [
        operation(get_api, tag=tag, answers=ApiRecord),
        operation(get_health, tag=tag, answers=HealthRecord),
        operation(get_readiness, tag=tag, answers=ReadinessRecord, more=NOT_READY),
        operation(get_info, tag=tag, answers=InfoRecord),
        operation(get_config, tag=tag, answers=ConfigRecord),
        operation(get_models, tag=tag, answers=list[ModelEntry]),
    ]
