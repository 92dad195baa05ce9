"""Agents of pydantic-ai."""

from __future__ import annotations

from compat.agents.public_agent import PublicAgent, inner

PYDANTIC_AI = {
    "bank": PublicAgent(
        "bank support: deps, instructions, output type",
        {"bank": [
            [("balance", {"pending": True})],
            [("final_result", {"advice": "Sleep well.", "block_card": False})],
        ]},
        '{"advice":"Sleep well.","block_card":false}',
        output={"advice": "Sleep well.", "block_card": False},
        config='deps = "pydantic_ai_agents:build_bank"',
    ),
    "weather": PublicAgent(
        "weather agent: deps, tools in a row",
        {"weather": [
            [("locate", {"place": "London"})],
            [("forecast", {"latitude": 51.5, "longitude": -0.1})],
            "It is clear in London.",
        ]},
        "It is clear in London.",
    ),
    "whales": PublicAgent(
        "stream whales: a list of typed dicts",
        {"whales": [
            [("final_result", {"response": [
                {"name": "Orca", "length": 7}, {"name": "Blue", "length": 29},
            ]})],
        ]},
        '[{"name":"Orca","length":7.0},{"name":"Blue","length":29.0}]',
        output=[{"name": "Orca", "length": 7}, {"name": "Blue", "length": 29}],
    ),
    "sql": PublicAgent(
        "SQL generation: union of outputs, output validator",
        {"sql": [
            [("final_result_Query", {"sql": "DROP TABLE logs"})],
            [("final_result_Query", {"sql": "SELECT 1"})],
        ]},
        # The draft that the validator rejects stays in the content.
        '{"sql": "DROP TABLE logs"}\n\n{"sql": "SELECT 1"}',
        output={"sql": "SELECT 1"},
        hidden=frozenset({"final_result_Query", "final_result_Invalid"}),
    ),
    "flights": PublicAgent(
        "flight booking: an agent in a tool of another",
        {
            "flights": [
                [("extract", {})], [("final_result_Flight", {"number": "BA123", "price": 90})],
            ],
            "flights/extract": [
                [("final_result", {"response": [{"number": "BA123", "price": 90}]})]
            ],
        },
        '{"number":"BA123","price":90}',
        output={"number": "BA123", "price": 90},
        inner=inner("flights/extract"),
        hidden=frozenset({"final_result", "final_result_Flight", "final_result_NoFlight"}),
    ),
    "roulette": PublicAgent(
        "roulette wheel: a boolean as output",
        {"roulette": [
            [("spin", {"square": 18})], [("final_result", {"response": True})],
        ]},
        "true",
        output=True,
    ),
    "jokes": PublicAgent(
        "delegation: jokes of another agent, a synchronous tool",
        {
            "jokes": [
                [("write_jokes", {"count": 2})],
                [("rate", {"joke": "a"}), ("rate", {"joke": "bb"})],
                "The second joke is better.",
            ],
            "jokes/writer": ["a or bb"],
        },
        "The second joke is better.",
        inner=inner("jokes/writer"),
    ),
    "files": PublicAgent(
        "deferred tools: approval of a call",
        {"files": [
            [("list_files", {})], [("delete_file", {"path": "a.txt"}), ("list_files", {})],
            "The file is deleted.",
        ]},
        "The file is deleted.",
        decision={"decision": "approve"},
    ),
    "shop": PublicAgent(
        "toolset, a tool that asks again, native output",
        {"shop": [
            [("find_article", {"name": "sofa"})], [("find_article", {"name": "chair"})],
            '{"euros": 20}',
        ]},
        '{"euros": 20}',
        output={"euros": 20},
    ),
    "quiz": PublicAgent(
        "agents one after the other in a function",
        {
            "quiz/ask": ["How far is the moon?"],
            "quiz/judge": [[("final_result", {"response": True})]],
        },
        "How far is the moon? right",
        inner=inner("quiz/ask", "quiz/judge"),
        limits={"history": "its code sends no history"},
        failure="AGENT_FAILED", traced=False,
    ),
    "handing": PublicAgent(
        "output functions: one hands over to another agent",
        {
            "handing": [[("final_result_hand_off", {"query": "names"})]],
            "handing/query": [[("final_result", {"query": "SELECT name"})]],
        },
        '[{"name":"Ann"}]',
        output=[{"name": "Ann"}],
        inner=inner("handing/query"),
        hidden=frozenset({"final_result", "final_result_hand_off", "final_result_Invalid"}),
    ),
    "words": PublicAgent(
        "`TextOutput` with a function", {"words": ["one two"]}, "one two", output=["one", "two"],
    ),
    "prompted": PublicAgent(
        "`PromptedOutput`", {"prompted": ['{"name": "Anvil", "kind": "tool"}']},
        '{"name": "Anvil", "kind": "tool"}', output={"name": "Anvil", "kind": "tool"},
    ),
    "falling": PublicAgent(
        "`FallbackModel` after a failed model call",
        {"falling/first": [500], "falling": ["I take over."]}, "I take over.",
        inner=inner("falling/first"),
    ),
    "prepared": PublicAgent(
        "a dynamic toolset, a tool with `prepare`",
        {"prepared": [[("add", {"a": 1, "b": 2})], [("double", {"number": 3})], "It is 6."]},
        "It is 6.",
    ),
    "recent": PublicAgent(
        "a history processor", {"recent": ["Hello again."]}, "Hello again.",
    ),
    "looking": PublicAgent(
        "a picture in the message", {"looking": ["It is grey."]}, "It is grey.", file="picture",
    ),
    "reader": PublicAgent(
        "a PDF in the message, structured output",
        {"reader": [[("final_result", {"advice": "Read it.", "block_card": False})]]},
        '{"advice":"Read it.","block_card":false}',
        output={"advice": "Read it.", "block_card": False},
        file="document",
    ),
    "mail": PublicAgent(
        "`pydantic_graph`: a writer and a critic, in a function",
        {
            "mail/write": ["Dear all", "Dear Ann"],
            "mail/critic": [
                [("final_result", {"response": False})], [("final_result", {"response": True})],
            ],
        },
        "Dear Ann",
        inner=inner("mail/write", "mail/critic"),
        limits={"history": "its code sends no history"},
        failure="AGENT_FAILED", traced=False,
    ),
    "booking": PublicAgent(
        "programmatic hand-off with `run_stream`, in a generator",
        {
            "booking/flight": [[("final_result", {"flight_number": "BA1"})]],
            "booking/seat": ["Seat 2B is free."],
        },
        "Seat 2B is free.",
        inner=inner("booking/flight", "booking/seat"),
        limits={"history": "its code sends no history"},
        failure="AGENT_FAILED", traced=False,
    ),
}  # fmt: skip
