"""The pages of the server and their files, which the OpenAPI document does not contain.

Most are public: they have no data, and their requests for data are operations. The sign-in of the
console changes cookies only.
"""

from __future__ import annotations

from typing import NamedTuple

from agentctl.interface.requirements import Authenticated, Public, Requirement
from agentctl.records.routes import Route


class ServedPage(NamedTuple):
    """The method and path of a page, or of a request that only pages send."""

    route: Route

    needs: Requirement = Public()
    """Requirement for the caller."""


PAGES: dict[str, ServedPage] = {
    "get_docs": ServedPage(Route("GET", "/docs")),
    "get_redoc": ServedPage(Route("GET", "/redoc")),
    "get_openapi": ServedPage(Route("GET", "/openapi.json")),
    "get_oauth2_redirect": ServedPage(Route("GET", "/docs/oauth2-redirect")),
    "get_docs_asset": ServedPage(Route("GET", "/docs/assets/{name}")),
    "get_console": ServedPage(Route("GET", "/console")),
    "get_chat": ServedPage(Route("GET", "/chat")),
    "get_console_asset": ServedPage(Route("GET", "/console/assets/{version}/{folder}/{name}")),
    "keep_console_token": ServedPage(Route("POST", "/console/sign-in/token"), Authenticated()),
    "restore_console_token": ServedPage(Route("GET", "/console/sign-in/token")),
    "forget_console_token": ServedPage(Route("DELETE", "/console/sign-in/token")),
    "start_console_sign_in": ServedPage(Route("POST", "/console/sign-in/start")),
    "finish_console_sign_in": ServedPage(Route("POST", "/console/sign-in/finish")),
    "create_sign_in_link": ServedPage(Route("POST", "/console/sign-in/links"), Authenticated()),
    "use_sign_in_link": ServedPage(Route("POST", "/console/sign-in/link")),
}
"""The pages by the names of their endpoints."""
