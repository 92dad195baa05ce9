"""Operations: the things that a caller can do, on the local backend or over HTTP.

`Operations` is the table of the HTTP interface: each method declares its method and path, its
parameters, its result and its texts. Both backends, `Service.operations_for(principal)` and
`RemoteOperations(url, token)`, implement it. No document names a path, host, process or backend,
except `get_deployment`, which is for administrators.
"""

# The methods of `Operations` have no statements: `execute` or a backend executes them.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import cache
from typing import Annotated, Any

from agentctl.interface.declarations import Path, Query, list_declarations, operation
from agentctl.interface.operations.files import FileDeclarations
from agentctl.interface.operations.personal_data import PersonalDataDeclarations
from agentctl.interface.operations.runs import ComponentDeclarations, RunDeclarations, RunId
from agentctl.interface.requests import (
    DEFAULT_LOCATOR,
    FIRST_RUNS,
    FULL_VIEW,
    SUMMARY_WAIT,
    BulkDeletion,
    ExplainRequest,
    NewSession,
    RunView,
    SessionFilter,
    SessionLocator,
    SessionPatch,
    SessionRunsQuery,
    UserId,
)
from agentctl.interface.requests.administration import (
    PRUNE_WAIT,
    AccountFilter,
    AuditFilter,
    AuditHeadFilter,
    DeliveryFilter,
    IdleFilter,
    NewAccount,
    OverviewFilter,
    PruneRequest,
    UsageFilter,
)
from agentctl.interface.requests.halts import HALT_WAIT, HaltFilter, NewHalt
from agentctl.interface.requests.memories import (
    MemoryDeletion,
    MemoryFilter,
    MemoryPatch,
    NewMemory,
)
from agentctl.records.accounts import AccountPage, NewAccountRecord
from agentctl.records.audit import AuditHeadPage, AuditPage
from agentctl.records.authorization import ExplainRecord
from agentctl.records.document import Document
from agentctl.records.halts import HaltPage, HaltRecord, NewHaltRecord
from agentctl.records.items import RunViews
from agentctl.records.memories import MemoryPage, MemoryRecord
from agentctl.records.routes import PAGE_ROUTES, Route, RouteTable
from agentctl.records.runs import RunRecord
from agentctl.records.sessions import (
    ExportFormat,
    HoldRecord,
    IdlePage,
    PruneRecord,
    SessionDetail,
    SessionHead,
    SessionPage,
    SessionView,
)
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
from agentctl.records.usage import BudgetRecord, OverviewRecord, UsageReport
from agentctl.records.webhooks import DeliveryPage, DeliveryRecord, WebhookRecord, WebhookTestRecord

SessionId = Annotated[str, Path("Id of the session")]
MemoryId = Annotated[str, Path("Id of the memory")]
HaltId = Annotated[str, Path("Id of the halt")]
WebhookId = Annotated[str, Path("Id of the webhook in the configuration")]
Form = Annotated[SessionView, Query("`summary`: counts and the last run instead of the history")]

_SESSION = "/sessions/{session_id}"
_MEMORY = "/memories/{memory_id}"


