"""An AgentOS server whose agent asks for a payment; used by `tests.kills.peers`.

python tests/kills/peer_agentos.py PORT FOLDER MODEL_URL
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn
from agno.agent import Agent
from agno.db.sqlite import SqliteDb
from agno.models.openai.like import OpenAILike
from agno.os import AgentOS
from agno.tools import tool


def build(folder: Path, model_url: str) -> Any:
    """Return the ASGI application."""

    @tool(requires_confirmation=True)
    def pay(note: str) -> str:
        """Pay, and write the payment to the ledger."""
        with (folder / "ledger").open("a") as ledger:
            ledger.write(f"{note}\n")
            ledger.flush()
            os.fsync(ledger.fileno())
        time.sleep(1.0)
        return "paid"

    agent = Agent(
        id="payer",
        model=OpenAILike(id="tool:pay", base_url=model_url, api_key="none"),
        tools=[pay],
        db=SqliteDb(db_file=str(folder / "agentos.db")),
        telemetry=False,
    )
    return AgentOS(id="peer", agents=[agent], telemetry=False).get_app()


if __name__ == "__main__":
    port, folder, model_url = sys.argv[1:]
    uvicorn.run(build(Path(folder), model_url), host="127.0.0.1", port=int(port), log_level="error")
