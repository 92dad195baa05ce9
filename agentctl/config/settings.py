"""What can be configured: one class a table of `agentctl.toml`, with its defaults (contract.md 7).

The fields are the keys, and a key's annotation says what it may hold: the loader and the reference
page read both. A comment that a user needs stands in `sample-config.toml`, which a test holds
against these defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from agentctl.config.types import Form, Range, Reference, Secret
from agentctl.records.ids import COMPONENT_ID

__all__ = [
    "Agent",
    "Algorithm",
    "Audit",
    "Authorization",
    "Database",
    "DemoModel",
    "Limits",
    "Log",
    "LogFormat",
    "LogLevel",
    "Metrics",
    "Model",
    "OnBusy",
    "OnDisconnect",
    "Provider",
    "Runs",
    "Server",
    "Settings",
    "Signing",
    "Step",
    "Team",
    "TeamMode",
    "TlsMode",
    "Workflow",
]

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
    "ES256", "ES384", "ES512", "EdDSA", "HS256", "HS384", "HS512",
]  # fmt: skip
OnDisconnect = Literal["cancel", "detach"]
OnBusy = Literal["allow", "reject"]
TeamMode = Literal["coordinate", "route", "broadcast"]
Provider = Literal["openai", "demo"]
LogFormat = Literal["readable", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
TlsMode = Literal["prefer", "disable", "require", "verify-ca", "verify-full"]
DemoModel = Literal["echo", "slow", "leader"]

Id = Annotated[
    str,
    Form(
        COMPONENT_ID,
        'an id: 1 to 64 letters, digits, ".", "_" and "-", starting with a letter or a digit',
    ),
]
Host = Annotated[
    str,
    Form(
        r"^([A-Za-z0-9][A-Za-z0-9._-]*|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(%\w+)?)$",
        "a host name or an address without a port",
    ),
]
Origin = Annotated[
    str,
    Form(
        r"^(\*|https?://[^\s/?#@]+)$",
        'an origin like "https://app.example.org" without a path, or "*"',
    ),
]
AdminScope = Annotated[
    str,
    Form(
        r"^(?!.*:(read|run|write|delete)$)[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+){1,2}$",
        'a scope like "agent_os:admin" that ends in none of read, run, write, delete',
    ),
]
TokenPrefix = Annotated[
    str,
    Form(
        r"^[a-z][a-z0-9]{0,30}$",
        "1 to 31 small letters and digits, starting with a letter",
    ),
]
Tool = Annotated[
    str,
    Form(
        r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$",
        '"package.module:function"',
    ),
]
BaseUrl = Annotated[
    str,
    Form(
        r"^(https?://[^\s/?#@]+(/[^\s?#]*)?)?$",
        'a URL like "http://127.0.0.1:8000/v1" without credentials or query, or empty',
    ),
    Secret(masked=False),
]
VariableName = Annotated[
    str,
    Form(
        r"^([A-Za-z_][A-Za-z0-9_]*)?$",
        "the name of an environment variable that holds the API key, never the key itself",
    ),
    Secret(masked=False),
]
PasswordVariable = Annotated[
    str,
    Form(
        r"^([A-Za-z_][A-Za-z0-9_]*)?$",
        "the name of an environment variable that holds the password, never the password itself",
    ),
    Secret(masked=False),
]
DatabaseUrl = Annotated[str, Secret(masked=False)]
SchemaName = Annotated[
    str,
    Form(
        r"^([a-z_][a-z0-9_]{0,62})?$",
        'the name of a schema: small letters, digits and "_", not starting with a digit',
    ),
]
ListenAddress = Annotated[
    str,
    Form(
        r"^(([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5})?$",
        'a host and a port like "127.0.0.1:9464" or "[::1]:9464", or empty',
    ),
]
NotEmpty = Annotated[str, Form(r"^(?s:.*\S.*)$", "a text that is not empty")]
ModelId = Annotated[str, Reference("models")]
DatabaseId = Annotated[str, Reference("databases")]
Seconds = Annotated[float, Range(0.01, 2_592_000)]
HistoryRuns = Annotated[int, Range(0, 1_000)]


@dataclass(frozen=True, slots=True)
class Server:
    """`[server]`. `id` names the deployment and is the audience by default.

    `port` 0: any free one. With more than one of `workers` a parent keeps so many processes, which
    serve together on the one port.
    """

    id: Id = "agentctl"
    name: NotEmpty = "agentctl"
    host: Host = "127.0.0.1"
    port: Annotated[int, Range(0, 65_535)] = 7777
    workers: Annotated[int, Range(1, 64)] = 1
    cors_origins: tuple[Origin, ...] = ()
    drain_seconds: Annotated[float, Range(0, 3_600)] = 25
    on_disconnect: OnDisconnect = "cancel"


@dataclass(frozen=True, slots=True)
class Authorization:
    """`[authorization]` (spec.md "Authentication" 3). Paths are absolute once loaded.

    Attributes:
        verification_keys: PEM texts or one shared secret; JWT_VERIFICATION_KEY is appended.
        jwks_file: a static JWKS; JWT_JWKS_FILE wins over the file's value. None: no set.
        audience: what `aud` must equal with `verify_audience`; empty: `server.id`.
        leeway_seconds: for `nbf` and `iat` only, never for `exp`.
        token_prefix: of the tokens of service accounts: `<prefix>_pat_...`.
    """

    enabled: bool = True
    algorithm: Algorithm = "RS256"
    verification_keys: tuple[Annotated[NotEmpty, Secret()], ...] = field(default=(), repr=False)
    verification_key_files: tuple[Path, ...] = ()
    jwks_file: Path | None = None
    verify_audience: bool = False
    audience: str = ""
    issuer: str = ""
    require_exp: bool = False
    require_sub: bool = False
    leeway_seconds: Annotated[float, Range(0, 300)] = 10
    admin_scope: AdminScope = "agent_os:admin"
    user_isolation: bool = True
    token_prefix: TokenPrefix = "agentctl"


@dataclass(frozen=True, slots=True)
class Signing:
    """`[signing]`: read by `agentctl token mint` only, never by the server.

    `key_id` empty: the RFC 7638 thumbprint. `key_file` is absolute once loaded.
    """

    key_file: Path = Path("keys/signing.pem")
    key_id: str = ""


@dataclass(frozen=True, slots=True)
class Runs:
    """`[runs]`: bounds on the time of work, in seconds."""

    timeout_seconds: Seconds = 3600
    tool_timeout_seconds: Seconds = 300


@dataclass(frozen=True, slots=True)
class Limits:
    """`[limits]`: bounds on what is taken in and kept, in bytes, and on how long it may take.

    Attributes:
        header_bytes: of the request line and the header fields together.
        header_count: fields of a request.
        header_seconds: from a connection's beginning, or from the first byte of a later request, to
            the end of the head.
        body_seconds: from there to the end of the body.
    """

    body_bytes: Annotated[int, Range(1, 1 << 30)] = 1_048_576
    message_bytes: Annotated[int, Range(1, 1 << 30)] = 262_144
    header_bytes: Annotated[int, Range(1_024, 65_536)] = 16_384
    header_count: Annotated[int, Range(8, 1_000)] = 100
    header_seconds: Annotated[float, Range(0.01, 3_600)] = 10
    body_seconds: Annotated[float, Range(0.01, 3_600)] = 30
    token_bytes: Annotated[int, Range(1, 65_536)] = 8_192
    tool_result_bytes: Annotated[int, Range(1, 1 << 30)] = 1_048_576
    run_bytes: Annotated[int, Range(1, 1 << 30)] = 16_777_216
    concurrent_runs: Annotated[int, Range(1, 100_000)] = 1_000


@dataclass(frozen=True, slots=True)
class Audit:
    """`[audit]`: what the audit records beside changes and denials, and for how long it does."""

    reads: bool = False
    keep_days: Annotated[int, Range(1, 36_500)] = 365


@dataclass(frozen=True, slots=True)
class Log:
    """`[log]`: how a server's lines read, and from which level on there are any.

    At `info` every finished request has one.
    """

    format: LogFormat = "readable"
    level: LogLevel = "warning"


@dataclass(frozen=True, slots=True)
class Metrics:
    """`[metrics]`: where Prometheus may ask; empty: nowhere. Nobody needs a token there.

    Attributes:
        allow_remote: `listen` may be an address that other machines reach.
    """

    listen: ListenAddress = ""
    allow_remote: bool = False


@dataclass(frozen=True, slots=True)
class Database:
    """`[[databases]]`. The first entry is the default and the system database.

    `url` is `sqlite:////absolute/path` once loaded, or `postgresql://…`. The other keys are for
    PostgreSQL: `pool_size` connections at most in each process, `wait_seconds` for a free or a new
    one, `statement_seconds` for each statement.
    """

    id: Id
    url: DatabaseUrl
    pool_size: Annotated[int, Range(1, 1_000)] = 10
    wait_seconds: Annotated[float, Range(0.1, 600)] = 2
    statement_seconds: Annotated[float, Range(0.1, 3_600)] = 5
    password_env: PasswordVariable = ""
    search_path: SchemaName = ""
    tls: TlsMode = "prefer"
    tls_ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """`[[models]]`. The API key itself is read from the variable that `api_key_env` names."""

    id: Id
    provider: Provider
    model: NotEmpty
    base_url: BaseUrl = ""
    api_key_env: VariableName = ""


@dataclass(frozen=True, slots=True)
class Agent:
    """`[[agents]]`. The loader fills an empty `database` with the default one's id."""

    id: Id
    model: ModelId
    name: str = ""
    description: str = ""
    instructions: str = ""
    history_runs: HistoryRuns = 5
    tools: tuple[Tool, ...] = ()
    database: DatabaseId = ""
    on_busy: OnBusy = "allow"


