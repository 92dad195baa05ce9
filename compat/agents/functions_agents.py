"""Plain functions with the SDKs of providers, as in their quick starts, in own words."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
from ledger import recorded
from pydantic import BaseModel

from agentctl import Output, Progress, RunContext, ToolCompleted, ToolStarted, Usage

URL = os.environ["MODEL_URL"]
CLIENT = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


@recorded
async def get_weather(city: str) -> str:
    """Report the weather."""
    return f"22 degrees in {city}"


@recorded
def get_time(city: str) -> str:
    """Report the time."""
    return f"noon in {city}"


TOOLS: dict[str, Any] = {"get_weather": get_weather, "get_time": get_time}

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def build_messages(message: str, context: RunContext) -> list[Any]:
    """Return the history and the message as messages of OpenAI."""
    earlier = [
        {"role": each["role"], "content": each["content"] or ""}
        for each in context.history
        if each["role"] in ("user", "assistant")
    ]
    return [
        {"role": "system", "content": "Be brief."},
        *earlier,
        {"role": "user", "content": message},
    ]


def count(context: RunContext, usage: Any) -> None:
    context.usage(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens)


async def completion(message: str, context: RunContext) -> str:
    """Answer with one call."""
    asked = build_messages(message, context)
    done = await CLIENT.chat.completions.create(model="completion", messages=asked)
    assert done.usage is not None
    count(context, done.usage)
    return done.choices[0].message.content or ""


def synchronous(message: str, context: RunContext) -> str:
    """Answer with one call in a thread."""
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    with client:
        done = client.chat.completions.create(
            model="synchronous", messages=build_messages(message, context)
        )
    assert done.usage is not None
    count(context, done.usage)
    return done.choices[0].message.content or ""


async def streaming(message: str, context: RunContext) -> AsyncIterator[Any]:
    """Stream one answer."""
    stream = await CLIENT.chat.completions.create(
        model="streaming",
        messages=build_messages(message, context),
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        if chunk.usage is not None:
            yield Usage(chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
        for choice in chunk.choices:
            if choice.delta.content:
                yield choice.delta.content


async def loop(message: str, context: RunContext) -> AsyncIterator[Any]:
    """Call tools until the model answers."""
    messages = build_messages(message, context)
    tools: Any = [
        {"type": "function", "function": {"name": name, "parameters": CITY}} for name in TOOLS
    ]
    while True:
        done = await CLIENT.chat.completions.create(model="loop", messages=messages, tools=tools)
        assert done.usage is not None
        yield Usage(done.usage.prompt_tokens, done.usage.completion_tokens)
        answer = done.choices[0].message
        messages.append(answer.model_dump(exclude_none=True))
        for call in answer.tool_calls or ():
            name = call.function.name
            arguments = json.loads(call.function.arguments)
            yield ToolStarted(call.id, name, arguments)
            work = TOOLS[name]
            if asyncio.iscoroutinefunction(work):
                result = await work(**arguments)
            else:
                result = await asyncio.to_thread(work, **arguments)
            yield ToolCompleted(call.id, result)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        if not answer.tool_calls:
            yield answer.content or ""
            return


async def claude(message: str, context: RunContext) -> AsyncIterator[Any]:
    """Stream an answer of Anthropic's Messages API."""
    from anthropic import AsyncAnthropic

    client = AsyncAnthropic(base_url=URL, api_key="none", max_retries=0)
    messages: Any = build_messages(message, context)[1:]
    async with client.messages.stream(model="claude", max_tokens=1000, messages=messages) as stream:
        async for text in stream.text_stream:
            yield text
        used = (await stream.get_final_message()).usage
    yield Usage(used.input_tokens, used.output_tokens)


async def raw(message: str, context: RunContext) -> str:
    """Post to the endpoint without an SDK."""
    body = {"model": "raw", "messages": build_messages(message, context)}
    async with httpx.AsyncClient(timeout=600) as client:
        answer = await client.post(f"{URL}/v1/chat/completions", json=body)
    answer.raise_for_status()
    used = answer.json()["usage"]
    context.usage(input_tokens=used["prompt_tokens"], output_tokens=used["completion_tokens"])
    return str(answer.json()["choices"][0]["message"]["content"])


