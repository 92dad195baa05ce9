"""An AgentOS server with one component of each kind, run in an environment without agentctl.

    python agentos_server.py SYSTEM.json    serve until SIGTERM

`compat.servers` writes SYSTEM.json: the port, the database, the model endpoint, and the public
key if callers need a token. With `remote` the components are those of another server, and this one
is a gateway to it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from agno.agent import Agent, RemoteAgent
from agno.db.sqlite import SqliteDb
from agno.models.openai import OpenAIChat
from agno.os import AgentOS
from agno.os.config import AuthorizationConfig
from agno.team import RemoteTeam, Team
from agno.tools import tool
from agno.workflow import RemoteWorkflow, Workflow
from agno.workflow.step import Step

System = dict[str, Any]


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


@tool(name="add", requires_confirmation=True)
def add_if_confirmed(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


TOOLS: dict[str, Any] = {"tool:add": add, "tool:wait": wait, "tool:block": block}


def build_components(system: System, db: Any) -> dict[str, list[Any]]:
    """Build an agent for each model, a team `crew` and a workflow `line`."""

    def build_model(name: str) -> OpenAIChat:
        return OpenAIChat(
            id=name, base_url=system["model_url"], api_key="none", retries=0, max_retries=0
        )

    agents = {
        name: Agent(
            id=name.replace(":", "-"),
            name=name.title(),
            description=f"Answers as {name}",
            model=build_model(name),
            tools=[TOOLS[name]] if name in TOOLS else None,
            db=db,
            telemetry=False,
        )
        for name in system["models"]
    }
    crew = Team(
        id="crew",
        name="Crew",
        description="A leader and two members",
        model=build_model("delegate"),
        members=[agents["echo"], agents["hang"]],
        db=db,
        telemetry=False,
    )
    line = Workflow(
        id="line",
        name="Line",
        description="Two steps",
        steps=[Step(name="first", agent=agents["echo"]), Step(name="second", team=crew)],
        db=db,
        telemetry=False,
    )
    stuck = Workflow(
        id="stuck",
        name="Stuck",
        steps=[Step(name="first", agent=agents["hang"])],
        db=db,
        telemetry=False,
    )
    clerk = Agent(
        id="clerk",
        name="Clerk",
        model=build_model("tool:add"),
        tools=[add_if_confirmed],
        db=db,
        telemetry=False,
    )
    office = Team(
        id="office",
        name="Office",
        model=build_model("delegate"),
        members=[clerk],
        db=db,
        telemetry=False,
    )
    form = Workflow(
        id="form",
        name="Form",
        steps=[Step(name="sum", agent=clerk), Step(name="say", agent=agents["echo"])],
        db=db,
        telemetry=False,
    )
    return {
        "agents": [*agents.values(), clerk],
        "teams": [crew, office],
        "workflows": [line, stuck, form],
    }


def build_gateway(url: str) -> dict[str, list[Any]]:
    """Return the components `echo`, `crew` and `line` of the server at `url`."""
    return {
        "agents": [RemoteAgent(base_url=url, agent_id="echo")],
        "teams": [RemoteTeam(base_url=url, team_id="crew")],
        "workflows": [RemoteWorkflow(base_url=url, workflow_id="line")],
    }


def serve_system(system: System) -> None:
    """Serve with one worker, as `AgentOS.serve` does, without an access log."""
    import uvicorn

    db = SqliteDb(id="main", db_file=system["database"])
    remote = system["remote"]
    key = system["public_key"]
    components = build_gateway(remote) if remote else build_components(system, db)
    authorization: dict[str, Any] = {}
    if key:
        config = AuthorizationConfig(verification_keys=[key], algorithm="RS256")
        authorization = {"authorization": True, "authorization_config": config}
    hosted = AgentOS(id="peer", name="Peer", db=db, telemetry=False, **components, **authorization)
    uvicorn.run(
        hosted.get_app(),
        host="127.0.0.1",
        port=system["port"],
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    serve_system(json.loads(Path(sys.argv[1]).read_text()))
