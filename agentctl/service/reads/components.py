"""The reads of components, and of what the configuration says about the instance."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Set
from typing import TYPE_CHECKING, Any, Literal, cast

import orjson

import agentctl
from agentctl.auth import policy
from agentctl.auth.policy import list_open_operations
from agentctl.auth.tokens.grants import ScopeRules, trace_scopes
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from agentctl.records.system import (
    ApiRecord,
    ComponentEntry,
    ConfigRecord,
    HealthRecord,
    InfoRecord,
    MeRecord,
    ModelEntry,
    ScopeOriginRecord,
    SignInRecord,
    TeamEntry,
    WorkflowEntry,
)
from agentctl.runtime.component import Component
from agentctl.runtime.components.records import build_record
from agentctl.service.reads.configured import (
    Access,
    ConfiguredFamily,
    ConfiguredHosting,
    find_component,
)
from agentctl.service.reads.stores import open_stores

if TYPE_CHECKING:
    from agentctl.auth.principal import Principal
    from agentctl.config.settings import Settings
    from agentctl.interface.operations import Operations


class ComponentReads(ConfiguredFamily):
    """Reads of components."""

    def _build_list(self, kind: ComponentKind, visible_ids: Set[str]) -> Document[list[Any]]:
        catalog = self.hosting.catalog
        return build_document(
            [
                build_record(catalog, component)
                for component in catalog.components(kind).values()
                if component.id in visible_ids
            ]
        )

    async def get(self, kind: ComponentKind, component_id: str) -> Document[Any]:
        path = {KINDS[kind].id_field: component_id}
        async with self.audit(operation_ids(kind).get, **path):
            catalog = self.hosting.catalog
            component = find_component(catalog, kind, component_id)
            record = {**build_record(catalog, component), "on_busy": component.on_busy}
            if kind == "team":
                return build_document(record)
            input_schema = catalog.find_input_schema(component)
            record["input_schema"] = None if input_schema is None else input_schema.schema
            return build_document(record)

    def require(self, kind: ComponentKind, component_id: str) -> None:
        """Raise NotFound unless the component is configured."""
        find_component(self.hosting.catalog, kind, component_id)

    async def list(self, kind: ComponentKind) -> Document[list[Any]]:
        operation = operation_ids(kind).list
        async with self.audit(operation):
            allowed_ids = policy.allowed_ids(self.principal, operation)
            if allowed_ids is not None:
                return self._build_list(kind, allowed_ids)

            # The configuration does not change, and most callers may read all components. Only the
            # tools of MCP servers change.
            catalog = self.hosting.catalog
            listings = self.hosting.listings
            if kind not in listings or catalog.mcp.hosted:
                listings[kind] = self._build_list(kind, catalog.components(kind).keys())
            return listings[kind]


class SystemReads(ConfiguredFamily):
    """Reads of the instance and of the caller: versions, configuration, scopes."""

    async def get_api(self) -> Document[ApiRecord]:
        server = self.hosting.settings.server
        return build_document(
            ApiRecord(name=server.name, id=server.id, version=agentctl.__version__)
        )

    async def get_health(self) -> Document[HealthRecord]:
        return build_document(HealthRecord(status="ok"))

    async def get_info(self) -> Document[InfoRecord]:
        settings = self.hosting.settings
        record = InfoRecord(
            os_id=settings.server.id,
            name=settings.server.name,
            version=agentctl.__version__,
            interface_version=agentctl.INTERFACE_VERSION,
            agent_count=len(settings.agents),
            team_count=len(settings.teams),
            workflow_count=len(settings.workflows),
            auth_mode=self._auth_mode(),
        )

        if settings.left_out:
            record["left_out_count"] = len(settings.left_out)

        console = settings.console
        if console.oidc_issuer:
            record["sign_in"] = SignInRecord(
                issuer=console.oidc_issuer,
                client_id=console.oidc_cli_client_id or console.oidc_client_id,
                scopes=list(console.oidc_scopes),
                token=console.oidc_token,
            )

        return build_document(record)

    async def get_me(self) -> Document[MeRecord]:
        async with self.audit("get_me"):
            return build_document(
                MeRecord(
                    principal=self.principal.actor,
                    scopes=sorted(self.principal.scopes),
                    admin=self.principal.admin,
                    auth_mode=self._auth_mode(),
                    operations=list_open_operations(self.principal),
                    trace_url=self.hosting.settings.tracing.url or None,
                    scope_origins=self._list_scope_origins(),
                )
            )

    def _list_scope_origins(self) -> list[ScopeOriginRecord]:
        claims = orjson.loads(self.principal.claims or b"{}")
        rules = ScopeRules.from_settings(self.hosting.settings.authorization)
        return [
            ScopeOriginRecord(scope=scope, claim=claim, role=role)
            for scope, claim, role in trace_scopes(claims, rules)
        ]

    def _auth_mode(self) -> Literal["none", "jwt"]:
        return "jwt" if self.hosting.settings.authorization.enabled else "none"

    async def get_models(self) -> Document[list[ModelEntry]]:
        async with self.audit("get_models"):
            models = self.hosting.settings.models
            return build_document(
                [ModelEntry(id=model.id, provider=model.provider) for model in models]
            )

    async def get_config(self) -> Document[ConfigRecord]:
        async with self.audit("get_config"):
            settings = self.hosting.settings
            catalog = self.hosting.catalog
            databases = list(self.hosting.databases)

            agents: list[ComponentEntry] = []
            for agent in catalog.components("agent").values():
                record: Any = build_record(catalog, agent)
                agents.append(ComponentEntry(**_build_entry(agent), model=record["model"]))

            teams: list[TeamEntry] = []
            for team in catalog.components("team").values():
                record = build_record(catalog, team)
                model = record["model"]
                mode = record["mode"]
                teams.append(TeamEntry(**_build_entry(team), mode=mode, model=model))

            workflows = map(_build_entry, catalog.components("workflow").values())

            return build_document(
                ConfigRecord(
                    os_id=settings.server.id,
                    name=settings.server.name,
                    databases=databases,
                    os_database=databases[0],
                    available_models=[model.id for model in settings.models],
                    agents=agents,
                    teams=teams,
                    workflows=list(workflows),
                )
            )


def _build_entry(component: Component) -> WorkflowEntry:
    return WorkflowEntry(
        id=component.id,
        name=component.name,
        description=component.description,
        db_id=component.database,
    )


class ConfiguredOperations:
    """The operations of one principal that need no database of sessions, and only these."""

    def __init__(self, access: Access) -> None:
        self.system = SystemReads(access)
        self.components = ComponentReads(access)


@contextlib.asynccontextmanager
async def open_component_reads(
    settings: Settings, principal: Principal
) -> AsyncIterator[Operations]:
    """Open the `ConfiguredOperations` of a principal: reads that need no session."""
    async with contextlib.AsyncExitStack() as stack:
        databases, audit_log, catalog = open_stores(stack, settings, create=False)
        hosting = ConfiguredHosting(
            settings=settings, databases=databases, catalog=catalog, audit_log=audit_log
        )
        yield cast("Operations", ConfiguredOperations(Access(hosting, principal)))
