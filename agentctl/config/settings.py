"""The settings: one class for each table of `agentctl.toml`, with its defaults.

The fields are the keys. The annotation of a field has the type and the rules of its values; the
loader and the reference page read it. The comments for users are in `sample.toml`, which a test
compares with these defaults. docs/contract.md "Configuration" has the rules of all keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from agentctl.config.approvals import Approvals
from agentctl.config.budgets import Budget, ModelPrice, RateLimits
from agentctl.config.files import Files
from agentctl.config.mcp_table import BaseUrl, McpServer, Seconds
from agentctl.config.names import (
    AdminScope,
    ApiVersion,
    ClaimNames,
    DatabaseId,
    DatabaseUrl,
    HistoryRuns,
    Host,
    Id,
    ModelCalls,
    ModelId,
    NextAgent,
    NextTeam,
    NextWorkflow,
    NotEmpty,
    ObjectName,
    Origin,
    PasswordVariable,
    Percent,
    Region,
    RepeatCalls,
    Role,
    SchemaName,
    ScopePrefix,
    Tokens,
    Tool,
    ToolNamePattern,
    VariableName,
)
from agentctl.config.quotas import Quotas
from agentctl.config.retention import Retention, RetentionDays
from agentctl.config.search import Search
from agentctl.config.telemetry import Log, Metrics, TracedParts, Tracing
from agentctl.config.types import HIDDEN, ONE_OR_MORE, FilePath, JsonObject, OptionalPath, Reference
from agentctl.config.webhooks import Webhook
from agentctl.records.kinds import ApprovalPolicy, OnBusy

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
    "ES256", "ES384", "ES512", "EdDSA", "HS256", "HS384", "HS512",
]  # fmt: skip
OnDisconnect = Literal["cancel", "detach"]
OnChange = Literal["continue", "ask", "fail"]
TeamMode = Literal["coordinate", "route", "broadcast"]
Provider = Literal[
    "openai", "anthropic", "google", "bedrock", "azure", "mistral", "groq", "openrouter", "ollama",
    "demo",
]  # fmt: skip
IdentityProvider = Literal["none", "auth0", "cognito", "entra", "google", "keycloak", "okta"]
TlsMode = Literal["prefer", "disable", "require", "verify-ca", "verify-full"]
DemoModel = Literal["echo", "slow", "leader", "tool"]
MemoryMode = Literal["off", "tool", "after_run"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Server:
    """The table `[server]`."""

    id: Id = "agentctl"
    """The name of the deployment, and the default audience."""

    name: NotEmpty = "agentctl"

    url: BaseUrl = ""
    """The address under which clients reach the server, for records.

    Empty for the address of `host` and `port`.
    """

    host: Host = "127.0.0.1"

    port: Annotated[int, Field(ge=0, le=65_535)] = 7777
    """The port; 0 takes any free port."""

    workers: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of worker processes. With more than one, a parent process keeps them on one port."""

    cors_origins: tuple[Origin, ...] = ()

    drain_seconds: Annotated[float, Field(ge=0, le=3_600)] = 25
    """Time for the live runs when the server shuts down."""

    on_disconnect: OnDisconnect = "cancel"
    """The effect of a client that disconnects on its run."""

    compatibility: Literal["none", "agentos"] = "none"
    """See docs/agentos.md."""

    guide: OptionalPath = None
    """The folder of a built documentation site, served at /guide to everybody; None: no site."""

    @property
    def address(self) -> str:
        """The address under which clients reach the server, for records."""
        if self.url:
            return self.url
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Authorization:
    """The table `[authorization]` (docs/contract.md "Authentication"), with absolute paths."""

    enabled: bool = True

    provider: IdentityProvider = "none"
    """The identity provider whose settings are the defaults (`config.load.PRESETS`)."""

    algorithm: Algorithm = "RS256"

    verification_keys: tuple[Annotated[NotEmpty, HIDDEN], ...] = field(default=(), repr=False)
    """PEM texts or one shared secret, including JWT_VERIFICATION_KEY."""

    verification_key_files: tuple[FilePath, ...] = ()

    jwks_file: Annotated[
        tuple[FilePath, ...],
        ONE_OR_MORE,
        Field(description="a text, or a list, each element the path of a file"),
    ] = ()
    """Key sets, including JWT_JWKS_FILE."""

    jwks_url: BaseUrl = ""
    """The URL of a key set; empty for none."""

    oidc_discovery: bool = False
    """Fetch the key set that the configuration of `issuer` names."""

    verify_audience: bool = False

    audience: str = ""
    """The value for `aud` with `verify_audience`; empty for `server.id`."""

    issuer: str = ""
    require_exp: bool = False
    require_sub: bool = False
    admin_scope: AdminScope = "agent_os:admin"
    user_isolation: bool = True

    scopes_claim: ClaimNames = ("scopes",)
    """Claims with scopes, by name or path (`auth.tokens.grants`)."""

    scope_prefix: ScopePrefix = ""
    """A prefix of scopes that is removed; scopes without it count, too."""

    roles_claim: ClaimNames = ()
    """Claims with roles or groups."""

    roles_may_grant_admin: bool = False
    """Allow `admin_scope` in `roles`."""

    roles: dict[Role, tuple[NotEmpty, ...]] = field(default_factory=dict)
    """The scopes of each role or group."""


