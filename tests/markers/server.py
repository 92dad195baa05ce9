"""The server of the proof: components of every kind, and the processes around it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

import httpx2

from tests.certificates import create_certificate
from tests.chaos.cluster import Server
from tests.deployment import SQLITE_DATABASES, create_deployment
from tests.endpoint import start_endpoint
from tests.markers.endpoint import CERTIFICATE
from tests.markers.text import LEDGER
from tests.postgres_server import list_children, run_postgres_server

__all__ = ["DURABLE", "Engine", "MarkedServer", "start_marked_server"]

Engine = Literal["sqlite", "postgresql"]

ROOT = Path(__file__).parents[2]

RUN_SECONDS = 8
"""Time limit of a run: those whose model does not answer end by it."""

WORKERS = 2

_TOOLS = '["tests.markers.hosted:note", "mcp:inside", "mcp:outside"]'

_CODE = (
    "function", "generator", "pydantic_ai", "langgraph", "agno_agent", "agno_team",
    "agno_workflow", "openai_agents",
)  # fmt: skip

_VENDORS = {
    "anthropic": 'provider = "anthropic"\napi_key_env = "MARKERS_KEY"',
    "google": 'provider = "google"\napi_key_env = "MARKERS_KEY"',
    "bedrock": 'provider = "bedrock"\nregion = "eu-central-1"',
}
"""The providers whose interface is not that of OpenAI, and their settings."""

_COMPONENTS = (
    "agents/http",
    "agents/tls",
    "agents/groq",
    "agents/durable",
    "agents/mcp",
    *(f"agents/{name}" for name in _CODE),
    "teams/lead",
    "teams/route",
    "teams/all",
    "teams/libraries",
    "teams/lasting",
    "workflows/steps",
    "workflows/mixed",
)

_VENDOR_AGENTS = tuple(f"agents/{name}" for name in _VENDORS)
"""Agents of the libraries of vendors, whose import takes 12 of the 15 CPU seconds of a worker."""

DURABLE = ("agents/durable", "teams/lasting")
"""The components whose runs have no `dependencies`, because these are not stored."""

AGENTOS = 'compatibility = "agentos"'

_CONFIG = """
[runs]
timeout_seconds = {run_seconds}

[openai]
enabled = true

[agui]
enabled = true

[ai_sdk]
enabled = true

[mcp_endpoint]
enabled = true

[search]
enabled = true

[[mcp_servers]]
id = "inside"
command = "{python}"
args = ["-m", "tests.markers.mcp_program"]
env = {{ PYTHONPATH = "{root}", {ledger_name} = "{ledger}" }}

[[mcp_servers]]
id = "outside"
url = "{root_url}/mcp"
headers = {{ X-User = "${{user_id}}" }}
"""

_COMPOSED = """
[[teams]]
id = "lead"
mode = "coordinate"
model = "http"
members = ["http", "tls"]

[[teams]]
id = "route"
mode = "route"
model = "tls"
members = ["tls", "mcp"]

[[teams]]
id = "all"
mode = "broadcast"
model = "http"
members = ["http", "function", "pydantic_ai"]

[[teams]]
id = "libraries"
mode = "coordinate"
model = "tls"
members = ["langgraph", "agno_agent", "openai_agents"]

[[teams]]
id = "lasting"
mode = "coordinate"
model = "http"
members = ["durable"]
durable = true

[[workflows]]
id = "steps"
steps = [{ name = "first", agent = "http" }, { name = "second", agent = "tls" }]

