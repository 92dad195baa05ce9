"""Two servers on one database, and how one of them dies, or loses its connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg

from agentctl.auth.principal import Principal
from agentctl.config.settings import Agent, Database, Model, Settings, Step, Team, Workflow
from agentctl.records.kinds import ComponentKind
from agentctl.runs.workers.worker import Worker
from agentctl.runtime.components.execute import prepare_components
from agentctl.service.service import Service, ServiceOperations
from tests.kit.deaths import kill_service
from tests.kit.service import ALL
from tests.lab.pairs.schedule import current_server
from tests.runs.simulated_processes import TaskOwner

__all__ = ["KINDS", "Server", "build_settings"]

HEARTBEAT_SECONDS = 0.2
"""Shorter than in production: a worker soon detects that it was declared dead."""

KINDS: dict[str, tuple[ComponentKind, str]] = {
    "agent": ("agent", "agent"),
    "durable": ("agent", "durable"),
    "team": ("team", "team"),
    "durable-team": ("team", "durable-team"),
    "workflow": ("workflow", "workflow"),
    "queued": ("agent", "queued"),
    "queued-durable": ("agent", "queued-durable"),
    "refusing": ("agent", "refusing"),
    "function": ("agent", "function"),
    "question": ("agent", "question"),
    "pydantic-ai": ("agent", "pydantic_ai"),
    "langgraph": ("agent", "langgraph"),
    "agno": ("agent", "agno"),
    "agno-team": ("agent", "agno_team"),
    "agno-workflow": ("agent", "agno_workflow"),
    "openai-agents": ("agent", "openai_agents"),
}
"""The component of each kind."""

_CODE = (
    "function", "question", "pydantic-ai", "langgraph", "agno", "agno-team", "agno-workflow",
    "openai-agents",
)  # fmt: skip


def build_settings(database: Database, model_url: str, kinds: list[str]) -> Settings:
    """Build a configuration with the components of some kinds."""
    models = [
        Model(name, "openai", model, model_url, retries=0)
        for name, model in (("pay", "tool:pay"), ("lead", "delegate"), ("echo", "echo"))
    ]
    tools = ("tests.lab.pairs.hosted:pay",)
    agents = [
        Agent("agent", "pay", name="Agent", tools=tools, database="main"),
        Agent("durable", "pay", name="Durable", tools=tools, durable=True, database="main"),
        Agent("echo", "echo", name="Echo", database="main"),
        Agent("queued", "pay", tools=tools, database="main", on_busy="enqueue"),
        Agent(
            "queued-durable", "pay", tools=tools, database="main", on_busy="enqueue", durable=True
        ),
        Agent("refusing", "pay", tools=tools, database="main", on_busy="reject"),
    ]
    for kind in kinds:
        if kind in _CODE:
            name = KINDS[kind][1]
            place = f"tests.lab.pairs.hosted:{name}"
            agents.append(Agent(name, object=place, name=name, database="main"))
    steps = (Step("pay", agent="agent"), Step("report", agent="echo"))
    return Settings(
        databases=(database,),
        models=tuple(models),
        agents=tuple(agents),
        teams=(
            Team("team", "lead", ("agent",), name="Team", database="main"),
            Team("durable-team", "lead", ("durable",), name="D", durable=True, database="main"),
        ),
        workflows=(Workflow("workflow", steps, name="Workflow", database="main"),),
    )


class Server(TaskOwner):
    """One server: a service, and the tasks that were created in its context."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(current_server)
        self._settings = settings
        self._opened: contextlib.AbstractAsyncContextManager[Service] | None = None
        self._service: Service | None = None

    @property
    def service(self) -> Service:
        assert self._service is not None
        return self._service

    @property
    def database(self) -> Any:
        return self.service.hosting.databases.system

    @property
    def worker(self) -> Worker:
        return self.service._worker

    def user(self, name: str) -> ServiceOperations:
        return self.service.operations_for(Principal(name, ALL))

    @property
    def boss(self) -> ServiceOperations:
        return self.service.operations_for(
            Principal("boss", admin=True, sees_all_users=True, via="http")
        )

    async def open(self) -> None:
        """Start like `serve`, without the sweeps, which are operations of the schedules."""
        await self.spawn(self._open())

    async def _open(self) -> None:
        opened = Service.open(self._settings, create=True)
        self._service = await opened.__aenter__()
        self._opened = opened
        self.worker._heartbeat_seconds = HEARTBEAT_SECONDS
        await self.service.hosting.databases.open_all()
        prepare_components(self.service.hosting.catalog)
        await self.worker.register()
        # The topics of PostgreSQL are listened to from now on.
        self.database.watch("legs")()

    async def close(self) -> None:
        self.alive = False
        if self._opened is not None:
            await self.start_dead(self._opened.__aexit__(None, None, None))

    def start_dead(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(work)

    async def stop(self) -> None:
        """End it as a signal does: its runs are cancelled or handed over, its clients released."""
        if self.alive and self._opened is not None:
            await self.spawn(self._opened.__aexit__(None, None, None))
        self.alive = False

    def limit_slots(self, count: int | None = None) -> None:
        """Let it execute at most some root runs at once; by default as configured."""
        settings = self._settings
        if count is not None:
            settings = replace(settings, limits=replace(settings.limits, concurrent_runs=count))
        self.service.hosting.engine._settings = settings

    def count_taken_slots(self) -> int:
        """Return the number of slots that are taken; 0 if none is and no run is live."""
        engine = self.service.hosting.engine
        return engine._settings.limits.concurrent_runs - engine.free_slots

    async def kill(self) -> None:
        """Kill it: uncommitted changes are lost, and its tasks have no further effect."""
        self.alive = False
        kill_service(self.service)
        await self.cancel_tasks()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await self.close()

    async def lose_connections(self, watch: asyncpg.Connection[Any]) -> None:
        """End its connections on the side of PostgreSQL."""
        pool = self.database._pool
        for connection in [*pool._busy, *pool._idle]:
            pid = connection.get_server_pid()
            await watch.execute("SELECT pg_terminate_backend($1)", pid)


def sqlite_entry(folder: Path) -> Database:
    return Database("main", f"sqlite:///{folder / 'main.db'}")
