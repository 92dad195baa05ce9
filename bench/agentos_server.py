"""An AgentOS server with the work of the benchmarks, run in an environment without agentctl.

    python agentos_server.py seed WORK.json     fill a database through the classes of AgentOS
    python agentos_server.py serve WORK.json    serve until SIGTERM

`bench.servers` writes WORK.json, with the files, components and sessions. JWTs are
verified as users of AgentOS enable it: `authorization=True` with a public key and scopes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from agno.agent import Agent
from agno.db.sqlite import SqliteDb
from agno.metrics import MessageMetrics, RunMetrics
from agno.models.message import Message
from agno.models.openai import OpenAIChat
from agno.os import AgentOS
from agno.os.config import AuthorizationConfig
from agno.run.agent import RunInput, RunOutput
from agno.run.base import RunStatus
from agno.session import AgentSession
from agno.team import Team
from sqlalchemy import event

Work = dict[str, Any]


def open_database(work: Work) -> SqliteDb:
    """Open the database file of the work."""
    return SqliteDb(id="main", db_file=work["database"])


def build_agents(work: Work, db: SqliteDb) -> list[Agent]:
    """Build the agents, all on the stub of a model."""
    return [
        Agent(
            id=agent["id"],
            name=agent["name"],
            description=agent["description"],
            instructions=agent["instructions"],
            model=OpenAIChat(id="paced", base_url=work["model_url"], api_key="none"),
            db=db,
            telemetry=False,
        )
        for agent in work["agents"]
    ]


def build_teams(work: Work, members: list[Agent], db: SqliteDb) -> list[Team]:
    """Build the teams, each with all agents as members."""
    return [
        Team(
            id=team["id"],
            name=team["name"],
            description=team["description"],
            instructions=team["instructions"],
            members=list(members),
            model=OpenAIChat(id="paced", base_url=work["model_url"], api_key="none"),
            db=db,
            telemetry=False,
        )
        for team in work["teams"]
    ]


def run_server(work: Work) -> None:
    """Serve with one worker, as `AgentOS.serve` does, without an access log."""
    import uvicorn

    db = open_database(work)
    hosted = build_agents(work, db)
    system = AgentOS(
        id="benchmark",
        agents=hosted,
        teams=build_teams(work, hosted, db),
        db=db,
        authorization=True,
        authorization_config=AuthorizationConfig(
            verification_keys=[Path(work["public_key"]).read_text()], algorithm="RS256"
        ),
        telemetry=False,
    )
    uvicorn.run(
        system.get_app(), host="127.0.0.1", port=work["port"], access_log=False, log_level="warning"
    )


def seed_database(work: Work) -> None:
    """Write the sessions of the work with `upsert_session`.

    AgentOS 3 has a table of runs, which `upsert_run` writes; it ignores those of a session.
    """
    db = open_database(work)
    # A commit for each run would wait for the disk, which takes minutes.
    event.listen(db.db_engine, "connect", lambda connection, _: _disable_flushes(connection))
    for session in work["sessions"]:
        row = _build_session(work, session)
        db.upsert_session(row)
        if hasattr(db, "upsert_run"):
            for index, run in enumerate(row.runs or []):
                db.upsert_run(run, row.session_id, user_id=work["user"], run_index=index)


def _disable_flushes(connection: Any) -> None:
    connection.execute("PRAGMA synchronous = OFF")


def _build_session(work: Work, session: Work) -> AgentSession:
    agent = work["agents"][0]
    runs = [_build_run(work, session, number) for number in range(session["runs"])]
    return AgentSession(
        session_id=session["session_id"],
        agent_id=agent["id"],
        user_id=work["user"],
        session_data={
            "session_name": session["session_id"],
            "session_state": {},
            "session_metrics": {"total_tokens": 60 * len(runs)},
        },
        agent_data={
            "name": agent["name"],
            "agent_id": agent["id"],
            "model": {"id": "paced", "name": "OpenAIChat", "provider": "OpenAI"},
        },
        runs=list(runs),
        created_at=session["created_at"],
        updated_at=session["created_at"],
    )


def _build_run(work: Work, session: Work, number: int) -> RunOutput:
    agent = work["agents"][0]
    created = session["created_at"] + number
    used = {"input_tokens": 20, "output_tokens": 40, "total_tokens": 60}
    said = Message(role="assistant", content=work["answer"], created_at=created)
    said.metrics = MessageMetrics(**used)
    return RunOutput(
        run_id=f"{session['session_id']}-r{number}",
        session_id=session["session_id"],
        agent_id=agent["id"],
        agent_name=agent["name"],
        user_id=work["user"],
        input=RunInput(input_content=work["question"]),
        content=work["answer"],
        model="paced",
        model_provider="OpenAI",
        messages=[
            Message(role="system", content=agent["instructions"], created_at=created),
            Message(role="user", content=work["question"], created_at=created),
            said,
        ],
        metrics=RunMetrics(**used),
        created_at=created,
        status=RunStatus.completed,
    )


if __name__ == "__main__":
    {"seed": seed_database, "serve": run_server}[sys.argv[1]](
        json.loads(Path(sys.argv[2]).read_text())
    )
