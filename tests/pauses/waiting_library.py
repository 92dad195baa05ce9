"""Agents of pydantic-ai that wait for decisions. The servers of the tests import this module."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, ApprovalRequired, CallDeferred, DeferredToolRequests, ModelRetry
from pydantic_ai import RunContext as Run
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agentctl import RunContext

FOLDER = Path(__file__).parent


class Receipt(BaseModel):
    """A structured result."""

    total: int


def record(run: Run[RunContext], line: str) -> None:
    """Write a line into the ledger of the session."""
    with (FOLDER / f"{run.deps.session_id}.ledger").open("a") as ledger:
        ledger.write(f"{line}\n")


def build(model: str, **options: Any) -> Any:
    """Build an agent with all tools."""
    provider = OpenAIProvider(base_url=os.environ["MODEL_URL"], api_key="not-needed")
    chat = OpenAIChatModel(model, provider=provider)
    agent: Any = Agent(chat, deps_type=RunContext, **options)
    agent.tool(look_up)
    agent.tool(pay, requires_approval=True)
    agent.tool(pay_much)
    agent.tool(open_file)
    agent.tool(question)
    return agent


def look_up(run: Run[RunContext], name: str) -> str:
    """Look up an account."""
    record(run, f"look up {name}")
    return name.upper()


def pay(run: Run[RunContext], amount: int, to: str) -> str:
    """Pay an amount, or fail for a negative one."""
    if amount < 0:
        raise ModelRetry("the amount is negative")
    record(run, f"pay {amount} to {to}")
    assert run.deps.call_id == f"{run.deps.run_id}:{run.tool_call_id}"
    while (FOLDER / "hold").exists():
        time.sleep(0.01)
    return f"paid {amount}"


def pay_much(run: Run[RunContext], amount: int) -> str:
    """Pay; a large amount needs an approval."""
    if amount > 5 and not run.tool_call_approved:
        raise ApprovalRequired(metadata={"question": f"Really {amount}?"})
    record(run, f"pay much {amount}")
    return f"paid {amount}"


def open_file(run: Run[RunContext], path: str) -> str:
    """Open a file at the caller."""
    raise CallDeferred


def question(run: Run[RunContext], question: str) -> str:
    """Ask the user."""
    raise CallDeferred(kind="question")


library: Any = build("plan:library")
typed: Any = build("plan:typed", output_type=Receipt)
checked: Any = build("plan:checked", output_type=Receipt)
declared: Any = build("plan:declared", output_type=[str, DeferredToolRequests])


@checked.output_validator
def check_total(receipt: Receipt) -> Receipt:
    """Refuse a wrong total."""
    if receipt.total != 3:
        raise ModelRetry("the total is wrong")
    return receipt
