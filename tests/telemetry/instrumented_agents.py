"""Agents in code whose authors have instrumented their libraries, as the guides of these do."""

from __future__ import annotations

import contextlib
from typing import Any

from opentelemetry import trace

tracer = trace.get_tracer("inventory")


def look_up(word: str) -> str:
    """Look a word up."""
    with tracer.start_as_current_span("read the shelf"):
        return f"{word} is there"


def build_pydantic_ai() -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.instrumented import InstrumentationSettings

    from agentctl.pydantic_ai import Model

    Agent.instrument_all(InstrumentationSettings(include_content=False))
    return Agent(Model("look"), tools=[look_up])


def build_graph() -> Any:
    from langchain.agents import create_agent

    from agentctl.langchain import ChatModel

    with contextlib.suppress(ModuleNotFoundError):
        from openinference.instrumentation import TraceConfig
        from openinference.instrumentation.langchain import LangChainInstrumentor

        hidden = TraceConfig(hide_inputs=True, hide_outputs=True)
        LangChainInstrumentor().instrument(config=hidden)
    return create_agent(ChatModel(model="look"), tools=[look_up])


def build_agno() -> Any:
    from agno.agent import Agent

    from agentctl.agno import Model

    with contextlib.suppress(ModuleNotFoundError):
        from openinference.instrumentation import TraceConfig
        from openinference.instrumentation.agno import AgnoInstrumentor

        AgnoInstrumentor().instrument(config=TraceConfig(hide_inputs=True, hide_outputs=True))
    return Agent(name="clerk", model=Model(id="look"), tools=[look_up])


library = build_pydantic_ai()
graph = build_graph()
clerk = build_agno()