class Operations(
    ComponentDeclarations, RunDeclarations, FileDeclarations, PersonalDataDeclarations
):
    """The operations of one principal. They raise `errors.AgentctlError`.

    The docstring of a method is its text in the OpenAPI document.
    """

    def execute(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Execute an operation that the backend does not override: the method of this name.

        The arguments are by name, with defaults. The result is an awaitable or an iterator.
        """
        raise NotImplementedError(name)

    @operation("GET", "/", tag="System")
    async def get_api(self) -> Document[ApiRecord]:
        """Name the service.

        Redirects browsers to the console.
        """

    @operation("GET", "/health", tag="System")
    async def get_health(self) -> Document[HealthRecord]:
        """Check that the process responds."""

    @operation("GET", "/ready", tag="System")
    async def get_readiness(self) -> Document[ReadinessRecord]:
        """Check that the instance is ready.

        Returns 503 if it is not ready. The record names the dependency that failed.
        """

    @operation("GET", "/info", tag="System")
    async def get_info(self) -> Document[InfoRecord]:
        """Get versions, counts and the authorization mode."""

    @operation("GET", "/config", tag="System")
    async def get_config(self) -> Document[ConfigRecord]:
        """Get the configuration.

        Databases, models and components, without secrets, paths or hosts.
        """

    @operation("GET", "/deployment", tag="System")
    async def get_deployment(self) -> Document[DeploymentRecord]:
        """Get the state of the deployment.

        The workers of all servers, and findings about workers, databases and free space, in the
        words of `agentctl doctor`.
        """

    @operation("GET", "/models", tag="System")
    async def get_models(self) -> Document[list[ModelEntry]]:
        """List the configured models."""

    @operation("GET", "/auth/me", tag="Authorization")
    async def get_me(self) -> Document[MeRecord]:
        """Get the identity of the caller.

        The principal of the credential and its scopes.
        """

    @operation("POST", "/auth/explain", tag="Authorization")
    async def explain_auth(self, request: ExplainRequest) -> Document[ExplainRecord]:
        """Explain an access decision.

        The checks that the request would pass, the result of each, the one that fails and its
        remedy.
        No part of the token is returned, logged or stored.
        """

    @operation("GET", _SESSION, tag="Sessions", summaries=SessionHead)
    async def get_session_by_id(
        self, session_id: SessionId, where: SessionLocator = DEFAULT_LOCATOR, *, view: Form = "full"
    ) -> Document[SessionDetail]:
        """Get a session.

        One session with its metadata, configuration and history. The shape depends on its type.
        With `view=summary` it has no history, and its cost does not depend on the number of runs.
        """

    @operation(
        "GET",
        "/sessions",
        tag="Sessions",
        order=("type", "component_id", "user_id", ..., "db_id", "table"),
    )
    async def get_sessions(self, filter: SessionFilter) -> Document[SessionPage]:
        """List sessions.

        One page of the sessions that the caller can see, as summaries.
        """

    @operation("POST", "/sessions", tag="Sessions", status=201, errors=(409, 429))
    async def create_session(self, session: NewSession) -> Document[SessionDetail]:
        """Create a session.

        Creates an empty session that the caller owns. An id that is in use is a conflict.
        """

    @operation("DELETE", "/sessions", tag="Sessions", errors=(409,))
    async def delete_sessions(self, deletion: BulkDeletion) -> None:
        """Delete several sessions.

        Deletes all of the given sessions with their runs, or none if one of them cannot be deleted.
        """

    @operation("PATCH", _SESSION, tag="Sessions", summaries=SessionHead, errors=(429,))
    async def update_session(
        self,
        session_id: SessionId,
        patch: SessionPatch,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        view: Form = "full",
    ) -> Document[SessionDetail]:
        """Update a session.

        Replaces the name, the state or the metadata. Each given value replaces the whole stored
        value.
        """

    @operation("DELETE", _SESSION, tag="Sessions", errors=(409,))
    async def delete_session(
        self,
        session_id: SessionId,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        cancel: Annotated[
            bool, Query("Cancel its runs first, and wait up to 10 s for them to stop")
        ] = False,
    ) -> None:
        """Delete a session.

        Deletes the session with its runs. A live run is a conflict, unless `cancel` is set.
        """

    @operation("POST", f"{_SESSION}/rename", tag="Sessions", summaries=SessionHead)
    async def rename_session(
        self,
        session_id: SessionId,
        session_name: str,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        view: Form = "full",
    ) -> Document[SessionDetail]:
        """Rename a session."""

    @operation(
        "POST",
        f"{_SESSION}/summarize",
        tag="Sessions",
        summaries=SessionHead,
        errors=(409,),
        wait=SUMMARY_WAIT,
    )
    async def summarize_session(
        self, session_id: SessionId, where: SessionLocator = DEFAULT_LOCATOR, *, view: Form = "full"
    ) -> Document[SessionDetail]:
        """Summarize a session.

        Summarizes the runs that are not part of the summary yet, and returns the session.
        """

    @operation("POST", f"{_SESSION}/hold", tag="Sessions", errors=(409,))
    async def hold_session(
        self, session_id: SessionId, reason: str, where: SessionLocator = DEFAULT_LOCATOR
    ) -> Document[HoldRecord]:
        """Hold a session.

        A held session is not deleted, neither by a request nor for its age.
        """

    @operation("DELETE", f"{_SESSION}/hold", tag="Sessions", errors=(409,))
    async def release_session(
        self, session_id: SessionId, where: SessionLocator = DEFAULT_LOCATOR
    ) -> None:
        """End the hold of a session."""

    @operation("GET", f"{_SESSION}/export", tag="Sessions")
    def export_session(
        self,
        session_id: SessionId,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        format: Annotated[ExportFormat, Query("Format of the file")] = "jsonl",
        model_calls: Annotated[bool, Query("Add the model calls of each run")] = False,
    ) -> AsyncIterator[bytes]:
        """Export a session with all its runs as a file."""

    @operation("GET", "/retention/sessions", tag="Sessions")
    async def get_idle_sessions(self, filter: IdleFilter) -> Document[IdlePage]:
        """List idle sessions.

        One page of the sessions that were not used for some days, with their sizes.
        """

    @operation("POST", "/retention/sessions/prune", tag="Sessions", wait=PRUNE_WAIT)
    async def prune_sessions(self, request: PruneRequest) -> Document[PruneRecord]:
        """Remove idle sessions.

        Removes those of the given sessions that are still idle, with everything that belongs to
        them, and names the others. Held sessions and those with a live or paused run stay.
        """

    @operation("GET", f"{_SESSION}/runs", tag="Sessions", summaries=list[RunViews])
    async def get_session_runs(
        self, session_id: SessionId, query: SessionRunsQuery = FIRST_RUNS
    ) -> Document[list[RunRecord]]:
        """List the runs of a session.

        Oldest first, including the runs of members and steps. If there are as many as `limit`,
        `after` with the id of the last one continues the list, or `before` if the order is `desc`.
        """

    @operation("GET", f"{_SESSION}/runs/{{run_id}}", tag="Sessions", summaries=RunViews)
    async def get_session_run(
        self,
        session_id: SessionId,
        run_id: RunId,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        form: RunView = FULL_VIEW,
    ) -> Document[RunRecord]:
        """Get a run of a session."""

    @operation("GET", _MEMORY, tag="Memories")
    async def get_memory(self, memory_id: MemoryId) -> Document[MemoryRecord]:
        """Get a memory."""

    @operation("GET", "/memories", tag="Memories")
    async def get_memories(self, filter: MemoryFilter) -> Document[MemoryPage]:
        """List memories.

        One page of the memories that the caller can see.
        """

    @operation("POST", "/memories", tag="Memories", status=201, errors=(429,))
    async def create_memory(self, memory: NewMemory) -> Document[MemoryRecord]:
        """Create a memory.

        Stores a fact about the caller, or about another user if the caller is an administrator.
        """

    @operation("PATCH", _MEMORY, tag="Memories")
    async def update_memory(
        self, memory_id: MemoryId, patch: MemoryPatch
    ) -> Document[MemoryRecord]:
        """Update a memory.

        Replaces the text or the topics. The given topics replace all topics.
        """

    @operation("DELETE", _MEMORY, tag="Memories")
    async def delete_memory(self, memory_id: MemoryId) -> None:
        """Delete a memory."""

    @operation("DELETE", "/memories", tag="Memories")
    async def delete_memories(self, deletion: MemoryDeletion) -> None:
        """Delete several memories.

        Deletes all of the given memories, or none if one of them cannot be deleted. With `all`,
        deletes every memory of one user.
        """

    @operation("GET", "/memory_topics", tag="Memories")
    async def get_memory_topics(self, *, user_id: UserId = None) -> Document[list[str]]:
        """List the topics of memories.

        Each topic of the memories that the caller can see, once, in alphabetical order.
        """

    @operation("GET", "/budgets", tag="Usage")
    async def get_budgets(self, *, user_id: UserId = None) -> Document[list[BudgetRecord]]:
        """List budgets.

        The budgets of the configuration in their present periods and their use:
        those per user with the users who have used most, or the caller alone.
        """

    @operation("GET", "/usage", tag="Usage")
    async def get_usage(self, filter: UsageFilter) -> Document[UsageReport]:
        """Sum tokens and cost.

        Of the runs that the caller can see and that ended in a period, by day, user, component or
        model. The runs of members and background work are included, and nothing is counted twice.
        """

    @operation("GET", "/usage/overview", tag="Usage")
    async def get_usage_overview(self, filter: OverviewFilter) -> Document[OverviewRecord]:
        """Get an overview of runs.

        Runs, failures by cause, times, tokens and cost of the runs that the caller can see, by hour
        or day and by component, model or user; and what waits for a person now.
        """

    @operation("POST", "/service-accounts", tag="Service accounts", status=201, errors=(409,))
    async def create_service_account(self, account: NewAccount) -> Document[NewAccountRecord]:
        """Create a service account.

        The response has its token, which is shown once. The caller must have each granted scope.
        """

    @operation("GET", "/service-accounts", tag="Service accounts", without=("sort_by",))
    async def list_service_accounts(self, filter: AccountFilter) -> Document[AccountPage]:
        """List service accounts.

        One page of all accounts of the instance, including expired and revoked ones.
        """

    @operation("DELETE", "/service-accounts/{account_id}", tag="Service accounts")
    async def revoke_service_account(
        self, account_id: Annotated[str, Path("Id of the service account")]
    ) -> None:
        """Revoke a service account.

        Its token is rejected within a second. The account stays in the list; its name can be
        reused.
        """

    @operation("GET", "/webhooks", tag="Webhooks")
    async def get_webhooks(self) -> Document[list[WebhookRecord]]:
        """List webhooks.

        The endpoints of the configuration, with the numbers of their stored deliveries.
        """

    @operation("GET", "/webhooks/deliveries", tag="Webhooks", without=("sort_by",))
    async def get_webhook_deliveries(self, filter: DeliveryFilter) -> Document[DeliveryPage]:
        """List deliveries.

        One page of the stored deliveries, newest first. The bodies are not part of it.
        """

    @operation("POST", "/webhooks/deliveries/{delivery_id}/redeliver", tag="Webhooks")
    async def redeliver_webhook(
        self, delivery_id: Annotated[str, Path("Id of the delivery")]
    ) -> Document[DeliveryRecord]:
        """Deliver again.

        Lets the delivery wait again, with all its attempts and the same event id, although it was
        delivered or is dead.
        """

    @operation("POST", "/webhooks/{webhook_id}/test", tag="Webhooks", wait=30.0)
    async def test_webhook(self, webhook_id: WebhookId) -> Document[WebhookTestRecord]:
        """Test a webhook.

        Sends one signed event `webhook.test` to the endpoint, even if it is disabled, and returns
        the outcome. The event is not stored and not sent again.
        """

    @operation("POST", "/webhooks/{webhook_id}/enable", tag="Webhooks")
    async def enable_webhook(self, webhook_id: WebhookId) -> Document[WebhookRecord]:
        """Enable a webhook.

        Events are sent again to an endpoint that was disabled by a response with the status 410,
        also those that wait.
        """

    @operation("GET", "/halts", tag="Halts", without=("sort_by",))
    async def get_halts(self, filter: HaltFilter) -> Document[HaltPage]:
        """List halts.

        One page of the halts of the instance, newest first, including ended ones.
        """

    @operation("POST", "/halts", tag="Halts", status=201, wait=HALT_WAIT)
    async def create_halt(self, halt: NewHalt) -> Document[NewHaltRecord]:
        """Halt work.

        From the moment of the response, no server starts a call of a model or a tool in the scope
        of the halt. New runs are refused with 503, and other work waits until the halt ends.
        """

    @operation("GET", "/halts/{halt_id}", tag="Halts")
    async def get_halt(self, halt_id: HaltId) -> Document[HaltRecord]:
        """Get a halt."""

    @operation("DELETE", "/halts/{halt_id}", tag="Halts", errors=(409,))
    async def end_halt(self, halt_id: HaltId) -> None:
        """End a halt.

        The work in its scope continues where it waits, unless another halt stops it.
        """

    @operation("GET", "/audit", tag="Authorization")
    async def get_audit(self, filter: AuditFilter) -> Document[AuditPage]:
        """List audit entries.

        The entries of all principals, newest first. There is one for every change and for every
        denied call of an identified caller; calls without a valid credential are counted by cause.
        """

    @operation("GET", "/audit/heads", tag="Authorization")
    async def get_audit_heads(self, filter: AuditHeadFilter) -> Document[AuditHeadPage]:
        """List signed heads of the audit log.

        Newest first. Each covers the entries since the one before it, with their digest.
        """


OPERATIONS = {declared.name: declared for declared in list_declarations(Operations)}
"""The declared operations by operation id, in the order of the OpenAPI document."""

ROUTES: dict[str, Route] = {
    **{name: declared.route for name, declared in OPERATIONS.items()},
    **PAGE_ROUTES,
}
"""Method and path of every operation and page (docs/contract.md "Routes").

The server, the policy, `auth explain` and the remote backend use this table.
"""


@cache
def route_table() -> RouteTable:
    """Return the table of all operations and pages."""
    return RouteTable(ROUTES)
