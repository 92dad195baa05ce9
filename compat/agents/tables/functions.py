"""Functions with the SDKs of providers."""

from __future__ import annotations

from compat.agents.public_agent import PublicAgent, inner

FUNCTIONS = {
    "completion": PublicAgent(
        "`openai`: one call", {"completion": ["Hello there."]}, "Hello there.",
        failure="AGENT_FAILED", traced=False,
    ),
    "synchronous": PublicAgent(
        "`openai`: a synchronous function", {"synchronous": ["Hello there."]}, "Hello there.",
        failure="AGENT_FAILED", traced=False,
    ),
    "streaming": PublicAgent(
        "`openai`: a stream", {"streaming": ["Hello there again."]}, "Hello there again.",
        failure="AGENT_FAILED", traced=False,
    ),
    "loop": PublicAgent(
        "`openai`: a loop of tool calls",
        {"loop": [
            [("get_weather", {"city": "Rome"}), ("get_time", {"city": "Rome"})], "Warm at noon.",
        ]},
        "Warm at noon.",
        limits={"history": "its code sends texts of the history only"},
        failure="AGENT_FAILED", traced=False,
    ),
    "claude": PublicAgent(
        "`anthropic`: a stream of messages", {"claude": ["I am Claude, a stub."]},
        "I am Claude, a stub.", failure="AGENT_FAILED", traced=False,
    ),
    "raw": PublicAgent(
        "`httpx`: a POST without an SDK", {"raw": ["Plain text."]}, "Plain text.",
        failure="AGENT_FAILED", traced=False,
    ),
    "voting": PublicAgent(
        "three calls at once with `asyncio.gather`",
        {"voting/a": ["yes"], "voting/b": ["no"], "voting/c": ["yes"]}, "yes",
        output={"votes": ["yes", "no", "yes"]},
        inner=inner("voting/a", "voting/b", "voting/c"),
        failure="AGENT_FAILED", traced=False,
    ),
    "queue": PublicAgent(
        "a task that fills a queue", {"queue": ["One two three."]}, "One two three.",
        failure="AGENT_FAILED", traced=False,
    ),
    "responses": PublicAgent(
        "`openai`: a stream of the Responses API", {"responses": ["Hello there."]}, "Hello there.",
        failure="AGENT_FAILED", traced=False,
    ),
    "parsed": PublicAgent(
        "`openai`: an answer as an object", {"parsed": ['{"dish": "soup", "minutes": 5}']},
        '{"dish":"soup","minutes":5}', output={"dish": "soup", "minutes": 5},
        failure="AGENT_FAILED", traced=False,
    ),
    "looking": PublicAgent(
        "`openai`: a picture in the message", {"looking": ["It is grey."]}, "It is grey.",
        file="picture", failure="AGENT_FAILED", traced=False,
    ),
    "claude_tools": PublicAgent(
        "`anthropic`: a loop of tool calls",
        {"claude_tools": [[("get_weather", {"city": "Rome"})], "It is warm."]}, "It is warm.",
        limits={"history": "its code sends texts of the history only"},
        failure="AGENT_FAILED", traced=False,
    ),
}  # fmt: skip
