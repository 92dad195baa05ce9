"""Agents of openai-agents."""

from __future__ import annotations

from compat.agents.public_agent import PublicAgent, inner

OPENAI_AGENTS = {
    "hello": PublicAgent("hello world", {"hello": ["Code in the spring."]}, "Code in the spring."),
    "tools": PublicAgent(
        "tools, synchronous and not",
        {"tools": [
            [("get_weather", {"city": "Rome"})], [("add_seat", {"seat": "1A"})], "All is done.",
        ]},
        "All is done.",
    ),
    "calendar": PublicAgent(
        "structured output", {"calendar": ['{"name": "fair", "day": "Monday"}']},
        '{"name": "fair", "day": "Monday"}', output={"name": "fair", "day": "Monday"},
    ),
    "airline": PublicAgent(
        "customer service: handoffs",
        {
            "airline": [[("transfer_to_seats", {})]],
            "airline/seats": [[("add_seat", {"seat": "2B"})], "You sit on 2B."],
        },
        "You sit on 2B.",
        inner=inner("airline/seats"),
    ),
    "translators": PublicAgent(
        "agents as tools",
        {
            "translators": [[("to_spanish", {"input": "hello"})], "In Spanish: hola."],
            "translators/spanish": ["hola"],
        },
        "In Spanish: hola.",
        inner=inner("translators/spanish"),
    ),
    "tutor": PublicAgent(
        "input guardrail with an agent",
        {"tutor/check": ['{"is_homework": true}'], "tutor": ["The answer is 4."]},
        "The answer is 4.",
        inner=inner("tutor/check"),
    ),
    "looking": PublicAgent(
        "a picture in the message", {"looking": ["It is grey."]}, "It is grey.", file="picture",
    ),
    "reader": PublicAgent(
        "a PDF in the message, structured output",
        {"reader": ['{"name": "fair", "day": "Monday"}']},
        '{"name": "fair", "day": "Monday"}', output={"name": "fair", "day": "Monday"},
        file="document",
    ),
    "triage": PublicAgent(
        "customer service: handoffs there and back",
        {
            "triage": [[("transfer_to_faq", {})], [("transfer_to_booking", {})]],
            "triage/faq": [[("get_weather", {"city": "Rome"})], [("transfer_to_triage", {})]],
            "triage/booking": ["It is booked."],
        },
        "It is booked.",
        inner=inner("triage/faq", "triage/booking"),
    ),
    "escalating": PublicAgent(
        "a handoff with an input and a filter",
        {
            "escalating": [
                [("get_weather", {"city": "Rome"})], [("transfer_to_manager", {"reason": "rain"})],
            ],
            "escalating/manager": ["I take care."],
        },
        "I take care.",
        inner=inner("escalating/manager"),
    ),
    "guarded": PublicAgent(
        "an output guardrail",
        {"guarded": [[("get_weather", {"city": "Rome"})], "Rome is warm."]}, "Rome is warm.",
    ),
    "mapped": PublicAgent(
        "a guardrail of a tool",
        {"mapped": [
            [("get_map", {"city": "Atlantis"})], [("get_map", {"city": "Rome"})], "Here it is.",
        ]},
        "Here it is.",
    ),
    "forced": PublicAgent(
        "`stop_on_first_tool`", {"forced": [[("get_weather", {"city": "Rome"})]]},
        "22 degrees in Rome",
    ),
    "dynamic": PublicAgent(
        "instructions of the run", {"dynamic": ["Hello, ann."]}, "Hello, ann.",
    ),
    "approving": PublicAgent(
        "a tool that a person approves",
        {"approving": [[("cancel_order", {"number": 7})], "It is cancelled."]},
        "It is cancelled.",
        decision={"decision": "approve"},
    ),
    "story": PublicAgent(
        "agents one after the other in a function",
        {
            "story/outline": ["An outline."], "story/check": ['{"is_homework": false}'],
            "story/write": ["A story."],
        },
        "A story.",
        inner=inner("story/outline", "story/check", "story/write"),
        limits={"history": "its code sends no history"},
        failure="AGENT_FAILED", traced=False,
    ),
    "chatty": PublicAgent(
        "a session of the library, in a generator", {"chatty": ["I remember."]}, "I remember.",
        failure="AGENT_FAILED", traced=False,
    ),
}  # fmt: skip
