"""A deployment with gated tools, its servers, and decisions about what their runs ask."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from agentctl.interface.operations import Operations
from agentctl.interface.requests import RunRequest
from agentctl.records.approvals import ApprovalRow, Verb
from agentctl.records.kinds import ComponentKind
from agentctl.remote.client import RemoteOperations
from agentctl.store.database import Database, Sql
from agentctl.store.databases import Databases
from agentctl.store.repositories import approvals
from tests.kit.conditions import PATIENCE, wait_for_run
from tests.kit.deployment import SQLITE_DATABASES, Deployment, create_deployment
from tests.kit.process import ServerProcess, serve_config
from tests.kit.threaded_server import ThreadedServer, forget_modules, serve_in_thread

SCOPES = (
    "agents:read", "agents:run", "teams:read", "teams:run", "workflows:read", "workflows:run",
    "sessions:read", "sessions:write",
)  # fmt: skip

_CONFIG = """
[[models]]
id = "plan"
provider = "openai"
model = "plan"
base_url = "{url}"
retries = 0

[[models]]
id = "tool-refund"
provider = "openai"
model = "tool:refund"
base_url = "{url}"

[[agents]]
id = "clerk"
model = "plan"
tools = ["ledger_tools:refund", "ledger_tools:book", "ledger_tools:mail_send", "ledger_tools:note",
         "ledger_tools:shaky", "ledger_tools:slow", "ledger_tools:linger"]
external_tools = ["open_file.json"]
approve = {{ "mail_*" = "other", shaky = "user", slow = "user" }}

[[agents]]
id = "payer"
model = "tool-refund"
tools = ["ledger_tools:refund"]

[[teams]]
id = "office"
mode = "coordinate"
model = "plan"
members = ["clerk", "echo"]
tools = ["ledger_tools:refund", "ledger_tools:note"]

[[teams]]
id = "counter"
mode = "route"
model = "delegate"
members = ["payer", "echo"]

[[teams]]
id = "meeting"
mode = "broadcast"
model = "echo"
members = ["payer", "clerk-echo", "payer-two"]

[[teams]]
id = "branch"
mode = "coordinate"
model = "delegate"
members = ["counter"]

[[teams]]
id = "bank"
mode = "coordinate"
model = "delegate"
members = ["branch"]

[[agents]]
id = "payer-two"
model = "tool-refund"
tools = ["ledger_tools:refund"]

[[agents]]
id = "clerk-echo"
model = "echo"

[[workflows]]
id = "claims"
steps = [{{ name = "draft", agent = "echo" }}, {{ name = "pay", agent = "payer" }},
         {{ name = "report", agent = "echo" }}]