@dataclass(frozen=True, slots=True)
class Signing:
    """The table `[signing]`, for `agentctl token mint` only; the server never reads the key.

    `key_file` is absolute in loaded settings.
    """

    key_file: FilePath = Path("keys/signing.pem")

    key_id: str = ""
    """The id in the header of tokens; empty for the thumbprint of the key (RFC 7638)."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The table `[runs]`: time limits in seconds."""

    timeout_seconds: Seconds = 3600
    tool_timeout_seconds: Seconds = 300

    on_change: OnChange = "continue"
    """The effect of a new version of a component on its runs that wait (docs/versions.md).

    Components may set another value.
    """

    on_halt: Literal["refuse", "hold"] = "refuse"
    """The treatment of a new run whose component, user or model is halted (docs/halts.md)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The table `[limits]`: limits of requests and stored data, in bytes and counts."""

    body_bytes: Annotated[int, Field(ge=1, le=1 << 30)] = 1_048_576
    message_bytes: Annotated[int, Field(ge=1, le=1 << 30)] = 262_144
    tool_result_bytes: Annotated[int, Field(ge=1, le=1 << 30)] = 1_048_576
    run_bytes: Annotated[int, Field(ge=1, le=1 << 30)] = 16_777_216
    state_bytes: Annotated[int, Field(ge=1, le=1 << 30)] = 65_536
    concurrent_runs: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    followed_runs: Annotated[int, Field(ge=1, le=100_000)] = 100


@dataclass(frozen=True, slots=True)
class Audit:
    """The table `[audit]`: entries for reads, the days that entries are kept, and signed heads."""

    reads: bool = False
    keep_days: Annotated[int, Field(ge=1, le=36_500)] = 365

    key_file: OptionalPath = None
    """The Ed25519 key that signs heads and receipts; None for no signatures."""

    heads_file: OptionalPath = None
    """The file to which each head is appended; None for none."""


@dataclass(frozen=True, slots=True)
class Console:
    """The table `[console]`: the pages `/console` and `/chat`, and their sign-in at a provider."""

    enabled: bool = True
    """Serve the console, and the chat if `chat` is true."""

    chat: bool = True

    oidc_issuer: BaseUrl = ""
    """The provider; empty for a sign-in with a token only."""

    oidc_client_id: str = ""
    """The public client of the console at the provider."""

    oidc_cli_client_id: str = ""
    """The public client of `agentctl login`; empty for the client of the console."""

    oidc_scopes: tuple[NotEmpty, ...] = ()
    """Scopes to ask for besides `openid`."""

    oidc_token: Literal["access_token", "id_token"] = "access_token"
    """The token of the provider that the console sends to this server."""


