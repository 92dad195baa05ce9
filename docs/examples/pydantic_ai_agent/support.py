"""An agent of pydantic-ai with its own deps.

agentctl calls `build_customer` for each run, and passes the messages of earlier runs of the session
to the agent.
"""

import os
from dataclasses import dataclass

from pydantic_ai import Agent
from pydantic_ai import RunContext as Run

from agentctl import RunContext

PLANS = {"ann": "business", "bob": "free"}


@dataclass
class Customer:
    """The deps of a run."""

    user_id: str
    plan: str
    context: RunContext


def build_customer(context: RunContext) -> Customer:
    """Make the deps of a run: who asks, and what the user has bought."""
    user_id = context.user_id or "nobody"
    return Customer(user_id, PLANS.get(user_id, "none"), context)


agent = Agent(
    os.environ.get("SUPPORT_MODEL", "openai-chat:gpt-5.2-mini"),
    deps_type=Customer,
    instructions="You support the customers of a bank. Be brief.",
    defer_model_check=True,
)


@agent.instructions
def describe_customer(run: Run[Customer]) -> str:
    return f"The customer is {run.deps.user_id}."


@agent.tool
async def read_plan(run: Run[Customer]) -> str:
    """Read the plan of the customer."""
    run.deps.context.progress("reading the plan")
    return f"{run.deps.user_id} has the plan {run.deps.plan}"
