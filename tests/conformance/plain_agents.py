"""Functions that call models with the clients of vendors, and plainly end.

The server of `test_plain_runs` imports this module.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import openai

URL = os.environ["MODEL_URL"].replace("127.0.0.1", "localhost")
"""A name, which is resolved in a thread."""

BODY: dict[str, Any] = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}


async def call_httpx(message: str) -> str:
    async with httpx.AsyncClient() as client:
        response = await client.post(f"{URL}/chat/completions", json=BODY)
    return str(response.json()["choices"][0]["message"]["content"])


async def call_openai(message: str) -> str:
    client = openai.AsyncOpenAI(base_url=URL, api_key="not-needed")
    stream = await client.chat.completions.create(**BODY, stream=True)
    # The rest of the stream is not read.
    async for chunk in stream:
        if chunk.choices:
            return str(chunk.choices[0].delta.content)
    return ""


async def call_anthropic(message: str) -> str:
    client = anthropic.AsyncAnthropic(base_url=URL, api_key="not-needed", max_retries=0)
    try:
        await client.messages.create(**BODY, max_tokens=10)
    except anthropic.APIStatusError as error:
        return str(error.status_code)
    return ""


async def use_thread(message: str) -> str:
    return await asyncio.to_thread(str.upper, message)


async def leave_generators(message: str) -> str:
    """Leave nested generators before their end: Python closes them in tasks."""
    async for number in count(3):
        return str(number)
    return ""


async def count(depth: int) -> AsyncIterator[int]:
    try:
        if depth:
            async for number in count(depth - 1):
                yield number
        yield depth
    finally:
        await asyncio.sleep(0.002)