@dataclass(frozen=True, slots=True)
class Database:
    """An entry of `[[databases]]`. The first one is the default and the system database.

    The keys after `url` are for PostgreSQL.
    """

    id: Id

    url: DatabaseUrl
    """In loaded settings `sqlite:////absolute/path` or `postgresql://…`."""

    pool_size: Annotated[int, Field(ge=1, le=1_000)] = 4
    """Maximum number of connections of each process."""

    wait_seconds: Annotated[float, Field(ge=0.1, le=600)] = 2
    """Maximum wait for a connection."""

    statement_seconds: Annotated[float, Field(ge=0.1, le=3_600)] = 5
    """Time limit of a statement."""

    password_env: PasswordVariable = ""
    """The environment variable with the password."""

    search_path: SchemaName = ""
    tls: TlsMode = "prefer"
    tls_ca_file: OptionalPath = None

    listen_url: DatabaseUrl = ""
    """The way to the same database for notifications, if `url` names a pooler."""

    def at_listen_url(self) -> Database:
        """Return the entry for connections that receive notifications."""
        return replace(self, url=self.listen_url or self.url)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The table `settings` of a model, an agent or a team's leader.

    None and an empty list mean: as the provider does by default. Settings of a component override
    those of its model, key by key.
    """

    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    max_tokens: Annotated[int | None, Field(ge=1, le=100_000_000)] = None
    top_p: Annotated[float | None, Field(ge=0, le=1)] = None

    stop: tuple[Annotated[str, Field(min_length=1, description="a non-empty text")], ...] = ()
    """Texts at which the model stops."""

    seed: Annotated[int | None, Field(ge=0, le=2**63 - 1)] = None
    reasoning_effort: ReasoningEffort | None = None

    timeout_seconds: Annotated[float | None, Field(ge=0.01, le=86_400)] = None
    """Maximum time without data from the provider."""

    extra_body: JsonObject | None = None
    """Members that are added to the body of each request."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """The table `breaker` of a model, an agent, a team or a workflow (docs/halts.md "Breakers")."""

    failures: Annotated[int, Field(ge=0, le=1_000)] = 0
    """Number of failures after which a halt is written; 0 for never."""

    within_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600
    """Time within which they have to happen."""


@dataclass(frozen=True, slots=True)
class Model:
    """An entry of `[[models]]`. The variable in `api_key_env` has the API key."""

    id: Id
    provider: Provider
    model: NotEmpty
    base_url: BaseUrl = ""
    api_key_env: VariableName = ""

    region: Region = ""
    """The AWS region of Bedrock."""

    api_version: ApiVersion = ""
    """Version of the interface of Azure; empty for its version-independent form."""

    settings: ModelSettings = ModelSettings()

    retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Maximum number of further attempts of a model call after temporary failures."""

    fallbacks: tuple[ModelId, ...] = ()
    """Ids of models that are called, in order, if this one is not available."""

    breaker: Breaker = Breaker()
    """Halts the model after failed calls."""

    price: ModelPrice | None = None
    """The price of its tokens; None for the price in the package `genai-prices`."""

    context_tokens: Tokens = 0
    """Tokens of its context window; 0 for the window in the same package."""

    takes: tuple[Literal["image", "pdf", "audio"], ...] = ()
    """The kinds of files that it takes besides text (docs/files.md)."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The table `memory` of an agent or a team."""

    mode: MemoryMode = "off"
    """`tool` gives the model tools that remember, recall, update and forget.

    `after_run` extracts facts from each run after its end.
    """

    model: ModelId = ""
    """The model that extracts facts; empty for the model of the component."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The table `summary` of an agent or a team: summaries of its sessions."""

    every_runs: Annotated[int, Field(ge=0, le=1_000)] = 0
    """Number of runs after which a session is summarized again; 0 for never."""

    model: ModelId = ""
    """The model that summarizes; empty for the model of the component."""


@dataclass(frozen=True, slots=True)
class Agent:
    """An entry of `[[agents]]`. The loader sets an empty `database` to the default one.

    It has either a `model` or an `object`: an agent in code, which takes the place of the model,
    its instructions and its tools.
    """

    id: Id
    model: ModelId = ""
    object: ObjectName = ""
    deps: ObjectName = ""
    store: Literal["user", "shared", "off"] = "user"
    configurable: tuple[NotEmpty, ...] = ()
    name: str = ""
    description: str = ""
    instructions: str = ""
    settings: ModelSettings = ModelSettings()
    output: ObjectName = ""
    memory: Memory = Memory()
    summary: Summary = Summary()
    history_runs: HistoryRuns = 5

    model_calls: ModelCalls = 50
    """Maximum model calls of a run, in all of its legs and processes."""

    repeat_calls: RepeatCalls = 0
    """Identical tool calls in a row after which the next one is not made; 0 for no limit."""

    repeat_calls_by_tool: dict[ToolNamePattern, RepeatCalls] = field(default_factory=dict)
    """The limits of some tools, by names and patterns; the first one that matches counts."""

    tool_result_tokens: Tokens = 0
    """Tokens of a tool result that the model is shown; 0 for all."""

    breaker: Breaker = Breaker()
    """Halts the agent after failed runs."""

    tools: tuple[Tool, ...] = ()

    external_tools: tuple[FilePath, ...] = ()
    """JSON files with tools that the caller of a run executes."""

    approve: dict[ToolNamePattern, ApprovalPolicy] = field(default_factory=dict)
    """The approval policies of tools, by names and patterns; the strictest policy counts."""

    database: DatabaseId = ""
    on_busy: OnBusy = "allow"
    on_change: OnChange | None = None

    next: NextAgent = ""
    """The agent that answers in `percent` of the sessions (docs/versions.md)."""

    percent: Percent = 0

    durable: bool = False
    """Another process continues a run whose process has ended (docs/durable.md)."""

    retention_days: RetentionDays = 0

    trace: TracedParts = "calls"
    """The parts of a run with spans: its calls too, or the run alone (docs/traces.md)."""


