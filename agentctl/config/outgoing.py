"""The servers that a configuration makes requests to, and the proxies on the way to them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from agentctl.config.providers import find_url, list_used_models
from agentctl.config.settings import Settings
from agentctl.errors import InvalidConfiguration
from agentctl.records.proxies import check_proxy

_COLLECTOR = "http://localhost:4318"
"""The address to which the SDK of OpenTelemetry sends spans by default."""


def check_proxies(settings: Settings) -> None:
    """Check the proxies that the environment names for the requests of this configuration.

    Deliveries of webhooks use no proxy.

    Raises:
        InvalidConfiguration: a proxy cannot be used; the cause names the part that needs it.
    """
    for owner, url in _list_servers(settings):
        try:
            check_proxy(url)
        except InvalidConfiguration as failure:
            failure.cause = f"{failure.cause}; {owner} needs it"
            raise


def _list_servers(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the parts that make requests, each with a URL.

    The URL is empty if only a library knows it.
    """
    for model in list_used_models(settings):
        yield f"the model {model.id}", find_url(model)
    for server in settings.mcp_servers:
        if server.url:
            yield f"the MCP server {server.id}", server.url

    authorization = settings.authorization
    if authorization.enabled and authorization.jwks_url:
        yield "the key set of jwks_url", authorization.jwks_url
    if authorization.enabled and authorization.oidc_discovery:
        yield "the issuer of the tokens", authorization.issuer
    if settings.console.oidc_issuer:
        yield "the sign-in of the console", settings.console.oidc_issuer

    if settings.tracing.enabled:
        variable = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
        yield "the export of traces", settings.tracing.endpoint or variable or _COLLECTOR
