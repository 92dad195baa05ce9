"""The deployment of the conformance tests, and its clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from agentctl.interface.operations import Operations
from agentctl.interface.requests import RunRequest
from agentctl.records.kinds import ComponentKind
from agentctl.remote.client import RemoteOperations
from tests.conformance.table import KINDS
from tests.kit.deployment import SQLITE_DATABASES, Deployment, create_deployment

__all__ = ["ConformanceServer", "create_conformance_deployment"]

MODULE = "hosted_agents"

ADK = "adk"
ADK_MODULE = "hosted_adk_agents"
"""The kind whose server has another environment, and the module of its agents."""

TOOLS = "hosted_tools"

PLAIN_MODULE = "plain_agents"

FUNCTIONS = ("call_httpx", "call_openai", "call_anthropic", "use_thread", "leave_generators")
"""The agents of the module `plain_agents`."""

PLAIN_NAMES = ("echo", "context")
"""The agents of each kind whose runs leave no work, as those of `FUNCTIONS` do."""

SCOPES = (
    "agents:read", "agents:run", "teams:read", "teams:run", "workflows:read", "workflows:run",
    "sessions:read", "sessions:write", "approvals:read",
)  # fmt: skip

PAYMENT = {"amount": 10, "to": "bob"}

_FACES = "\n\n".join(
    f"[{table}]\nenabled = true" for table in ("openai", "agui", "ai_sdk", "mcp_endpoint")
)

_CONFIGURED = {
    "echo": ("echo", ""),
    "history": ("history", ""),
    "trickle": ("trickle", ""),
    "tool": ("tool:add", "add"),
    "stubborn": ("tool:stubborn", "stubborn"),
    "block": ("tool:block", "block"),
    "wait": ("tool:wait", "wait"),
    "started": ("tool:start_task", "start_task"),
    "hang": ("hang", ""),
    "context": ("tool:show", "show"),
    "failing": ("http-500", ""),
    "output": ("echo", ""),
    "pay": ("tool:pay", "pay"),
    "calls": ("tools:pay", "pay"),
}
"""Model and tool of the agents that are described in the configuration. The other kinds have agents
of the same names in `hosted_agents`."""


@dataclass(frozen=True)
class ConformanceServer:
    """A running server."""

    url: str
    deployment: Deployment

    @contextlib.asynccontextmanager
    async def connect(self, user: str = "ann") -> AsyncIterator[Operations]:
        """Open the operations of a user."""
        token = self.deployment.token(user, *SCOPES)
        async with RemoteOperations(self.url, token) as operations:
            yield operations


async def run_component(
    operations: Operations, kind: ComponentKind, component_id: str, message: str, **options: Any
) -> dict[str, Any]:
    """Run a component to its end and return the record."""
    request = RunRequest(message, **options)
    return dict((await operations.runs.create(kind, component_id, request)).value)


def read_ledger(server: ConformanceServer) -> list[str]:
    """Return the payments that tools have made, oldest first."""
    ledger = server.deployment.path.with_name("ledger")
    return ledger.read_text().splitlines() if ledger.exists() else []


async def stream_component(
    operations: Operations, component_id: str, message: str, **options: Any
) -> list[dict[str, Any]]:
    """Run an agent and return the data of its events."""
    request = RunRequest(message, **options)
    return [
        orjson.loads(event.data)
        async for event in operations.runs.stream("agent", component_id, request)
    ]


async def find_unstopped(operations: Operations, agent: str) -> list[dict[str, Any]]:
    """Return the runs, of three and of two at the same time, that named work after their end."""

    async def run() -> dict[str, Any]:
        record = await run_component(operations, "agent", agent, "{}")
        return {
            name: record[name]
            for name in ("agent_id", "status", "holding", "stopped_at", "finished_at")
        }

    runs = [await run(), await run(), await run(), *await asyncio.gather(run(), run())]
    return [
        each
        for each in runs
        if (each["status"], each["holding"]) != ("COMPLETED", [])
        or each["stopped_at"] != each["finished_at"]
    ]


def create_adk_deployment(
    folder: Path, model_url: str, databases: Mapping[str, str] = SQLITE_DATABASES
) -> Deployment:
    """Create a deployment with the agents of Google ADK, for a server in their environment."""
    for module in (ADK_MODULE, TOOLS):
        source = Path(__file__).parent / f"{module}.py"
        (folder / source.name).write_text(source.read_text())
    tables = [_FACES, *_list_tables(ADK, ADK_MODULE)]
    return create_deployment(folder, model_url, extra="\n\n".join(tables), databases=databases)


def create_conformance_deployment(
    folder: Path,
    model_url: str,
    databases: Mapping[str, str] = SQLITE_DATABASES,
    kinds: Sequence[str] = tuple(KINDS),
) -> Deployment:
    """Create a deployment with the agents of other kinds, and a team and a workflow of each."""
    for module in (MODULE, PLAIN_MODULE, TOOLS):
        source = Path(__file__).parent / f"{module}.py"
        (folder / source.name).write_text(source.read_text())

    tables = [
        _FACES,
        *(f'[[agents]]\nid = "{name}"\nobject = "{PLAIN_MODULE}:{name}"' for name in FUNCTIONS),
    ]

    for name, (model, tool) in _CONFIGURED.items():
        tables += [
            f'[[models]]\nid = "configured-{name}"\nprovider = "openai"\nmodel = "{model}"\n'
            f'base_url = "{model_url}"',
            f'[[agents]]\nid = "configured-{name}"\nmodel = "configured-{name}"',
        ]

        if tool:
            tables[-1] += f'\ntools = ["{TOOLS}:{tool}"]'
        if name == "output":
            tables[-1] += f'\noutput = "{TOOLS}:Total"'
        if tool == "pay":
            tables[-1] += '\napprove = { "pay" = "user" }'

    for kind in kinds:
        if kind != ADK:
            tables += _list_tables(kind, MODULE)
    return create_deployment(folder, model_url, extra="\n\n".join(tables), databases=databases)


def _list_tables(kind: str, module: str) -> list[str]:
    """Return the tables of the agents of a kind, and of its teams and its workflow."""
    prefix = f"{module}:{kind.replace('-', '_')}"
    agents = [
        f'[[agents]]\nid = "{kind}-{name}"\nobject = "{prefix}_{name}"'
        for name in (_CONFIGURED if kind != "configured" else ())
    ]
    return [
        *agents,
        f'[[teams]]\nid = "{kind}-team"\nmode = "coordinate"\nmodel = "delegate"\n'
        f'members = ["{kind}-context"]',
        f'[[teams]]\nid = "{kind}-crew"\nmode = "coordinate"\nmodel = "delegate"\n'
        f'members = ["{kind}-started"]',
        f'[[workflows]]\nid = "{kind}-line"\nsteps = [{{ name = "first", agent = '
        f'"{kind}-echo" }}, {{ name = "second", agent = "{kind}-tool" }}]',
    ]