@dataclass(frozen=True, slots=True)
class Team:
    """An entry of `[[teams]]`. `members` are ids of agents and teams.

    `external_tools` and `approve` are for the leader, as for an agent.
    """

    id: Id
    model: ModelId
    members: tuple[Annotated[str, Reference(("agents", "teams"))], ...]
    name: str = ""
    description: str = ""
    mode: TeamMode = "coordinate"
    enable_agentic_context: bool = False
    instructions: str = ""
    settings: ModelSettings = ModelSettings()
    memory: Memory = Memory()
    summary: Summary = Summary()
    history_runs: HistoryRuns = 5
    model_calls: ModelCalls = 50
    repeat_calls: RepeatCalls = 0
    repeat_calls_by_tool: dict[ToolNamePattern, RepeatCalls] = field(default_factory=dict)
    tool_result_tokens: Tokens = 0
    breaker: Breaker = Breaker()
    tools: tuple[Tool, ...] = ()
    external_tools: tuple[FilePath, ...] = ()
    approve: dict[ToolNamePattern, ApprovalPolicy] = field(default_factory=dict)
    database: DatabaseId = ""
    on_busy: OnBusy = "allow"
    on_change: OnChange | None = None
    next: NextTeam = ""
    percent: Percent = 0

    durable: bool = False
    """As for an agent; the runs of its members belong to its runs."""

    retention_days: RetentionDays = 0


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a workflow, with exactly one of `agent` and `team`."""

    name: NotEmpty
    agent: Annotated[str, Reference(("agents",))] = ""
    team: Annotated[str, Reference(("teams",))] = ""


_STEPS = 'a list of steps, each like { name = "draft", agent = "writer" }'


@dataclass(frozen=True, slots=True)
class Workflow:
    """An entry of `[[workflows]]`. The runs of the steps of a durable one belong to its runs."""

    id: Id
    steps: Annotated[tuple[Step, ...], Field(description=_STEPS)]
    name: str = ""
    description: str = ""
    breaker: Breaker = Breaker()
    database: DatabaseId = ""
    on_busy: OnBusy = "allow"
    on_change: OnChange | None = None
    next: NextWorkflow = ""
    percent: Percent = 0
    durable: bool = False
    retention_days: RetentionDays = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. A component without a `name` has its id as the name."""

    server: Server = field(default_factory=Server)
    authorization: Authorization = field(default_factory=Authorization)
    signing: Signing = field(default_factory=Signing)
    runs: Runs = field(default_factory=Runs)
    limits: Limits = field(default_factory=Limits)
    approvals: Approvals = field(default_factory=Approvals)
    quotas: Quotas = field(default_factory=Quotas)
    rate_limits: RateLimits = field(default_factory=RateLimits)
    search: Search = field(default_factory=Search)
    files: Files = field(default_factory=Files)
    audit: Audit = field(default_factory=Audit)
    retention: Retention = field(default_factory=Retention)
    log: Log = field(default_factory=Log)
    metrics: Metrics = field(default_factory=Metrics)
    tracing: Tracing = field(default_factory=Tracing)
    console: Console = field(default_factory=Console)
    databases: tuple[Database, ...] = ()
    models: tuple[Model, ...] = ()
    mcp_servers: tuple[McpServer, ...] = ()
    agents: tuple[Agent, ...] = ()
    teams: tuple[Team, ...] = ()
    workflows: tuple[Workflow, ...] = ()
    budgets: tuple[Budget, ...] = ()
    webhooks: tuple[Webhook, ...] = ()

    added: dict[str, Any] = field(default_factory=dict)
    """The tables of extensions, by name; see `get_table`."""

    path: Path | None = None
    """The configuration file, or None."""

    sources: dict[str, str] = field(default_factory=dict, repr=False)
    """The source of each key, such as `server.port` or `agents.writer.model`.

    It is `default`, the path of the file with the line if known, or `env NAME`.
    """

    left_out: dict[str, str] = field(default_factory=dict, repr=False)
    """The problems of the components that `serve --skip-broken` has left out.

    The keys are names such as `agent support`.
    """

    @property
    def has_approvers(self) -> bool:
        """True if a call with the policy `other` can be approved at all."""
        return self.authorization.enabled or self.approvals.own

    def get_table(self, table: type[T]) -> T:
        """Return a table of an extension, with its defaults if it was not loaded."""
        for added_table in self.added.values():
            if isinstance(added_table, table):
                return added_table
        return table()
