"""The agents of Google ADK for the conformance tests, with its client of other models."""

from __future__ import annotations

import os
from typing import Any

from google.adk.agents import Agent
from google.adk.models.lite_llm import LiteLlm
from google.adk.tools import FunctionTool, ToolContext
from hosted_tools import Total, add, block, describe, pay, start_task, stubborn, wait


def show_tool_context(tool_context: ToolContext) -> str:
    """Show the context."""
    run_config: Any = tool_context.run_config
    return describe(run_config.run_context)


def build(model: str, *tools: Any, **options: Any) -> Agent:
    client = LiteLlm(
        model=f"openai/{model}",
        api_base=os.environ["MODEL_URL"],
        api_key="not-needed",
        max_retries=0,
    )
    return Agent(name="assistant", model=client, tools=[*tools], **options)


adk_echo = build("echo")
adk_history = build("history")
adk_trickle = build("trickle")
adk_tool = build("tool:add", add)
adk_stubborn = build("tool:stubborn", stubborn)
adk_block = build("tool:block", block)
adk_wait = build("tool:wait", wait)
adk_started = build("tool:start_task", start_task)
adk_hang = build("hang")
adk_context = build("tool:show_tool_context", show_tool_context)
adk_failing = build("http-500")
adk_output = build("echo", output_schema=Total)
adk_pay = build("tool:pay", FunctionTool(pay, require_confirmation=True))
adk_calls = build("tools:pay", FunctionTool(pay, require_confirmation=True))
