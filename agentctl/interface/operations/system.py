"""The operations on the instance and on the caller; see `agentctl.interface.operations`."""

# The methods have no statements: `execute` or a backend executes them.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from agentctl.interface.bodies import ExplainBody
from agentctl.interface.declarations import Body, Family, operation
from agentctl.interface.requests import ExplainRequest
from agentctl.interface.requirements import Admin, Authenticated, NeedsScope, Public
from agentctl.interface.responses import NOT_READY_RESPONSES
from agentctl.records.authorization import ExplainRecord
from agentctl.records.document import Document
from agentctl.records.system import (
    ApiRecord,
    ConfigRecord,
    DeploymentRecord,
    HealthRecord,
    InfoRecord,
    MeRecord,
    ModelEntry,
    ReadinessRecord,
)


class SystemFamily(Family):
    """The operations on the instance, and on the caller and its access."""

    @operation("get_api", "GET", "/", needs=Public(), tag="System")
    async def get_api(self) -> Document[ApiRecord]:
        """Name the service.

        Redirects browsers to the console.
        """

    @operation("get_health", "GET", "/health", needs=Public(), tag="System")
    async def get_health(self) -> Document[HealthRecord]:
        """Check that the process responds."""

    @operation(
        "get_readiness",
        "GET",
        "/ready",
        needs=Public(),
        tag="System",
        responses=NOT_READY_RESPONSES,
        # A server that is not ready responds with 503 and the record, not with an error body.
        accepted_status=503,
    )
    async def get_readiness(self) -> Document[ReadinessRecord]:
        """Check that the instance is ready.

        Returns 503 if it is not ready. The record names the dependency that failed.
        """

    @operation("get_info", "GET", "/info", needs=Public(), tag="System")
    async def get_info(self) -> Document[InfoRecord]:
        """Get versions, counts and the authorization mode."""

    @operation("get_config", "GET", "/config", needs=NeedsScope("config", "read"), tag="System")
    async def get_config(self) -> Document[ConfigRecord]:
        """Get the configuration.

        Databases, models and components, without secrets, paths or hosts.
        """

    @operation("get_deployment", "GET", "/deployment", needs=Admin(), tag="System")
    async def get_deployment(self) -> Document[DeploymentRecord]:
        """Get the state of the deployment.

        The workers of all servers, and findings about workers, databases and free space, in the
        words of `agentctl doctor`.
        """

    @operation("get_models", "GET", "/models", needs=NeedsScope("config", "read"), tag="System")
    async def get_models(self) -> Document[list[ModelEntry]]:
        """List the configured models."""

    @operation("get_me", "GET", "/auth/me", needs=Authenticated(), tag="Authorization")
    async def get_me(self) -> Document[MeRecord]:
        """Get the identity of the caller.

        The principal of the credential and its scopes.
        """

    @operation(
        "explain_auth",
        "POST",
        "/auth/explain",
        needs=Admin(),
        tag="Authorization",
        body=Body(ExplainBody),
        is_read=True,
    )
    async def explain_auth(self, request: ExplainRequest) -> Document[ExplainRecord]:
        """Explain an access decision.

        The checks that the request would pass, the result of each, the one that fails and its
        remedy.
        No part of the token is returned, logged or stored.
        """
