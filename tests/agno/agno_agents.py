"""Agents, teams and workflows as in the cookbook of agno. The server of the tests imports them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import agno.run
from agno.agent import Agent
from agno.models.openai.like import OpenAILike
from agno.team import Team
from agno.tools import tool
from agno.workflow import (
    Condition,
    Loop,
    Parallel,
    Router,
    Step,
    StepInput,
    StepOutput,
    Workflow,
    WorkflowAgent,
)
from agno.workflow.types import HumanReview
from pydantic import BaseModel

FOLDER = Path(__file__).parent
URL = os.environ["MODEL_URL"]


def build_model(name: str, **options: Any) -> Any:
    return OpenAILike(id=name, base_url=URL, api_key="not-needed", max_retries=0, **options)


def build_agent(
    model: str, name: str = "worker", timeout: float | None = None, **options: Any
) -> Any:
    return Agent(name=name, model=build_model(model, timeout=timeout), **options)


def build_team(model: str, *members: Any, **options: Any) -> Any:
    return Team(model=build_model(model), members=[*members], **options)


def build_workflow(*steps: Any, **options: Any) -> Any:
    return Workflow(name="line", steps=[*steps], **options)


def build_step(name: str, model: str, **options: Any) -> Any:
    return Step(name=name, agent=build_agent(model, name=f"{name}-agent"), max_retries=0, **options)


# Teams


def look_up(word: str = "") -> str:
    """Look up a word."""
    return "found"


searcher = build_agent("tool:look_up", "Dr. Search", tools=[look_up])
flat: Any = build_team("delegate", searcher, build_agent("echo", "writer"))
nested: Any = build_team("delegate", build_team("delegate", searcher, name="researchers"))
failing_member: Any = build_team("delegate", build_agent("http-400"))

# Failures of models

refused_400: Any = build_agent("http-400")
refused_401: Any = build_agent("http-401")
refused_403: Any = build_agent("http-403")
refused_404: Any = build_agent("http-404")
busy_429: Any = build_agent("http-429")
broken_500: Any = build_agent("http-500")
slow: Any = build_agent("hang", timeout=0.5)
refused_team: Any = build_team("http-400", build_agent("echo"))
refused_workflow: Any = build_workflow(build_step("ask", "http-400"))


# Input


class Question(BaseModel):
    """The input of an agent."""

    topic: str
    number: int = 1


typed_agent: Any = build_agent("echo", input_schema=Question)
typed_team: Any = build_team("echo", build_agent("echo"), input_schema=Question)
typed_workflow: Any = build_workflow(build_step("ask", "echo"), input_schema=Question)


# Further models


@tool(requires_confirmation=True)
def pay_all(number: int) -> str:
    """Pay all."""
    return f"paid {number}"


class Answer(BaseModel):
    """The output of an agent."""

    number: int


parsed: Any = build_agent("echo", parser_model=build_model("echo"), output_schema=Answer)
polished: Any = build_agent("echo", output_model=build_model("echo"))
followed: Any = build_agent("echo", followups=True, followup_model=build_model("echo"))
waiting_polished: Any = build_agent(
    "tool:pay_all", tools=[pay_all], output_model=build_model("echo")
)
parsed_team: Any = build_team(
    "echo", build_agent("echo"), parser_model=build_model("echo"), output_schema=Answer
)
parsed_member: Any = build_team(
    "delegate", build_agent("echo", parser_model=build_model("echo"), output_schema=Answer)
)


# Workflows


def shout(step_input: StepInput, run_context: agno.run.RunContext) -> StepOutput:
    """Return the text of the step before in capitals, and count in the state of the session."""
    state = run_context.session_state
    assert state is not None
    state["shouts"] = state.get("shouts", 0) + 1
    return StepOutput(content=str(step_input.previous_step_content or step_input.input).upper())


def fail(step_input: StepInput) -> StepOutput:
    raise ValueError("secret of the step")


stages: Any = build_workflow(
    build_step("read", "echo"),
    Parallel(build_step("left", "echo"), build_step("right", "echo"), name="both"),
    Condition(name="maybe", evaluator=lambda _: True, steps=[build_step("then", "echo")]),
    Loop(name="again", steps=[Step(name="shout", executor=shout)], max_iterations=2),
)
skipping: Any = build_workflow(build_step("first", "http-400"), build_step("second", "echo"))
failing_step: Any = build_workflow(Step(name="break", executor=fail, max_retries=0))
hanging: Any = build_workflow(
    Parallel(build_step("left", "hang"), build_step("right", "hang"), name="both")
)


@tool(requires_confirmation=True)
async def pay(amount: int, to: str, run_context: agno.run.RunContext) -> str:
    """Pay an amount."""
    context = (run_context.dependencies or {})["run_context"]
    with (FOLDER / f"{context.session_id}.ledger").open("a") as ledger:
        ledger.write(f"pay {amount} to {to} for {context.user_id}\n")
    return f"paid {amount}"


payer = build_agent("tool:pay", "payer", tools=[pay])
paying: Any = build_workflow(
    Step(name="prepare", executor=lambda step_input: StepOutput(content=step_input.input)),
    Step(name="pay", team=build_team("delegate", payer, name="payers")),
    Step(name="shout", executor=shout),
)
confirmed: Any = build_workflow(
    build_step(
        "ask",
        "echo",
        human_review=HumanReview(requires_confirmation=True, confirmation_message="Really?"),
    ),
    Step(name="shout", executor=shout),
)
asking: Any = build_workflow(
    build_step(
        "ask",
        "echo",
        human_review=HumanReview(
            requires_user_input=True,
            user_input_message="Which city?",
            user_input_schema=[{"name": "city", "field_type": "str", "required": True}],
        ),
    )
)
reviewed: Any = build_workflow(
    build_step(
        "ask",
        "echo",
        human_review=HumanReview(requires_output_review=True, output_review_message="Is it good?"),
    ),
    Step(name="shout", executor=shout),
)
routed: Any = build_workflow(
    Router(
        name="way",
        choices=[build_step("left", "echo"), Step(name="shout", executor=shout)],
        human_review=HumanReview(requires_user_input=True, user_input_message="Which way?"),
    )
)
planned = build_agent("plan", "payer", tools=[pay])
twice_team: Any = build_team("delegate", planned)
twice_workflow: Any = build_workflow(Step(name="pay", agent=planned))
looped: Any = build_workflow(
    Loop(
        name="again",
        steps=[Step(name="shout", executor=shout)],
        max_iterations=3,
        human_review=HumanReview(requires_iteration_review=True, on_reject="retry"),
    )
)


@tool(requires_confirmation=True)
async def read_count(run_context: agno.run.RunContext) -> str:
    """Return the number in the state of the session."""
    return f"count {(run_context.session_state or {}).get('count')}"


counter = build_agent("tool:read_count", "counter", tools=[read_count])
counting_team: Any = build_team("delegate", counter, session_state={"count": 7})
counting_workflow: Any = build_workflow(Step(name="count", agent=counter))
agentic: Any = build_workflow(
    Step(name="shout", executor=shout), agent=WorkflowAgent(model=build_model("tool:run_workflow"))
)
