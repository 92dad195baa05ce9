"""Operations that describe the instance: health, readiness, versions, configuration."""

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
from agentctl.server.openapi.responses import NOT_READY_RESPONSES
from agentctl.server.routes.console import (
    is_console_enabled,
    prefers_html,
    redirect_to_console,
)
from agentctl.server.routing import Operation
from agentctl.server.state import Call


async def get_api(call: Call) -> Response:
    """Name the service.

    Redirects browsers to the console.
    """
    if is_console_enabled(call) and prefers_html(call):
        return redirect_to_console()
    return document_response(await call.operations.get_api())


async def get_health(call: Call) -> Response:
    """Check that the process responds."""
    return document_response(await call.operations.get_health())


async def get_readiness(call: Call) -> Response:
    """Check that the instance is ready.

    Returns 503 if it is not ready. The record names the dependency that failed.
    """
    found = await call.operations.get_readiness()
    verifier = call.caller.app_state.verifier
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
    """Get the configuration.

    Databases, models and components, without secrets, paths or hosts.
    """
    return document_response(await call.operations.get_config())


async def get_models(call: Call) -> Response:
    """List the configured models."""
    return document_response(await call.operations.get_models())


def build_operations() -> list[Operation]:
    """Return the operations of the family."""
    tag = "System"
    return [
        Operation(get_api, tag=tag, result=ApiRecord),
        Operation(get_health, tag=tag, result=HealthRecord),
        Operation(get_readiness, tag=tag, result=ReadinessRecord, responses=NOT_READY_RESPONSES),
        Operation(get_info, tag=tag, result=InfoRecord),
        Operation(get_config, tag=tag, result=ConfigRecord),
        Operation(get_models, tag=tag, result=list[ModelEntry]),
    ]
