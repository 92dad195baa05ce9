"""Agents of agno that wait for decisions. The servers of the tests import this module."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import agno.run
from agno.agent import Agent
from agno.approval import approval
from agno.models.openai.like import OpenAILike
from agno.team import Team
from agno.tools import tool as agno_tool
from agno.tools.user_control_flow import UserControlFlowTools
from agno.tools.user_feedback import UserFeedbackTools

from agentctl import RunContext

FOLDER = Path(__file__).parent
URL = os.environ["MODEL_URL"]


def record(context: RunContext, line: str) -> None:
    """Write a line into the ledger of the session."""
    with (FOLDER / f"{context.session_id}.ledger").open("a") as ledger:
        ledger.write(f"{line}\n")


async def hold() -> None:
    """Wait while the file `hold` exists."""
    while (FOLDER / "hold").exists():
        await asyncio.sleep(0.01)


@agno_tool(requires_confirmation=True)
async def agno_pay(amount: int, to: str, run_context: agno.run.RunContext) -> str:
    """Pay an amount."""
    state = run_context.session_state or {}
    state["payments"] = state.get("payments", 0) + 1
    context = (run_context.dependencies or {})["run_context"]
    record(context, f"pay {amount} to {to} for {(run_context.metadata or {}).get('tenant')}")
    await hold()
    if to == "everyone":
        return f"paid {amount} to {'all of them, ' * 20_000}"
    return f"paid {amount}"


@agno_tool(requires_user_input=True, user_input_fields=["to"])
async def agno_mail(amount: int, to: str, run_context: agno.run.RunContext) -> str:
    """Send a mail."""
    record((run_context.dependencies or {})["run_context"], f"mail to {to}")
    return f"mailed {to}"


@agno_tool(external_execution=True)
async def agno_open(amount: int, to: str) -> str:
    """Open a file; the caller does it."""
    raise AssertionError


@approval
@agno_tool()
async def agno_transfer(amount: int, to: str, run_context: agno.run.RunContext) -> str:
    """Transfer an amount, which a second person approves."""
    record((run_context.dependencies or {})["run_context"], f"transfer {amount}")
    return f"transferred {amount}"


AGNO_TOOLS: list[Any] = [
    agno_pay, agno_mail, agno_open, agno_transfer, UserControlFlowTools(), UserFeedbackTools(),
]  # fmt: skip


def build_agno(model: str, **options: Any) -> Any:
    like = OpenAILike(id=model, base_url=URL, api_key="not-needed")
    return Agent(model=like, tools=AGNO_TOOLS, **options)


def build_crew(model: str, *members: Any, **options: Any) -> Any:
    like = OpenAILike(id=model, base_url=URL, api_key="not-needed")
    return Team(model=like, members=[*members], **options)


agno_payer: Any = build_agno("tool:agno_pay")
agno_exact: Any = build_agno("exact")
agno_mailer: Any = build_agno("tool:agno_mail")
agno_opener: Any = build_agno("tool:agno_open")
agno_transferer: Any = build_agno("tool:agno_transfer")
agno_asker: Any = build_agno("tool:get_user_input")
agno_chooser: Any = build_agno("tool:ask_user")
agno_crew: Any = build_crew("delegate", build_agno("tool:agno_pay", name="payer"))
agno_crews: Any = build_crew(
    "delegate", build_crew("delegate", build_agno("tool:agno_pay", name="payer"), name="crew")
)
agno_pair: Any = build_crew(
    "tool:delegate_task_to_members",
    build_agno("tool:agno_pay", name="payer"),
    build_agno("tool:agno_mail", name="mailer"),
    delegate_to_all_members=True,
)
