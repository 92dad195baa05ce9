"""A folder to test in: a configuration with keys and models on the stub endpoint, and tokens."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentctl.auth.keys.files import write_private_key
from agentctl.auth.keys.signing import build_public_pem, generate_key
from agentctl.auth.principal import Principal
from agentctl.auth.tokens import mint
from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Settings
from tests.kit.conditions import PATIENCE
from tests.kit.loaded_settings import load_settings_copy
from tests.kit.model import ModelEndpoint

__all__ = ["ADMIN", "Deploy", "Deployment", "create_deployment", "deploy", "deployment"]

ADMIN = "agent_os:admin"

TOOLS = '''
import asyncio
import time


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def wait(seconds: float) -> str:
    """Wait without blocking."""
    await asyncio.sleep(seconds)
    return "waited"


def block(seconds: float) -> str:
    """Wait, blocking the thread."""
    time.sleep(seconds)
    return "blocked"


async def stubborn(seconds: float) -> str:
    """Ignore cancellation."""
    # The clock of the event loop: a test may set it ahead.
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while (left := deadline - clock()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue
    return "done"
'''

MODELS = (
    "echo", "hang", "trickle", "half", "history", "http-500", "http-401", "delegate",
    "tool:add", "tool:wait", "tool:block", "tool:stubborn",
)  # fmt: skip
"""Behaviours of the stub endpoint. The agent for each has the same name with `-` for `:`."""

SQLITE_DATABASES = {"main": 'url = "sqlite:///main.db"', "second": 'url = "sqlite:///second.db"'}
"""Settings of two SQLite databases in the folder."""


@dataclass(frozen=True)
class Deployment:
    """A folder with `agentctl.toml` in it."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "agentctl.toml"

    @property
    def settings(self) -> Settings:
        """The settings in the file as it is now."""
        state = self.path.stat()
        return _load_settings(self.path, state.st_mtime_ns, state.st_size, state.st_ino)

    def token(
        self, subject: str | None, *scopes: str, session_id: str | None = None, seconds: int = 7_200
    ) -> str:
        """Mint a token with the signing key of the folder; a module may need it for long."""
        lifetime = timedelta(seconds=seconds)
        return mint.mint_token(self.settings, subject, scopes, lifetime, session_id=session_id)

    def bearer(self, subject: str | None, *scopes: str, **options: Any) -> dict[str, str]:
        """Return header fields with a token; the options as of `token`."""
        return {"Authorization": f"Bearer {self.token(subject, *scopes, **options)}"}

    def client(self, url: str, subject: str = "me", *scopes: str) -> httpx2.Client:
        """Open a client of a server, for an administrator unless there are scopes."""
        headers = self.bearer(subject, *(scopes or (ADMIN,)))
        return httpx2.Client(base_url=url, headers=headers, timeout=PATIENCE)

    def principal(self, token: str) -> Principal:
        """Verify a token as the server does and return its principal."""
        return Verifier(self.settings).identify_jwt(f"Bearer {token}")


def create_deployment(
    folder: Path,
    model_url: str,
    *,
    extra: str = "",
    server: str = "",
    databases: Mapping[str, str] = SQLITE_DATABASES,
) -> Deployment:
    """Write a configuration with a key pair, tools and one agent for each behaviour of the stub.

    Args:
        folder: an existing, empty folder.
        model_url: base URL of the stub endpoint.
        extra: TOML to append.
        server: settings to append to `[server]`.
        databases: the settings of the databases `main` and `second`.
    """
    private, public_pem = _key_pair()
    write_private_key(folder / "keys" / "signing.pem", private)
    (folder / "keys" / "signing.pub.pem").write_bytes(public_pem)
    (folder / "world_tools.py").write_text(TOOLS)
    (folder / "agentctl.toml").write_text(_format_config(model_url, extra, server, databases))
    return Deployment(folder)


