"""What the instance says of itself."""

from __future__ import annotations

from starlette.responses import Response

from agentctl.records.document import build_document
from agentctl.records.system import (
    ApiRecord,
    ConfigRecord,
    HealthRecord,
    InfoRecord,
    ModelEntry,
    ReadinessRecord,
)
from agentctl.server.answers import BytesResponse, document_response
from agentctl.server.openapi.document import NOT_READY_RESPONSES
from agentctl.server.routes.declared import build_operation
from agentctl.server.routing import Operation
from agentctl.server.state import Call

__all__ = [
    "build_operations",
    "get_api",
    "get_config",
    "get_health",
    "get_info",
    "get_models",
    "get_readiness",
]


async def get_api(call: Call) -> Response:
    """Name the service."""
    return document_response(await call.operations.get_api())


async def get_health(call: Call) -> Response:
    """Check that the process lives."""
    return document_response(await call.operations.get_health())


async def get_readiness(call: Call) -> Response:
    """Check that the instance can serve.

    503 when it cannot; the record says which dependency keeps it from it.
    """
    found = await call.operations.get_readiness()
    verifier = call.caller.door.verifier
    if verifier is not None and verifier.problem is not None:
        checks = {**found.value["checks"], "keys": "stale"}
        found = build_document({**found.value, "checks": checks})
    if found.value["status"] == "ready":
        return document_response(found)
    return BytesResponse(found.raw, 503, headers={"Retry-After": "1"})


async def get_info(call: Call) -> Response:
    """Get versions, counts and the authorization mode."""
    return document_response(await call.operations.get_info())


async def get_config(call: Call) -> Response:
    """Get what is configured.

    Databases, models and components, without secrets, paths or hosts.
    """
    return document_response(await call.operations.get_config())


async def get_models(call: Call) -> Response:
    """List the configured models."""
    return document_response(await call.operations.get_models())


def build_operations() -> list[Operation]:
    """The routes."""
    tag = "System"
    return [
        build_operation(get_api, tag=tag, answers=ApiRecord),
        build_operation(get_health, tag=tag, answers=HealthRecord),
        build_operation(get_readiness, tag=tag, answers=ReadinessRecord, more=NOT_READY_RESPONSES),
        build_operation(get_info, tag=tag, answers=InfoRecord),
        build_operation(get_config, tag=tag, answers=ConfigRecord),
        build_operation(get_models, tag=tag, answers=list[ModelEntry]),
    ]
