"""Who the caller is, and why a request is allowed or not."""

from __future__ import annotations

from starlette.responses import Response

from agentctl.operations import ExplainRequest
from agentctl.records.authorization import ExplainRecord
from agentctl.records.system import MeRecord
from agentctl.server.answers import document_response
from agentctl.server.bodies import RequestBody
from agentctl.server.requests import ExplainBody
from agentctl.server.routes.declared import build_operation
from agentctl.server.routing import Operation
from agentctl.server.state import Call

__all__ = ["build_operations", "explain_auth", "get_me"]

_EXPLAIN = RequestBody(ExplainBody)


async def get_me(call: Call) -> Response:
    """Get who the caller is.

    The principal that the credential stands for, and the scopes that it holds.
    """
    return document_response(await call.operations.get_me())


async def explain_auth(call: Call) -> Response:
    """Explain what a request would be answered.

    The chain of checks that it would go through, what each of them found, where it broke and what
    would mend it. Nothing of the token is answered, logged or kept.
    """
    body = await _EXPLAIN.read(call)
    given = body.get("token")
    token = _own_token(call) if given is None else str(given)
    request = ExplainRequest(body["method"], body["path"], token)
    return document_response(await call.operations.explain_auth(request))


def _own_token(call: Call) -> str | None:
    """That of a caller who was let pass; with authorization off there need be none."""
    return call.headers.get("authorization", "").partition(" ")[2] or None


def build_operations() -> list[Operation]:
    """The routes."""
    tag = "Authorization"
    return [
        build_operation(get_me, tag=tag, answers=MeRecord),
        build_operation(
            explain_auth, tag=tag, answers=ExplainRecord, errors=(413, 415), body=_EXPLAIN
        ),
    ]