@dataclass(frozen=True, slots=True)
class Team:
    """`[[teams]]`. `members` are ids of agents and teams."""

    id: Id
    model: ModelId
    members: tuple[Annotated[str, Reference("agents", "teams")], ...]
    name: str = ""
    description: str = ""
    mode: TeamMode = "coordinate"
    instructions: str = ""
    history_runs: HistoryRuns = 5
    tools: tuple[Tool, ...] = ()
    database: DatabaseId = ""
    on_busy: OnBusy = "allow"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a workflow: exactly one of `agent` and `team`."""

    name: NotEmpty
    agent: Annotated[str, Reference("agents")] = ""
    team: Annotated[str, Reference("teams")] = ""


@dataclass(frozen=True, slots=True)
class Workflow:
    """`[[workflows]]`."""

    id: Id
    steps: tuple[Step, ...]
    name: str = ""
    description: str = ""
    database: DatabaseId = ""
    on_busy: OnBusy = "allow"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that was configured. `name` of a component that gave none is its id.

    Attributes:
        path: the file that was read, or None when there was none.
        sources: for every key (`server.port`, `agents.writer.model`) where its value came from:
            `default`, the file's path with the line where known, or `env NAME`.
    """

    server: Server = field(default_factory=Server)
    authorization: Authorization = field(default_factory=Authorization)
    signing: Signing = field(default_factory=Signing)
    runs: Runs = field(default_factory=Runs)
    limits: Limits = field(default_factory=Limits)
    audit: Audit = field(default_factory=Audit)
    log: Log = field(default_factory=Log)
    metrics: Metrics = field(default_factory=Metrics)
    databases: tuple[Database, ...] = ()
    models: tuple[Model, ...] = ()
    agents: tuple[Agent, ...] = ()
    teams: tuple[Team, ...] = ()
    workflows: tuple[Workflow, ...] = ()
    path: Path | None = None
    sources: dict[str, str] = field(default_factory=dict, repr=False)
