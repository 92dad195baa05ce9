"""Sign-in of the console at an OIDC provider (docs/decisions/0057)."""

from __future__ import annotations

import logging
import re
from typing import NotRequired

from starlette.responses import Response
from typing_extensions import TypedDict

from agentctl.auth.oidc import OidcClient, SignInEnd
from agentctl.auth.verifier import parse_bearer
from agentctl.errors import BadRequest, InvalidToken, NotFound, ValidationFailed
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.server.answers import json_response
from agentctl.server.bodies import RequestBody
from agentctl.server.routes.console_tokens import require_page
from agentctl.server.routing import Operation
from agentctl.server.state import Call

_log = RateLimitedLog(logging.getLogger("agentctl.server"))

MAXIMUM_FIELD_LENGTH = 4_096
"""Characters of each field of a body."""

_PAGE_URL = re.compile(r"https?://[^\s?#@]+")


class _StartBody(TypedDict):
    """The start of a sign-in, with the URL of the page."""

    redirect_uri: str


class _FinishBody(TypedDict):
    """The response of the provider, and the secrets of the page."""

    code: str
    code_verifier: str
    nonce: str
    redirect_uri: str
    issuer: NotRequired[str]


async def start_console_sign_in(call: Call, redirect_uri: str) -> Response:
    """Return the URL at which the user signs in, and the secrets of the page."""
    client = _require_client(call)
    _check_fields(redirect_uri)
    started = await client.start(redirect_uri)
    return json_response(started._asdict())


async def finish_console_sign_in(
    call: Call, code: str, code_verifier: str, nonce: str, redirect_uri: str, issuer: str = ""
) -> Response:
    """Return the token of the user, if this server accepts it.

    Raises:
        BadRequest: the provider, or this server, does not accept the sign-in.
    """
    client = _require_client(call)
    _check_fields(redirect_uri, code, code_verifier, nonce, issuer)
    end = SignInEnd(code, code_verifier, nonce, redirect_uri, issuer)
    token = await client.finish(end)
    state = call.caller.app_state
    assert state.verifier is not None
    try:
        parse_bearer(f"Bearer {token}", state.settings.limits.token_bytes)
        await state.verifier.identify(f"Bearer {token}")
    except InvalidToken as failure:
        _log.log("a token of the sign-in provider is not valid here: %s", failure.reason)
        raise BadRequest(
            "The provider has signed you in, but this server does not accept its token",
            hint="ask the operator: the log of the server has the reason",
        ) from None
    return json_response({"token": token})


def build_operations() -> list[Operation]:
    """Return the operations, which the OpenAPI document does not contain."""
    bodies = ((start_console_sign_in, _StartBody), (finish_console_sign_in, _FinishBody))
    return [
        Operation(endpoint, tag="System", body=RequestBody(body), in_document=False)
        for endpoint, body in bodies
    ]


def _check_fields(redirect_uri: str, *others: str) -> None:
    """Check the bounds of the fields.

    Raises:
        ValidationFailed: one is too long, or the URL is none of a page.
    """
    if max(map(len, (redirect_uri, *others))) > MAXIMUM_FIELD_LENGTH:
        raise ValidationFailed(f"A field is longer than {MAXIMUM_FIELD_LENGTH} characters")
    if not _PAGE_URL.fullmatch(redirect_uri):
        raise ValidationFailed("redirect_uri is not the URL of a page")


def _require_client(call: Call) -> OidcClient:
    """Return the client of the provider.

    Raises:
        NotFound: the configuration names no provider, or the console is switched off.
        BadRequest: a page of another origin has made the request.
    """
    require_page(call)
    client = call.caller.app_state.oidc_client
    if client is None:
        raise NotFound("Not found")
    return client
