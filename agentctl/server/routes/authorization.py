"""The operations that show the caller and explain access decisions."""

from __future__ import annotations

from starlette.responses import Response

from agentctl.records.authorization import ExplainRecord
from agentctl.records.system import MeRecord
from agentctl.requests import (
    ExplainRequest,
)
from agentctl.server.answers import document_response
from agentctl.server.bodies import RequestBody
from agentctl.server.requests import ExplainBody
from agentctl.server.routing import Operation
from agentctl.server.state import Call

_EXPLAIN = RequestBody(ExplainBody)


async def get_me(call: Call) -> Response:
    """Get the identity of the caller.

    The principal of the credential and its scopes.
    """
    return document_response(await call.operations.get_me())


async def explain_auth(call: Call) -> Response:
    """Explain an access decision.

    The checks that the request would pass, the result of each, the one that fails and its remedy.
    No part of the token is returned, logged or stored.
    """
    body = await _EXPLAIN.read(call)
    given = body.get("token")
    token = _own_token(call) if given is None else str(given)
    request = ExplainRequest(body["method"], body["path"], token)
    return document_response(await call.operations.explain_auth(request))


def _own_token(call: Call) -> str | None:
    return call.headers.get("authorization", "").partition(" ")[2] or None


def build_operations() -> list[Operation]:
    """Return the operations of the family."""
    tag = "Authorization"
    return [
        Operation(get_me, tag=tag, result=MeRecord),
        Operation(explain_auth, tag=tag, result=ExplainRecord, errors=(413, 415), body=_EXPLAIN),
    ]
