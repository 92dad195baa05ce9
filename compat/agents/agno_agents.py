"""Agents and teams of agno after the shapes of its cookbook, in own words."""

from __future__ import annotations

import os
from typing import Any

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.exceptions import RetryAgentRun
from agno.models.openai.like import OpenAILike
from agno.run import RunContext
from agno.team import Team
from agno.tools import tool
from agno.workflow import Condition, Loop, Parallel, Router, Step, StepInput, StepOutput, Workflow
from ledger import recorded
from pydantic import BaseModel

URL = os.environ["MODEL_URL"]


def chat(role: str) -> OpenAILike:
    """Return the model of a role."""
    return OpenAILike(id=role, base_url=f"{URL}/v1", api_key="none", max_retries=0)


@recorded
async def stock_price(symbol: str) -> str:
    """Look up the price of a stock."""
    return f"{symbol} costs 100"


@recorded
def search_web(query: str) -> str:
    """Search the web."""
    return f"three pages about {query}"


class Script(BaseModel):
    """A film."""

    title: str
    genre: str


basic = Agent(model=chat("basic"), instructions="You are a reporter.", markdown=True)

finance = Agent(model=chat("finance"), tools=[stock_price, search_web], markdown=True)

movie = Agent(model=chat("movie"), output_schema=Script)


@recorded
def add_item(run_context: RunContext, item: str) -> str:
    """Add an item to the shopping list."""
    state = run_context.session_state
    assert state is not None
    state.setdefault("items", []).append(item)
    return f"added {item}"


shopping = Agent(
    model=chat("shopping"),
    tools=[add_item],
    session_state={"items": []},
    instructions="The list is {items}.",
)


@recorded
async def find_documents(query: str, num_documents: int | None = None, **options: Any) -> list[Any]:
    """Return documents for a query."""
    return [{"content": "The moon is 384,400 km away."}]


async def _retrieve(
    query: str, num_documents: int | None = None, **options: Any
) -> list[dict[str, Any]]:
    return [{"content": "The moon is 384,400 km away."}]


knowing = Agent(model=chat("knowing"), knowledge_retriever=_retrieve, search_knowledge=True)

reading = Agent(model=chat("reading"), knowledge_retriever=_retrieve, add_knowledge_to_context=True)

hooked = Agent(model=chat("hooked"), parser_model=chat("hooked/parser"), output_schema=Script)


@tool(requires_confirmation=True)
@recorded
def send_money(amount: int, to: str) -> str:
    """Send money."""
    return f"sent {amount} to {to}"


confirming = Agent(model=chat("confirming"), tools=[send_money, stock_price])


def _member(team: str, name: str, *tools: Any) -> Agent:
    return Agent(
        id=name, name=name, role=f"The {name}", model=chat(f"{team}/{name}"), tools=list(tools)
    )


coordinate = Team(
    model=chat("coordinate"),
    members=[
        _member("coordinate", "researcher", search_web),
        _member("coordinate", "analyst", stock_price),
    ],
)

route = Team(
    model=chat("route"),
    respond_directly=True,
    determine_input_for_members=False,
    members=[_member("route", "german"), _member("route", "french")],
)

collaborate = Team(
    model=chat("collaborate"),
    delegate_to_all_members=True,
    members=[_member("collaborate", "poet"), _member("collaborate", "critic", search_web)],
)

nested = Team(
    model=chat("nested"),
    members=[
        Team(
            id="desk",
            name="desk",
            model=chat("nested/desk"),
            members=[_member("nested", "clerk", stock_price)],
        )
    ],
)


# A picture and a document in the message

looking = Agent(model=chat("looking"), instructions="Describe the picture.")

reader = Agent(model=chat("reader"), output_schema=Script)


# Workflow: a team researches, an agent plans

content = Workflow(
    name="content",
    steps=[
        Step(
            name="research",
            team=Team(
                name="researchers",
                model=chat("content/team"),
                members=[_member("content", "web", search_web)],
            ),
        ),
        Step(name="plan", agent=_member("content", "planner")),
    ],
)


# Workflow: a function as a step, with the output of the step before


@recorded
async def count_letters(text: str) -> str:
    """Count letters."""
    return f"{len(text)} letters"


async def _measure(step_input: StepInput) -> StepOutput:
    text = str(step_input.previous_step_content)
    return StepOutput(content=f"{text} ({await count_letters(text)})")


measured = Workflow(
    name="measured", steps=[Step(name="write", agent=_member("measured", "writer")), _measure]
)


# Workflow: two researchers at once, then a writer

parallel = Workflow(
    name="parallel",
    steps=[
        Parallel(
            Step(name="news", agent=_member("parallel", "news", search_web)),
            Step(name="web", agent=_member("parallel", "web")),
            name="research",
        ),
        Step(name="write", agent=_member("parallel", "writer")),
    ],
)


# Workflow: a check of facts only if the text has numbers


def _has_facts(step_input: StepInput) -> bool:
    return "percent" in str(step_input.previous_step_content)


checked = Workflow(
    name="checked",
    steps=[
        Step(name="write", agent=_member("checked", "writer")),
        Condition(
            name="check",
            evaluator=_has_facts,
            steps=[Step(name="verify", agent=_member("checked", "verifier", search_web))],
        ),
    ],
)


# Workflow: research until it is long enough


def _is_enough(outputs: list[StepOutput]) -> bool:
    return any("enough" in str(output.content) for output in outputs)


looped = Workflow(
    name="looped",
    steps=[
        Loop(
            name="research",
            steps=[Step(name="look", agent=_member("looped", "researcher"))],
            end_condition=_is_enough,
            max_iterations=3,
        )
    ],
)


# Workflow: one of two specialists


def _choose_desk(step_input: StepInput) -> list[Step]:
    return [_tech] if "question" in str(step_input.input) else [_sport]


_tech = Step(name="tech", agent=_member("routed", "tech"))
_sport = Step(name="sport", agent=_member("routed", "sport"))

routed = Workflow(
    name="routed", steps=[Router(name="desk", selector=_choose_desk, choices=[_tech, _sport])]
)


# Input of a person in the middle


@tool(requires_user_input=True, user_input_fields=["to"])
@recorded
def send_letter(subject: str, to: str) -> str:
    """Send a letter."""
    return f"{subject} sent to {to}"


letter = Agent(model=chat("letter"), tools=[send_letter])


# Hooks: one before the run, one around each tool, and a second model after a failure


def _check_length(run_input: Any) -> None:
    assert len(str(run_input.input_content)) < 1000


async def _time_tool(function_name: str, function_call: Any, arguments: dict[str, Any]) -> Any:
    result = function_call(**arguments)
    return await result if hasattr(result, "__await__") else result


hooks = Agent(
    model=chat("hooks"), tools=[stock_price], pre_hooks=[_check_length], tool_hooks=[_time_tool]
)

falling = Agent(model=chat("falling/first"), fallback_models=[chat("falling")])


# A tool that asks the model again


@recorded
def order(article: str) -> str:
    """Order an article."""
    if article != "tea":
        raise RetryAgentRun("Order tea.")
    return "tea is on its way"


shop = Agent(model=chat("shop"), tools=[order])


# The database of the library keeps the history

kept = Agent(
    id="kept", model=chat("kept"), db=InMemoryDb(), add_history_to_context=True, num_history_runs=3
)
