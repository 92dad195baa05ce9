"""Agents of Google ADK with the tools of the other kinds. Their server imports this module."""

from __future__ import annotations

import os
from typing import Any

# The model would import it at its first call, which takes seconds.
import litellm  # noqa: F401
from google.adk.agents import Agent
from google.adk.models.lite_llm import LiteLlm
from google.adk.tools import FunctionTool

from tests.lab.failures.tools import TIMEOUT, TOOLS, Total, pay

URL = os.environ["FAILURES_MODEL_URL"]


def build_agent(**options: Any) -> Agent:
    model = LiteLlm(
        model="openai/google-adk",
        api_base=URL,
        api_key="not-needed",
        max_retries=0,
        timeout=TIMEOUT,
    )
    tools = [*TOOLS, FunctionTool(pay, require_confirmation=True)]
    return Agent(name="assistant", model=model, instruction="Be brief.", tools=tools, **options)


google_adk = build_agent()
google_adk_output = build_agent(output_schema=Total)