"""

OPEN_FILE = {
    "name": "open_file",
    "description": "Open a file of the caller",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
    },
}


Server = ServerProcess | ThreadedServer
"""A server of a site, which the tests call at its `url`."""


@dataclass(frozen=True)
class Site:
    """The folder of a deployment."""

    deployment: Deployment

    def ledger(self, run: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the calls that really happened in the session of a run."""
        file = self.deployment.folder / "ledger.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [
            entry for entry in map(json.loads, lines) if entry["session_id"] == run["session_id"]
        ]

    def tools_called(self, run: Mapping[str, Any]) -> list[str]:
        return sorted(entry["tool"] for entry in self.ledger(run))

    def serve(self, name: str = "server") -> AbstractContextManager[ServerProcess]:
        """Run a server process."""
        return serve_config(self.deployment.path, log=f"{name}.log")

    def serve_in_thread(self) -> AbstractContextManager[ThreadedServer]:
        """Run a server in this process that shares nothing with others but the database."""
        forget_modules(self.deployment.folder)
        return serve_in_thread(self.deployment)

    @contextlib.asynccontextmanager
    async def connect(self, server: Server) -> AsyncIterator[Operations]:
        """Open the operations of the user ann."""
        token = self.deployment.token("ann", *SCOPES)
        async with RemoteOperations(server.url, token) as operations:
            yield operations

    async def run(
        self, server: Server, component_id: str, message: Any, kind: ComponentKind = "agent"
    ) -> dict[str, Any]:
        """Run a component to its end or to its pause, and return the record of the run."""
        text = message if isinstance(message, str) else json.dumps(message)
        async with self.connect(server) as operations:
            document = await operations.runs.create(kind, component_id, RunRequest(text))
            return dict(document.value)

    async def wait_for_end(self, server: Server, run_id: str, *statuses: str) -> dict[str, Any]:
        """Wait until a run has one of some statuses; return its record."""
        async with self.connect(server) as operations:
            return await wait_for_run(operations, run_id, *statuses)

    @contextlib.asynccontextmanager
    async def open_database(self) -> AsyncIterator[Database]:
        """Open the database, as another process that decides does."""
        databases = Databases(self.deployment.settings, create=False)
        try:
            yield databases.system
        finally:
            await databases.close()

    async def approvals(self, root_run_id: str) -> list[ApprovalRow]:
        """Return the approvals of a run and of its members, oldest first."""
        async with self.open_database() as database:
            return await database.read(approvals.list_of_root(root_run_id))

    async def statuses(self, run: Mapping[str, Any]) -> list[str]:
        """Return the statuses of all runs of a session, members included."""
        statement = Sql("SELECT status FROM runs WHERE session_id = :session_id ORDER BY seq")
        async with self.open_database() as database:
            return await database.read(statement.rows(str, session_id=run["session_id"]))

    async def pending(self, root_run_id: str) -> list[ApprovalRow]:
        return [row for row in await self.approvals(root_run_id) if row.status == "pending"]

    async def decide(
        self,
        server: Server,
        root_run_id: str,
        verb: Verb,
        tool: str | None = None,
        component: str | None = None,
        **fields: Any,
    ) -> None:
        """Let boss decide all that a run and its members wait for, or one tool or component."""
        rows = [
            row
            for row in await self.pending(root_run_id)
            if tool in (None, row.tool_name) and component in (None, row.component_id)
        ]
        assert rows, "nothing is pending"
        await self.decide_rows(server, rows, verb, **fields)

    async def decide_rows(
        self, server: Server, rows: list[ApprovalRow], verb: Verb, **fields: Any
    ) -> None:
        """Let boss decide some approvals over HTTP."""
        headers = self.deployment.bearer("boss", "approvals:write")
        async with httpx2.AsyncClient(base_url=server.url, headers=headers) as client:
            for row in rows:
                path = f"/{row.component_type}s/{row.component_id}/approvals/{row.approval_id}"
                body = {"decision": verb, "arguments_hash": row.arguments_hash, **fields}
                response = await client.post(f"{path}/decide", json=body, timeout=PATIENCE)
                assert response.status_code == 200, response.text


def kill(server: Server) -> None:
    """Kill a server, so that it can end nothing."""
    if isinstance(server, ThreadedServer):
        server.kill()
        return

    server.process.send_signal(signal.SIGKILL)
    server.process.wait(PATIENCE)


def call(name: str, call_id: str | None = None, /, **arguments: Any) -> dict[str, Any]:
    """Build a tool call of the model."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id or f"{name}-call", "type": "function", "function": function}


def answer(*calls: dict[str, Any], text: str = "") -> dict[str, Any]:
    """Build an answer of the model."""
    message: dict[str, Any] = {"content": text or None}
    return {**message, "tool_calls": list(calls)} if calls else message


def create_site(
    folder: Path,
    model_url: str,
    *,
    extra: str = "",
    server: str = "",
    databases: Mapping[str, str] = SQLITE_DATABASES,
) -> Site:
    """Create a deployment whose agents have gated tools; the options as of `create_deployment`."""
    source = Path(__file__).with_name("ledger_tools.py")
    (folder / source.name).write_text(source.read_text())
    (folder / "open_file.json").write_text(json.dumps(OPEN_FILE))
    config = _CONFIG.format(url=model_url)
    extra = f"{config}\n{extra}"
    return Site(
        create_deployment(folder, model_url, extra=extra, server=server, databases=databases)
    )
