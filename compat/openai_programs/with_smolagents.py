"""Agents of smolagents, whose every request has `stop`."""

from __future__ import annotations

import json
from typing import Any

from operations import KEY, SUNNY, URL, expect, get_weather, operation, report
from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

weather = tool(get_weather)


def build_model(name: str = "plan") -> OpenAIModel:
    return OpenAIModel(model_id=name, api_base=URL, api_key=KEY)


def plan(*answers: dict[str, Any]) -> str:
    return json.dumps(answers)


def code(text: str) -> dict[str, Any]:
    return {"content": f"Thought: I know.\n<code>\n{text}\n</code> Observation: never read"}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": name, "type": "function", "function": function}]}


@operation
def first_message() -> None:
    agent = CodeAgent(tools=[], model=build_model())
    answer = agent.run(plan(code('final_answer("hi there")')))
    expect(answer == "hi there", answer)


@operation
def streaming() -> None:
    agent = CodeAgent(tools=[], model=build_model(), stream_outputs=True)
    answer = agent.run(plan(code('final_answer("hi there")')))
    expect(answer == "hi there", answer)


@operation
def tools() -> None:
    agent = CodeAgent(tools=[weather], model=build_model())
    steps = (code('print(get_weather(city="Rome"))'), code('final_answer(get_weather("Rome"))'))
    answer = agent.run(plan(*steps))
    expect(answer == SUNNY, answer)


@operation
def tools_by_calls() -> None:
    agent = ToolCallingAgent(tools=[weather], model=build_model())
    answer = agent.run(plan(call("get_weather", city="Rome"), call("final_answer", answer=SUNNY)))
    expect(answer == SUNNY, answer)


if __name__ == "__main__":
    report()