@dataclass(frozen=True)
class Deploy:
    """A factory of deployments in new folders, whose models are at the endpoint.

    The URL of the endpoint is read for each deployment: it is another one in each folder of tests
    (`tests.kit.model`), and this factory serves them all.
    """

    folders: pytest.TempPathFactory
    endpoint: ModelEndpoint

    @property
    def url(self) -> str:
        """The `base_url` of models for the folder of the current test."""
        return self.endpoint.base_url

    def __call__(
        self, extra: str = "", *, files: Mapping[str, str] | None = None, **options: Any
    ) -> Deployment:
        """Create a deployment with files, by name; the options as of `create_deployment`."""
        folder = self.folders.mktemp("world")
        for name, text in (files or {}).items():
            (folder / name).write_text(text)
        return create_deployment(folder, self.url, extra=extra, **options)


@pytest.fixture(scope="session")
def deploy(tmp_path_factory: pytest.TempPathFactory, process_endpoint: ModelEndpoint) -> Deploy:
    """Create deployments."""
    return Deploy(tmp_path_factory, process_endpoint)


@pytest.fixture
def deployment(tmp_path: Path, model_endpoint: ModelEndpoint) -> Deployment:
    """A deployment of one test."""
    folder = tmp_path / "world"
    folder.mkdir()
    return create_deployment(folder, model_endpoint.base_url)


@functools.lru_cache(maxsize=16)
def _load_settings(path: Path, *_state: int) -> Settings:
    """Load the settings of a file in one state once: every token needs them."""
    return load_settings_copy(path)


@functools.cache
def _key_pair() -> tuple[bytes, bytes]:
    """Generate the key of all deployments of a process once: it takes 0.1 s."""
    private = generate_key("RS256")
    return private, build_public_pem(private, "RS256")


def _format_config(model_url: str, extra: str, server: str, databases: Mapping[str, str]) -> str:
    agents = [_format_agent(model) for model in MODELS]
    models = [
        f'[[models]]\nid = "{_agent_id(model)}"\nprovider = "openai"\nmodel = "{model}"\n'
        f'base_url = "{model_url}"\nretries = 0\n'
        for model in MODELS
    ]
    places = [f'[[databases]]\nid = "{name}"\n{lines}\n' for name, lines in databases.items()]
    return "\n".join([_HEAD.format(server=server), *places, *models, *agents, _TAIL, extra])


def _agent_id(model: str) -> str:
    return model.replace(":", "-")


def _format_agent(model: str) -> str:
    tools = f'tools = ["world_tools:{model[5:]}"]\n' if model.startswith("tool:") else ""
    agent_id = _agent_id(model)
    return (
        f'[[agents]]\nid = "{agent_id}"\nname = "{model.title()}"\nmodel = "{agent_id}"\n'
        f'description = "Answers as {model}"\ninstructions = "Be {model}."\n{tools}'
    )


_HEAD = """
[server]
id = "world"
name = "World"
port = 0
drain_seconds = 1
{server}

[authorization]
verification_key_files = ["keys/signing.pub.pem"]

[signing]
key_file = "keys/signing.pem"
"""

_TAIL = """
[[agents]]
id = "apart"
name = "Apart"
model = "echo"
database = "second"

[[agents]]
id = "summed"
name = "Summed"
model = "echo"
summary = { every_runs = 1000 }

[[agents]]
id = "alone"
name = "Alone"
model = "hang"
on_busy = "reject"

[[teams]]
id = "crew"
name = "Crew"
description = "A leader and two members"
mode = "coordinate"
model = "delegate"
members = ["echo", "hang"]
instructions = "Delegate."

[[teams]]
id = "desk"
name = "Desk"
mode = "route"
model = "delegate"
members = ["echo", "http-500"]

[[teams]]
id = "choir"
name = "Choir"
mode = "broadcast"
model = "echo"
members = ["echo", "http-500"]

[[teams]]
id = "jam"
name = "Jam"
mode = "broadcast"
model = "echo"
members = ["hang", "trickle"]

[[workflows]]
id = "line"
name = "Line"
description = "Two steps"
steps = [{ name = "first", agent = "echo" }, { name = "second", team = "crew" }]

[[workflows]]
id = "broken"
name = "Broken"
steps = [{ name = "first", agent = "http-500" }, { name = "second", agent = "echo" }]

[[workflows]]
id = "stuck"
name = "Stuck"
steps = [{ name = "first", agent = "hang" }]
"""
