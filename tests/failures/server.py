"""The server of the failures: components of every kind, the endpoint and the clients."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.deployment import SQLITE_DATABASES, Deployment, create_deployment
from tests.endpoint import ModelEndpoint, start_endpoint
from tests.environments import find_adk
from tests.process import ServerProcess, serve_config

__all__ = [
    "IN_CODE",
    "KINDS",
    "ROOT",
    "SERVERS",
    "FailingServer",
    "find_component",
    "open_deployment",
    "serve_failures",
]

ROOT = Path(__file__).parents[2]

RUN_SECONDS = 60
TOOL_SECONDS = 20
EXPIRE_SECONDS = 20
"""Time limits of a run, of a tool and of an approval. Only the failures that exceed them wait for
them; all others, and the messages after them, have to end before on a busy machine."""

IN_CODE = (
    "function", "generator", "pydantic-ai", "langgraph", "langgraph-checkpointer", "agno-agent",
    "agno-team", "agno-workflow", "openai-agents", "google-adk",
)  # fmt: skip
"""The kinds of agents in code."""

KINDS = ("configured", "durable", "team", "broadcast", "workflow", *IN_CODE)
"""The kinds of agents: a configured one, one that is durable, a team that coordinates and one that
broadcasts, a workflow of two agents, and those in code."""

SERVERS = (KINDS[:-1], KINDS[-1:])
"""The kinds of each server: Google ADK needs a separate environment."""

_PATHS = {"team": "teams/team", "broadcast": "teams/broadcast", "workflow": "workflows/workflow"}

OUTPUTS = (
    "configured", "durable", "function", "generator", "pydantic-ai", "langgraph", "agno-agent",
    "openai-agents", "google-adk",
)  # fmt: skip
"""The kinds that have an agent with an output schema."""

_TOOLS = ("add", "fail", "fail_late", "give", "wait", "lose_child", "pay")

_SETTINGS = f"""
[runs]
timeout_seconds = {RUN_SECONDS}
tool_timeout_seconds = {TOOL_SECONDS}

[limits]
run_bytes = 4_194_304

[approvals]
expire_seconds = {EXPIRE_SECONDS}

[[mcp_servers]]
id = "program"
command = "{sys.executable}"
args = ["{ROOT / "tests" / "mcp" / "stdio_server.py"}"]
call_seconds = {TOOL_SECONDS}
"""


@dataclass(frozen=True)
class FailingServer:
    """A running server with its endpoint."""

    process: ServerProcess
    endpoint: ModelEndpoint
    deployment: Deployment


def find_component(kind: str, variant: str) -> str | None:
    """Return the path of a component; None if the kind does not have the variant."""
    if variant == "output" and kind not in OUTPUTS:
        return None
    path = _PATHS.get(kind, f"agents/{kind}")
    return f"{path}-{variant}" if variant else path


@contextlib.contextmanager
def open_deployment(
    extra: str = "",
    databases: Mapping[str, str] = SQLITE_DATABASES,
    kinds: Sequence[str] = SERVERS[0],
) -> Iterator[tuple[Deployment, ModelEndpoint]]:
    """Start the endpoint and create the folder of a server with the databases.

    Args:
        kinds: the kinds of agents, of one of `SERVERS`; one without those in code starts sooner.
    """
    folder = Path(tempfile.mkdtemp(prefix="agentctl-failures-"))
    endpoint = start_endpoint("tests.failures.endpoint")
    try:
        config = _format_config(endpoint.base_url, kinds) + extra
        deployment = create_deployment(folder, endpoint.base_url, extra=config, databases=databases)
        yield deployment, endpoint
    finally:
        endpoint.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def serve_failures(
    deployment: Deployment, endpoint: ModelEndpoint, log: str = "server.log"
) -> Iterator[FailingServer]:
    """Run a server of the deployment."""
    has_adk = any(agent.id == "google-adk" for agent in deployment.settings.agents)
    python, own = find_adk() if has_adk else (sys.executable, {})
    variables = {"FAILURES_MODEL_URL": endpoint.base_url, "PYTHONPATH": str(ROOT), **own}
    place = deployment.path
    with serve_config(place, log=log, variables=variables, python=python) as process:
        yield FailingServer(process, endpoint, deployment)


def _format_config(model_url: str, kinds: Sequence[str]) -> str:
    tools = ", ".join(f'"tests.failures.tools:{name}"' for name in _TOOLS)
    lines = f'model = "strict"\ninstructions = "Be brief."\ntools = [{tools}, "mcp:program"]\n'
    lines += 'approve = { "pay" = "user" }\n'
    queue = 'on_busy = "enqueue"'
    tables = [
        _SETTINGS,
        '[[models]]\nid = "strict"\nprovider = "openai"\nmodel = "strict"\nretries = 0\n'
        f'base_url = "{model_url}"',
    ]
    output = 'output = "tests.failures.tools:Total"'
    for variant, more in {"": "", "-queue": queue, "-output": output}.items():
        for kind in ("configured", "durable"):
            durable = f"{more}\ndurable = true" if kind == "durable" else more
            tables.append(f'[[agents]]\nid = "{kind}{variant}"\n{lines}{durable}')
        for kind in IN_CODE:
            if kind in kinds and (variant != "-output" or kind in OUTPUTS):
                name = kind.replace("-", "_") + variant.replace("-queue", "").replace("-", "_")
                module = "hosted_adk" if kind == "google-adk" else "hosted"
                place = f"tests.failures.{module}:{name}"
                entry = f'[[agents]]\nid = "{kind}{variant}"\nobject = "{place}"'
                tables.append(entry if variant == "-output" else f"{entry}\n{more}")
    for variant, more in {"": "", "-queue": queue}.items() if "team" in kinds else ():
        tables += [
            f'[[teams]]\nid = "team{variant}"\nmode = "coordinate"\n{lines}'
            f'members = ["configured", "function"]\n{more}',
            f'[[teams]]\nid = "broadcast{variant}"\nmode = "broadcast"\nmodel = "strict"\n'
            f'members = ["configured", "pydantic-ai"]\n{more}',
            f'[[workflows]]\nid = "workflow{variant}"\n{more}\nsteps = [{{ name = "first", '
            'agent = "configured" }, { name = "second", agent = "pydantic-ai" }]',
        ]
    return "\n\n".join(tables)
