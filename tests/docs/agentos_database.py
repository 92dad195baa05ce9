"""Write a database of AgentOS: runs of an agent, a team and a workflow of agno, and a memory.

    python agentos_database.py FILE MODEL_URL

The sessions are `sums`, with a run that calls a tool and one after it, `broken`, with a run that
fails, `paused`, with one that waits for its user, `cut`, with one that was cancelled during a tool
call, `talk` of a team, and `steps` of a workflow.
"""

from __future__ import annotations

import sys
from typing import Any

from agno.agent import Agent
from agno.db.schemas import UserMemory
from agno.db.sqlite import SqliteDb
from agno.metrics import RunMetrics
from agno.models.message import Message
from agno.models.openai.like import OpenAILike
from agno.run.agent import RunInput, RunOutput
from agno.run.base import RunStatus
from agno.session import AgentSession
from agno.team import Team
from agno.tools import tool
from agno.workflow import Step, Workflow


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(name="add", requires_confirmation=True)
def add_if_confirmed(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def build_call(call_id: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "add", "arguments": arguments}}


def build_cut_run() -> RunOutput:
    """Return a run that was cancelled while it waited for the result of its last call."""
    calls = [
        build_call("c1", '{"a": 1'),
        build_call("c2", "[2]"),
        build_call("c3", '{"a": 12345678901234567891}'),
        build_call("c4", '{"a": 2}'),
    ]
    return RunOutput(
        run_id="cut-1",
        agent_id="adder",
        session_id="cut",
        input=RunInput(input_content="add"),
        messages=[
            Message(role="user", content="add"),
            Message(role="assistant", tool_calls=calls),
            *(
                Message(role="tool", content="failed", tool_call_id=call["id"], tool_name="add")
                for call in calls[:3]
            ),
        ],
        metrics=RunMetrics(total_tokens=7, duration=2.5),
        created_at=1_795_000_000,
        status=RunStatus.cancelled,
    )


def write_database(file: str, model_url: str) -> None:
    database = SqliteDb(db_file=file)

    def build_agent(agent_id: str, model: str, *tools: Any) -> Agent:
        return Agent(
            id=agent_id,
            name=agent_id.title(),
            model=OpenAILike(id=model, base_url=model_url, api_key="none", max_retries=0),
            tools=[*tools],
            db=database,
            telemetry=False,
            add_history_to_context=True,
            store_history_messages=True,
        )

    adder = build_agent("adder", "tool:add", add)
    writer = build_agent("writer", "echo")
    team = Team(
        id="crew",
        name="Crew",
        model=OpenAILike(id="delegate", base_url=model_url, api_key="none", max_retries=0),
        members=[writer],
        db=database,
        telemetry=False,
    )
    line = Workflow(
        id="line", name="Line", steps=[Step(name="say", agent=writer)], db=database, telemetry=False
    )

    adder.run('{"a": 2, "b": 3}', session_id="sums", user_id="ada", session_state={"mood": "fine"})
    adder.run('{"a": 4, "b": 5}', session_id="sums", user_id="ada")
    adder.set_session_name(session_id="sums", session_name="Two sums")
    build_agent("refused", "http-400").run("hello", session_id="broken")
    build_agent("clerk", "tool:add", add_if_confirmed).run('{"a": 1, "b": 1}', session_id="paused")
    database.upsert_session(AgentSession("cut", agent_id="adder", created_at=1_795_000_000))
    database.upsert_run(build_cut_run(), session_id="cut", run_index=0)
    team.run("hello to the team", session_id="talk", user_id="ada")
    line.run("hello to the line", session_id="steps")
    database.upsert_user_memory(UserMemory("Likes tea", topics=["drinks"], user_id="ada"))


if __name__ == "__main__":
    write_database(*sys.argv[1:])
