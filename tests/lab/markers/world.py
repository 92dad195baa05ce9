"""The world of markers: a server with components of every kind, and the processes around it."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx2

from tests.kit.certificates import create_certificate
from tests.lab import ledger
from tests.lab.markers.endpoint import CERTIFICATE
from tests.lab.world import World, open_world

__all__ = ["DURABLE", "LAYOUTS", "MarkedWorld", "open_marked_world"]

LAYOUTS = {"sqlite": "two workers on sqlite", "postgresql": "two workers on postgresql"}
"""The deployment of each engine."""

ROOT = Path(__file__).parents[3]

_TOOLS = '["tests.lab.markers.hosted:note", "mcp:inside", "mcp:outside"]'

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

_SCOPES = (
    *(f"{kind}:{verb}" for kind in ("agents", "teams", "workflows") for verb in ("read", "run")),
    *(f"sessions:{verb}" for verb in ("read", "write", "delete")),
    *(f"memories:{verb}" for verb in ("read", "write", "delete")),
    "usage:read",
)
"""The scopes of both users."""

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
args = ["-m", "tests.lab.markers.mcp_program"]
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
class MarkedWorld:
    """A running server with components of every kind.

    Attributes:
        components: what it runs.
        tokens: a token of each user, by the letter of the user.
    """

    world: World
    components: tuple[str, ...]
    tokens: dict[str, str]

    @property
    def url(self) -> str:
        return self.world.servers[0].url


@contextlib.asynccontextmanager
async def open_marked_world(
    deployment: str, users: dict[str, str], *, vendors: bool, run_seconds: int
) -> AsyncIterator[MarkedWorld]:
    """Open a world with one server.

    Args:
        deployment: that of the server, one of `tests.lab.world.DEPLOYMENTS`.
        users: the subject of each user, by its letter.
        vendors: True if it runs `_VENDOR_AGENTS`, too.
        run_seconds: the time limit of a run: those whose model does not answer end by it.
    """
    with tempfile.TemporaryDirectory(prefix="agentctl-markers-") as folder:
        certificate = create_certificate(Path(folder), "localhost")
        variables = {
            CERTIFICATE: str(certificate),
            "SSL_CERT_FILE": str(certificate),
            "PYTHONPATH": str(ROOT),
            "MARKERS_MODEL_URL": "{url}",
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "k",
            "MARKERS_KEY": "k",
        }
        async with open_world(
            deployment,
            config=partial(
                _format_config, vendors=_VENDORS if vendors else {}, run_seconds=run_seconds
            ),
            server=AGENTOS,
            limits="",
            variables=variables,
            endpoint="tests.lab.markers.endpoint",
        ) as world:
            place = world.servers[0].deployment
            tokens = {
                letter: place.token(subject, *_SCOPES, seconds=14_400)
                for letter, subject in users.items()
            }
            components = (*_COMPONENTS, *(_VENDOR_AGENTS if vendors else ()))
            yield MarkedWorld(world, components, tokens)


def _format_config(world: World, *, vendors: Mapping[str, str], run_seconds: int) -> str:
    base_url = world.endpoint.base_url
    root_url = world.endpoint.root_url
    tls_port = httpx2.get(f"{root_url}/").json()["tls"]
    tls = f"https://localhost:{tls_port}/v1"
    config = _CONFIG.format(
        run_seconds=run_seconds,
        python=sys.executable,
        root=ROOT,
        ledger_name=ledger.VARIABLE,
        ledger=world.ledger.path,
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
        "http": 'tools = ["tests.lab.markers.hosted:note"]',
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
        f'[[agents]]\nid = "{name}"\nobject = "tests.lab.markers.hosted:{name}"' for name in _CODE
    ]
    return "\n\n".join(tables)
