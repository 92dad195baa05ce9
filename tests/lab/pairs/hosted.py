"""The components of the schedules, and the ledger of the calls that their tools really made.

Each component pays once: the tool needs an approval. Set `URL` to the model endpoint first.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import agentctl

ledger: Counter[str] = Counter()
"""The payments of each session: the truth outside of the database."""

URL = "http://127.0.0.1:9/v1"


def pay_for(session_id: str) -> str:
    """Add a payment to the ledger."""
    ledger[session_id] += 1
    return "paid"


@agentctl.tool(approve="user")
async def pay(amount: int, context: agentctl.RunContext) -> str:
    """Pay an amount."""
    return pay_for(context.session_id)


async def function(message: str, context: agentctl.RunContext) -> str:
    """Ask for an approval, and pay in a step."""
    decision = await context.approve("pay", {"amount": 1})
    if not decision:
        return "refused"

    async def effect() -> str:
        return pay_for(context.session_id)

    return str(await context.step("pay", effect))


async def question(message: str, context: agentctl.RunContext) -> str:
    """Ask a question, which any JSON value answers."""
    try:
        return str(await context.ask("Which one?"))
    except agentctl.Rejected:
        return "refused"


def build_pydantic_ai() -> Any:
    from openai import AsyncOpenAI
    from pydantic_ai import Agent, RunContext
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    # The client that the library shares would die with a server.
    client = AsyncOpenAI(base_url=URL, api_key="not-needed", max_retries=0)
    provider = OpenAIProvider(openai_client=client)
    agent = Agent(OpenAIChatModel("tool:pay", provider=provider), deps_type=agentctl.RunContext)

    async def pay(run: RunContext[agentctl.RunContext], amount: int) -> str:
        return pay_for(run.deps.session_id)

    # The annotations of a nested function are not found by their names.
    pay.__annotations__ = {"run": RunContext[agentctl.RunContext], "amount": int, "return": str}
    agent.tool(pay, requires_approval=True)
    return agent


def build_langgraph() -> Any:
    from langchain.agents import create_agent
    from langchain.agents.middleware import HumanInTheLoopMiddleware
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    async def pay(amount: int, config: RunnableConfig) -> str:
        """Pay an amount."""
        return pay_for(config["configurable"]["run_context"].session_id)

    pay.__annotations__ = {"amount": int, "config": RunnableConfig, "return": str}
    options: dict[str, Any] = {"base_url": URL, "api_key": "not-needed"}
    gate = HumanInTheLoopMiddleware(interrupt_on={"pay": True})
    chat = ChatOpenAI(model="tool:pay", **options)
    return create_agent(chat, tools=[tool(pay)], middleware=[gate])


def build_agno(*, team: bool = False) -> Any:
    import agno.run
    from agno.agent import Agent
    from agno.models.openai.like import OpenAILike
    from agno.team import Team
    from agno.tools import tool

    async def pay(amount: int, run_context: agno.run.RunContext) -> str:
        """Pay an amount."""
        return pay_for((run_context.dependencies or {})["run_context"].session_id)

    pay.__annotations__ = {"amount": int, "run_context": agno.run.RunContext, "return": str}
    gated: Any = tool(requires_confirmation=True)(pay)
    model = OpenAILike(id="tool:pay", base_url=URL, api_key="not-needed")
    agent = Agent(model=model, tools=[gated], name="payer")
    if not team:
        return agent
    leader = OpenAILike(id="delegate", base_url=URL, api_key="not-needed")
    return Team(model=leader, members=[agent])


def build_agno_workflow() -> Any:
    from agno.workflow import Step, Workflow

    return Workflow(name="payment", steps=[Step(name="pay", agent=build_agno())])


def build_openai_agents() -> Any:
    import agents
    from openai import AsyncOpenAI

    async def pay(wrapper: Any, amount: int) -> str:
        """Pay an amount."""
        return pay_for(wrapper.context.session_id)

    wrapped = agents.RunContextWrapper[agentctl.RunContext]
    pay.__annotations__ = {"wrapper": wrapped, "amount": int, "return": str}
    client = AsyncOpenAI(base_url=URL, api_key="not-needed", max_retries=0)
    return agents.Agent(
        name="payer",
        model=agents.OpenAIChatCompletionsModel("tool:pay", client),
        tools=[agents.function_tool(needs_approval=True)(pay)],
    )


_BUILDERS = {
    "pydantic_ai": build_pydantic_ai,
    "langgraph": build_langgraph,
    "agno": build_agno,
    "agno_team": lambda: build_agno(team=True),
    "agno_workflow": build_agno_workflow,
    "openai_agents": build_openai_agents,
}


def __getattr__(name: str) -> Any:
    """Build the agent of a library when it is hosted: the others are not imported."""
    if name not in _BUILDERS:
        raise AttributeError(name)
    return _BUILDERS[name]()
