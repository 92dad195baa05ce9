"""What can be configured: one class a table of `agentctl.toml`, with its defaults (contract.md 7).

The fields are the keys. A comment that a user needs stands in `sample-config.toml`, which a test
holds against these defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

__all__ = [
    "Agent",
    "Algorithm",
    "Authorization",
    "Database",
    "Limits",
    "Model",
    "OnBusy",
    "OnDisconnect",
    "Runs",
    "Server",
    "Settings",
    "Signing",
    "Step",
    "Team",
    "TeamMode",
    "Workflow",
]

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
    "ES256", "ES384", "ES512", "EdDSA", "HS256", "HS384", "HS512",
]  # fmt: skip
OnDisconnect = Literal["cancel", "detach"]
OnBusy = Literal["allow", "reject"]
TeamMode = Literal["coordinate", "route", "broadcast"]


@dataclass(frozen=True, slots=True)
class Server:
    """`[server]`. `id` names the deployment and is the audience by default."""

    id: str = "agentctl"
    name: str = "agentctl"
    host: str = "127.0.0.1"
    port: int = 7777
    cors_origins: tuple[str, ...] = ()
    drain_seconds: float = 25
    on_disconnect: OnDisconnect = "cancel"


@dataclass(frozen=True, slots=True)
class Authorization:
    """`[authorization]` (spec.md "Authentication" 3). Paths are absolute once loaded.

    Attributes:
        verification_keys: PEM texts or one shared secret; JWT_VERIFICATION_KEY is appended.
        jwks_file: a static JWKS; JWT_JWKS_FILE wins over the file's value. None: no set.
        audience: what `aud` must equal with `verify_audience`; empty: `server.id`.
        leeway_seconds: for `nbf` and `iat` only, never for `exp`.
    """

    enabled: bool = True
    algorithm: Algorithm = "RS256"
    verification_keys: tuple[str, ...] = field(default=(), repr=False)
    verification_key_files: tuple[Path, ...] = ()
    jwks_file: Path | None = None
    verify_audience: bool = False
    audience: str = ""
    issuer: str = ""
    require_exp: bool = False
    require_sub: bool = False
    leeway_seconds: float = 10
    admin_scope: str = "agent_os:admin"
    user_isolation: bool = True


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

    timeout_seconds: float = 3600
    tool_timeout_seconds: float = 300


@dataclass(frozen=True, slots=True)
class Limits:
    """`[limits]`: bounds on what is taken in and kept, in bytes."""

    body_bytes: int = 1_048_576
    message_bytes: int = 262_144
    token_bytes: int = 8_192
    tool_result_bytes: int = 1_048_576
    run_bytes: int = 16_777_216
    concurrent_runs: int = 1_000


@dataclass(frozen=True, slots=True)
class Database:
    """`[[databases]]`. The first entry is the default and the system database.

    `url` is `sqlite:////absolute/path` once loaded.
    """

    id: str
    url: str


@dataclass(frozen=True, slots=True)
class Model:
    """`[[models]]`. The API key itself is read from the variable that `api_key_env` names."""

    id: str
    provider: str
    model: str
    base_url: str = ""
    api_key_env: str = ""


@dataclass(frozen=True, slots=True)
class Agent:
    """`[[agents]]`. `database` empty: the default one."""

    id: str
    model: str
    name: str = ""
    description: str = ""
    instructions: str = ""
    history_runs: int = 5
    tools: tuple[str, ...] = ()
    database: str = ""
    on_busy: OnBusy = "allow"


@dataclass(frozen=True, slots=True)
class Team:
    """`[[teams]]`. `members` are ids of agents and teams."""

    id: str
    model: str
    members: tuple[str, ...]
    name: str = ""
    description: str = ""
    mode: TeamMode = "coordinate"
    instructions: str = ""
    history_runs: int = 5
    tools: tuple[str, ...] = ()
    database: str = ""
    on_busy: OnBusy = "allow"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a workflow: exactly one of `agent` and `team`."""

    name: str
    agent: str = ""
    team: str = ""


@dataclass(frozen=True, slots=True)
class Workflow:
    """`[[workflows]]`."""

    id: str
    steps: tuple[Step, ...]
    name: str = ""
    description: str = ""
    database: str = ""
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
    databases: tuple[Database, ...] = ()
    models: tuple[Model, ...] = ()
    agents: tuple[Agent, ...] = ()
    teams: tuple[Team, ...] = ()
    workflows: tuple[Workflow, ...] = ()
    path: Path | None = None
    sources: dict[str, str] = field(default_factory=dict, repr=False)
