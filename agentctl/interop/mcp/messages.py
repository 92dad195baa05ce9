"""Messages of JSON-RPC, and the errors of the endpoint in its form."""

from __future__ import annotations

from typing import Any, NamedTuple

from starlette.responses import Response

from agentctl.errors import AgentctlError, BadRequest
from agentctl.server.answers import json_response

INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
SERVER_ERROR = -32000

JsonObject = dict[str, Any]


class Message(NamedTuple):
    """A message of a client.

    Attributes:
        id: None for a notification.
        method: empty for the answer to a question.
        result: the result of an answer; None if the client could not answer.
    """

    id: int | str | None
    method: str
    params: JsonObject
    result: JsonObject | None = None


def read_message(body: object) -> Message:
    """Return the message in a body; BadRequest if it is not one message of JSON-RPC 2.0."""
    if isinstance(body, dict) and body.get("jsonrpc") == "2.0":
        found, method = body.get("id"), body.get("method", "")
        params, result = body.get("params", {}), body.get("result")
        has_id = isinstance(found, int | str) and not isinstance(found, bool)
        if isinstance(method, str) and isinstance(params, dict):
            if method and (has_id or "id" not in body):
                return Message(found, method, params)
            if has_id and not method and ("error" in body or isinstance(result, dict)):
                return Message(found, "", {}, result)
    raise BadRequest("The body must be one JSON-RPC message")


def build_response(request_id: int | str, result: JsonObject) -> JsonObject:
    """Return the response to a request."""
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def build_error(request_id: int | str | None, code: int, text: str) -> JsonObject:
    """Return the error of a request; without an id that of a body."""
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": text}}


def build_error_response(discovery: str, error: AgentctlError) -> Response:
    """Return the HTTP response of an error on the endpoint.

    `discovery` has parameters of challenges; empty without an identity provider.
    """
    code = INVALID_REQUEST if isinstance(error, BadRequest) else SERVER_ERROR
    body = build_error(None, code, error.detail)
    body["error"]["data"] = error.body()
    headers = error.headers()
    challenge = headers.get("WWW-Authenticate")
    if challenge is not None:
        headers["WWW-Authenticate"] = f"{challenge}{discovery}"
    return json_response(body, error.status, headers)