async def voting(message: str, context: RunContext) -> AsyncIterator[Any]:
    """Ask three models at once and count their votes."""
    asked = build_messages(message, context)

    async def vote(name: str) -> str:
        done = await CLIENT.chat.completions.create(model=f"voting/{name}", messages=asked)
        assert done.usage is not None
        count(context, done.usage)
        return done.choices[0].message.content or ""

    yield Progress("voting", 0.5)
    votes = await asyncio.gather(*(vote(name) for name in ("a", "b", "c")))
    yield Output({"votes": votes})
    yield max(set(votes), key=votes.count)


async def queue(message: str, context: RunContext) -> AsyncIterator[Any]:
    """Let a task put the pieces of an answer into a queue, as servers with callbacks do."""
    pieces: asyncio.Queue[str | None] = asyncio.Queue()

    async def produce() -> None:
        stream = await CLIENT.chat.completions.create(
            model="queue",
            messages=build_messages(message, context),
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if chunk.usage is not None:
                count(context, chunk.usage)
            for choice in chunk.choices:
                await pieces.put(choice.delta.content)
        await get_weather("Rome")
        await pieces.put(None)

    task = asyncio.create_task(produce())
    ended = asyncio.create_task(asyncio.wait([task]))
    while not (task.done() and pieces.empty()):
        getting = asyncio.create_task(pieces.get())
        await asyncio.wait([getting, ended], return_when="FIRST_COMPLETED")
        if not getting.done():
            getting.cancel()
            break
        if getting.result():
            yield getting.result()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def responses(message: str, context: RunContext) -> AsyncIterator[Any]:
    """Stream an answer of OpenAI's Responses API."""
    asked: Any = build_messages(message, context)
    stream = await CLIENT.responses.create(model="responses", input=asked, stream=True)
    async for event in stream:
        if event.type == "response.output_text.delta":
            yield event.delta
        elif event.type == "response.completed" and event.response.usage:
            used = event.response.usage
            yield Usage(used.input_tokens, used.output_tokens)


class Recipe(BaseModel):
    """A recipe."""

    dish: str
    minutes: int


async def parsed(message: str, context: RunContext) -> dict[str, Any]:
    """Answer with an object that the SDK parses."""
    asked = build_messages(message, context)
    done = await CLIENT.chat.completions.parse(
        model="parsed", messages=asked, response_format=Recipe
    )
    assert done.usage is not None
    count(context, done.usage)
    recipe = done.choices[0].message.parsed
    assert recipe is not None
    return recipe.model_dump()


async def looking(message: str, context: RunContext) -> str:
    """Describe a picture."""
    pictures = [
        f"data:{file.media_type};base64,{base64.b64encode(await file.read()).decode()}"
        for file in context.files
    ]
    parts: list[Any] = [{"type": "text", "text": message}]
    parts += [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
    asked = [*build_messages(message, context)[:-1], {"role": "user", "content": parts}]
    done = await CLIENT.chat.completions.create(model="looking", messages=asked)
    assert done.usage is not None
    count(context, done.usage)
    return done.choices[0].message.content or ""


async def claude_tools(message: str, context: RunContext) -> AsyncIterator[Any]:
    """Call tools with Anthropic's Messages API until the model answers."""
    from anthropic import AsyncAnthropic

    client = AsyncAnthropic(base_url=URL, api_key="none", max_retries=0)
    messages: Any = build_messages(message, context)[1:]
    tools: Any = [{"name": "get_weather", "description": "Weather", "input_schema": CITY}]
    while True:
        options: Any = {"model": "claude_tools", "max_tokens": 1000, "tools": tools}
        async with client.messages.stream(messages=messages, **options) as stream:
            async for text in stream.text_stream:
                yield text
            answer = await stream.get_final_message()
        yield Usage(answer.usage.input_tokens, answer.usage.output_tokens)
        messages.append({"role": "assistant", "content": answer.content})
        results = []
        for block in answer.content:
            if block.type == "tool_use":
                call_id = f"{block.id}-{len(messages)}"
                yield ToolStarted(call_id, block.name, dict(block.input))
                result = await get_weather(**block.input)
                yield ToolCompleted(call_id, result)
                results.append({"type": "tool_result", "tool_use_id": block.id, "content": result})
        if not results:
            return
        messages.append({"role": "user", "content": results})
