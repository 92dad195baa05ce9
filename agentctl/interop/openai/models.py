"""Agents and teams as the models of OpenAI's API.

An id of a component is the id of its model. Agents and teams share no id (`config.checks`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from starlette.responses import Response

from agentctl.auth.policy import authorize, required_scopes
from agentctl.auth.principal import Principal
from agentctl.config.settings import Settings
from agentctl.errors import Forbidden
from agentctl.interop.openai.failures import ModelNotFound
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from agentctl.server.answers import BytesResponse
from agentctl.server.state import Call

_KINDS: tuple[ComponentKind, ...] = ("agent", "team")


async def list_models(call: Call, principal: Principal) -> Response:
    """Respond with the models that a caller may run, agents first, in the configured order."""
    settings = call.caller.app_state.settings
    models = [
        _format_model(settings, model)
        for kind, model in _iter_models(settings)
        if _may_run(principal, kind, model)
    ]
    return BytesResponse(orjson.dumps({"object": "list", "data": models}))


async def get_model(call: Call, principal: Principal, model: str) -> Response:
    """Respond with one model; errors as those of `find_model`."""
    settings = call.caller.app_state.settings
    find_model(settings, principal, model)
    return BytesResponse(orjson.dumps(_format_model(settings, model)))


def find_model(settings: Settings, principal: Principal, model: str) -> ComponentKind:
    """Return the kind of the component that a caller wants to run.

    Raises:
        Forbidden: the caller may not run a component with this id, whether it exists or not.
        ModelNotFound: there is no such agent and no such team.
    """
    kind = next((kind for kind, known in _iter_models(settings) if known == model), None)
    possible = _KINDS if kind is None else (kind,)
    if not any(_may_run(principal, one, model) for one in possible):
        scopes = [
            scope
            for one in _KINDS
            for scope in required_scopes(
                operation_ids(one).create_run, {KINDS[one].id_field: model}
            )
        ]
        raise Forbidden(
            f"Insufficient scopes for this model: one of {', '.join(scopes)} is required"
            + principal.unread_note,
            required_scopes=tuple(scopes),
        )
    if kind is None:
        raise ModelNotFound
    return kind


def _iter_models(settings: Settings) -> Iterator[tuple[ComponentKind, str]]:
    yield from (("agent", agent.id) for agent in settings.agents)
    yield from (("team", team.id) for team in settings.teams)


def _may_run(principal: Principal, kind: ComponentKind, model: str) -> bool:
    try:
        authorize(principal, operation_ids(kind).create_run, {KINDS[kind].id_field: model})
    except Forbidden:
        return False
    return True


def _format_model(settings: Settings, model: str) -> dict[str, Any]:
    # The configuration has no time at which a component was created.
    return {"id": model, "object": "model", "created": 0, "owned_by": settings.server.id}
