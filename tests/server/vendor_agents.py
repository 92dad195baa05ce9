"""Agents in code whose models are of other vendors than OpenAI."""

from __future__ import annotations

import os
from typing import Any

import boto3
from pydantic_ai import Agent
from pydantic_ai.models.bedrock import BedrockConverseModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.providers.bedrock import BedrockProvider
from pydantic_ai.providers.google import GoogleProvider

from agentctl import pydantic_ai

URL = os.environ["VENDOR_URL"]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def build_refused_google() -> Any:
    provider = GoogleProvider(api_key="none", base_url=URL)
    return Agent(GoogleModel("http-400", provider=provider))


def build_refused_bedrock() -> Any:
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "eu-central-1"}
    client = boto3.client("bedrock-runtime", endpoint_url=URL, **keys)
    return Agent(BedrockConverseModel("http-400", provider=BedrockProvider(bedrock_client=client)))


def build_with_options(model: str) -> Any:
    """An agent with a model of the configuration, and options of which some vendors have one."""
    settings: Any = {"parallel_tool_calls": False, "frequency_penalty": 0.5}
    return Agent(pydantic_ai.Model(model), tools=[add], model_settings=settings)


def build_options_anthropic() -> Any:
    return build_with_options("anthropic")


def build_options_google() -> Any:
    return build_with_options("google")
