"""An AgentOS server; used by `compat.kills.peers`.

    python compat/kills/peer_agentos.py PORT FOLDER MODEL_URL [DATABASE_URL ATTEMPTS]

The agent `payer` asks for a payment. With a database the agent `worker` works through the queue of
AgentOS, with that number of attempts at most and a checkpoint after each batch of calls.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn
from agno.agent import Agent
from agno.db.postgres import AsyncPostgresDb
from agno.db.sqlite import SqliteDb
from agno.job_queue import QueueConfig
from agno.models.openai.like import OpenAILike
from agno.os import AgentOS
from agno.tools import tool


def build(folder: Path, model_url: str, *queue: str) -> Any:
    """Return the ASGI application."""

    def write(line: str) -> None:
        with (folder / "ledger").open("a") as ledger:
            ledger.write(f"{line}\n")
            ledger.flush()
            os.fsync(ledger.fileno())
        time.sleep(1.0)

    @tool(requires_confirmation=True)
    def pay(note: str) -> str:
        """Pay, and write the payment to the ledger."""
        write(note)
        return "paid"

    @tool
    def step(number: int) -> str:
        """Write a step to the ledger."""
        write(str(number))
        return "made"

    if queue:
        return build_queue(*queue, model_url=model_url, tools=[step])
    agent = Agent(
        id="payer",
        model=OpenAILike(id="tool:pay", base_url=model_url, api_key="none"),
        tools=[pay],
        db=SqliteDb(db_file=str(folder / "agentos.db")),
        telemetry=False,
    )
    return AgentOS(id="peer", agents=[agent], telemetry=False).get_app()


def build_queue(database_url: str, attempts: str, *, model_url: str, tools: list[Any]) -> Any:
    """Return the ASGI application of a server with a durable queue."""
    database = AsyncPostgresDb(db_url=database_url)
    worker = Agent(
        id="worker",
        model=OpenAILike(id="plan", base_url=model_url, api_key="none"),
        tools=tools,
        db=database,
        checkpoint="tool-batch",
        telemetry=False,
    )
    queue = QueueConfig(
        durable=True,
        max_attempts=int(attempts),
        retry_delay_seconds=0,
        lock_grace_seconds=3,
        stop_timeout_seconds=1,
    )
    return AgentOS(id="peer", agents=[worker], db=database, queue=queue, telemetry=False).get_app()


if __name__ == "__main__":
    port, folder, *more = sys.argv[1:]
    uvicorn.run(build(Path(folder), *more), host="127.0.0.1", port=int(port), log_level="error")