[[workflows]]
id = "mixed"
steps = [{ name = "first", agent = "function" }, { name = "second", team = "lead" }]
"""


@dataclass
class MarkedServer:
    """A running server with its endpoint.

    Attributes:
        components: what it runs.
        tokens: a token of each user, by the letter of the user.
        ledger: the file with the ledger.
        kills: the number of killed workers.
    """

    server: Server
    components: tuple[str, ...]
    tokens: dict[str, str]
    ledger: Path
    kills: int = 0

    @property
    def url(self) -> str:
        return self.server.url

    async def kill_worker(self, chance: Random) -> None:
        """Kill a worker with SIGKILL, and wait until there is another one."""
        pid = self.server.process.pid
        with contextlib.suppress(ProcessLookupError, IndexError):
            killed = chance.choice(list_children(pid)[-WORKERS:])
            os.kill(killed, signal.SIGKILL)
            self.kills += 1
        await asyncio.sleep(1)
        deadline = asyncio.get_running_loop().time() + 120
        while len(await asyncio.to_thread(list_children, pid)) < WORKERS:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.5)


@contextlib.contextmanager
def start_marked_server(
    engine: Engine, users: dict[str, str], vendors: bool
) -> Iterator[MarkedServer]:
    """Start the endpoint, the database and the server.

    Args:
        vendors: True if it runs `_VENDOR_AGENTS`, too.
        users: the subject of each user, by its letter.
    """
    folder = Path(tempfile.mkdtemp(prefix="agentctl-markers-"))
    ledger = folder / "ledger.jsonl"
    ledger.touch()
    certificate = create_certificate(folder, "localhost")
    variables = {LEDGER: str(ledger), CERTIFICATE: str(certificate)}
    with contextlib.ExitStack() as context:
        context.callback(shutil.rmtree, folder, ignore_errors=True)
        endpoint = start_endpoint("tests.markers.endpoint", variables)
        context.callback(endpoint.stop)
        databases = dict(SQLITE_DATABASES)
        if engine == "postgresql":
            url = context.enter_context(run_postgres_server()).url
            databases = {
                name: f'url = "{url}"\nsearch_path = "{name}_markers"' for name in databases
            }
        tls = httpx2.get(f"{endpoint.root_url}/").json()["tls"]
        config = _format_config(
            endpoint.base_url, endpoint.root_url, tls, ledger, _VENDORS if vendors else {}
        )
        deployment = create_deployment(
            folder, endpoint.base_url, extra=config, databases=databases, server=AGENTOS
        )
        scopes = [
            f"{kind}:{verb}"
            for kind in ("agents", "teams", "workflows")
            for verb in ("read", "run")
        ]
        scopes += [
            f"{kind}:{verb}"
            for kind in ("sessions", "memories")
            for verb in ("read", "write", "delete")
        ]
        scopes.append("usage:read")
        tokens = {
            letter: deployment.token(subject, *scopes, seconds=14_400)
            for letter, subject in users.items()
        }
        environment = {
            **variables,
            "MARKERS_MODEL_URL": endpoint.base_url,
            "PYTHONPATH": str(ROOT),
            "SSL_CERT_FILE": str(certificate),
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "k",
            "MARKERS_KEY": "k",
        }
        server = Server("server", deployment, "--workers", str(WORKERS), variables=environment)
        server.start()
        try:
            components = (*_COMPONENTS, *(_VENDOR_AGENTS if vendors else ()))
            yield MarkedServer(server, components, tokens, ledger)
            server.stop()
        finally:
            if server.is_running:
                server.kill()


def _format_config(
    base_url: str, root_url: str, tls_port: int, ledger: Path, vendors: Mapping[str, str]
) -> str:
    tls = f"https://localhost:{tls_port}/v1"
    config = _CONFIG.format(
        run_seconds=RUN_SECONDS,
        python=sys.executable,
        root=ROOT,
        ledger_name=LEDGER,
        ledger=ledger,
        root_url=root_url,
    )
    models = {
        "http": f'provider = "openai"\nbase_url = "{base_url}"',
        "tls": f'provider = "openai"\nbase_url = "{tls}"',
        "groq": f'provider = "groq"\nbase_url = "{base_url}"\napi_key_env = "MARKERS_KEY"',
        **{name: f'{lines}\nbase_url = "{root_url}"' for name, lines in vendors.items()},
    }
    tables = [config, _COMPOSED]
    tables += [
        f'[[models]]\nid = "{name}"\nmodel = "marked"\nretries = 0\n{lines}'
        for name, lines in models.items()
    ]
    agents = {
        "http": 'tools = ["tests.markers.hosted:note"]',
        "tls": f"tools = {_TOOLS}",
        "groq": "",
        **dict.fromkeys(vendors, ""),
    }
    tables += [
        f'[[agents]]\nid = "{name}"\nmodel = "{name}"\n{tools}' for name, tools in agents.items()
    ]
    tables += [
        f'[[agents]]\nid = "durable"\nmodel = "tls"\ndurable = true\ntools = {_TOOLS}',
        '[[agents]]\nid = "mcp"\nmodel = "http"\ntools = ["mcp:inside", "mcp:outside"]',
    ]
    tables += [
        f'[[agents]]\nid = "{name}"\nobject = "tests.markers.hosted:{name}"' for name in _CODE
    ]
    return "\n\n".join(tables)
