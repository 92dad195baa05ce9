"""The public agents that the tests run: their shapes, the answers of their models, the results.

The agent `NAME` of a library is the object `NAME` of the module `LIBRARY_agents.py`. Its script has
the answers of its models by role (tests/peers/agents/model_server.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.peers.agents.model_server import Script


@dataclass(frozen=True)
class PublicAgent:
    """An agent, and the expected result of each of its runs.

    Attributes:
        shape: where the shape is from, in the table of the page.
        script: the answers of the models.
        content: the text of the run.
        inner: roles whose answers are not messages of the record: their results go to code.
        hidden: tools whose calls are an output, or are made by the library itself.
        config: lines for the table of the agent in the configuration.
        body: fields of the request next to the message.
        decision: the decision about each approval of the run, if it waits.
        output: the structured output.
        failure: the code of a failed model call, if it is not that of models.
        traced: False if no library reports the model calls.
        conversation: False if its models get no message of the user, only what its code writes.
        limits: cells that are not yes, by case, with the reason in the words of the page.
    """

    shape: str
    script: Script
    content: str
    inner: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset({"final_result"})
    config: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    decision: dict[str, Any] | None = None
    output: Any = None
    failure: str | None = None
    traced: bool = True
    conversation: bool = True
    limits: dict[str, str] = field(default_factory=dict)


STREAMED = "text that a node does not return is streamed, too, and is no content"


def inner(*roles: str) -> frozenset[str]:
    """Return a set of roles."""
    return frozenset(roles)


LANGGRAPH = {
    "chatbot": PublicAgent(
        "quick start: chatbot, a synchronous node", {"chatbot": ["Hello, I am a bot."]},
        "Hello, I am a bot.",
    ),
    "remembering": PublicAgent(
        "quick start: chatbot with a checkpointer", {"chatbot": ["Hello, I am a bot."]},
        "Hello, I am a bot.",
        limits={
            "restart": "its checkpointer is in memory",
            "cancel": "its checkpointer has no text of a cancelled call",
        },
    ),
    "tooled": PublicAgent(
        "quick start: tools and `tools_condition`, not compiled",
        {"tooled": [
            [("weather", {"city": "Rome"}), ("search", {"query": "Rome"})],
            [("weather", {"city": "Oslo"})],
            "Rome is warmer than Oslo.",
        ]},
        "Rome is warmer than Oslo.",
    ),
    "supervisor": PublicAgent(
        "multi-agent: supervisor with a router",
        {
            "boss": ['{"next": "researcher"}', '{"next": "coder"}', '{"next": "FINISH"}'],
            "boss/researcher": [[("search", {"query": "GDP"})], "The GDP is 3."],
            "boss/coder": [[("weather", {"city": "Bonn"})], "I have computed 6."],
        },
        "",
        inner=inner("boss", "boss/researcher", "boss/coder"),
    ),
    "handoff": PublicAgent(
        "multi-agent: network with handoffs",
        {
            "handoff/travel": [[("transfer_to_hotel", {})]],
            "handoff/hotel": [[("search", {"query": "hotels"})], "Stay at the Ritz."],
        },
        "Stay at the Ritz.",
    ),
    "parallel": PublicAgent(
        "workflows: parallelization",
        {
            "parallel/joke": ["A joke of cats"],
            "parallel/poem": ["A poem of cats"],
            "parallel/story": ["A story of cats"],
        },
        "joke: A joke of cats\npoem: A poem of cats\nstory: A story of cats",
        inner=inner("parallel/joke", "parallel/poem", "parallel/story"),
        limits={"stream": STREAMED},
        conversation=False,
    ),
    "fanout": PublicAgent(
        "branching: parallel nodes that both answer",
        {"fanout/left": ["left one two three"], "fanout/right": ["right one two three"]},
        "left one two three\n\nright one two three",
    ),
    "mapreduce": PublicAgent(
        "map-reduce with `Send`",
        {
            "mapreduce": ['{"subjects": ["lions", "bears"]}'],
            "mapreduce/joke": {"lions": ["A lion walks in."], "bears": ["A bear walks in."]},
            "mapreduce/best": ["The best: a bear walks in."],
        },
        "The best: a bear walks in.",
        inner=inner("mapreduce", "mapreduce/joke"),
        limits={"stream": STREAMED},
    ),
    "reflection": PublicAgent(
        "reflection: a writer and a critic",
        {
            "reflection": ["first essay about spring", "second essay about spring"],
            "reflection/critic": ["make it longer"],
        },
        "first essay about spring\n\nsecond essay about spring",
        inner=inner("reflection/critic"),
        limits={"stream": STREAMED},
    ),
    "retrieval": PublicAgent(
        "RAG: retrieve, grade, answer",
        {
            "retrieval/grade": ['{"relevant": true}', '{"relevant": false}'],
            "retrieval": ["It is 384,400 km away."],
        },
        "It is 384,400 km away.",
        inner=inner("retrieval/grade"),
    ),
    "memory": PublicAgent(
        "memory agent with a store",
        {"memory": [[("note", {"fact": "likes tea"})], "I will remember that."]},
        "I will remember that.",
    ),
    "email": PublicAgent(
        "email assistant: triage, tool results as dicts",
        {
            "email/triage": ['{"decision": "respond"}'],
            "email": [[("send_mail", {"to": "bob", "text": "hi"})], "The mail is sent."],
        },
        "The mail is sent.",
        inner=inner("email/triage"),
    ),
    "mail_input": PublicAgent(
        "email assistant with its own input schema", {"mail_input": ["Thank you, Bob."]},
        "Thank you, Bob.",
        body={"input": {"email": {"subject": "hello", "body": "how are you"}}},
        conversation=False,
    ),
    "ask": PublicAgent(
        "human in the loop: `interrupt` in a node", {"ask": ["I propose Tuesday."]},
        "I propose Tuesday.\n\nYou said yes.",
        decision={"decision": "answer", "answer": "yes"},
    ),
    "subgraph": PublicAgent(
        "subgraphs: a compiled graph as a node",
        {"subgraph/outline": ["One, two."], "subgraph": ["A polished text."]},
        "One, two.\n\nA polished text.",
    ),
    "tuples": PublicAgent(
        "messages as tuples, `context_schema`, `get_stream_writer`", {"tuples": ["Good morning"]},
        "Good morning!",
        inner=inner("tuples"),
        limits={"stream": STREAMED},
        conversation=False,
    ),
    "report": PublicAgent(
        "workflows: orchestrator and workers",
        {
            "report": ['{"sections": ["past", "future"]}'],
            "report/writer": {"past": ["The past was good."], "future": ["The future is open."]},
        },
        "The future is open.\n---\nThe past was good.",
        inner=inner("report", "report/writer"),
        limits={"stream": STREAMED},
    ),
    "evaluator": PublicAgent(
        "workflows: evaluator and optimizer",
        {
            "evaluator": ["A dull joke.", "A good joke."],
            "evaluator/grade": [
                '{"good": false, "feedback": "dull"}', '{"good": true, "feedback": ""}',
            ],
        },
        "A dull joke.\n\nA good joke.",
        inner=inner("evaluator/grade"),
        conversation=False,
    ),
}  # fmt: skip

LANGCHAIN = {
    "react": PublicAgent(
        "`create_agent` with tools",
        {"react": [
            [("search", {"query": "Rome"}), ("weather", {"city": "Rome"})], "Rome is warm.",
        ]},
        "Rome is warm.",
    ),
    "contact": PublicAgent(
        "structured output by a tool",
        {"contact": [
            [("search", {"query": "Ann"})], [("Contact", {"name": "Ann", "city": "Rome"})],
        ]},
        '{"name":"Ann","city":"Rome"}',
        output={"name": "Ann", "city": "Rome"},
    ),
    "native_contact": PublicAgent(
        "structured output by the provider",
        {"native_contact": [[("search", {"query": "Ann"})], '{"name": "Ann", "city": "Rome"}']},
        '{"name": "Ann", "city": "Rome"}',
        output={"name": "Ann", "city": "Rome"},
    ),
    "limited": PublicAgent(
        "middleware: dynamic prompt, limit of model calls",
        {"limited": [[("weather", {"city": "Rome"})], [("weather", {"city": "Oslo"})]]},
        "Model call limits exceeded: run limit (2/2)",
    ),
    "todos": PublicAgent(
        "middleware: to-do list",
        {"todos": [
            [("write_todos", {"todos": [{"content": "search", "status": "pending"}]})],
            [("search", {"query": "plans"})],
            "All is done.",
        ]},
        "All is done.",
    ),
    "summarizing": PublicAgent(
        "middleware: summary of long conversations",
        {
            "summarizing": [
                [("weather", {"city": "Rome"})], [("weather", {"city": "Oslo"})],
                [("weather", {"city": "Bonn"})], "Warm.",
            ],
            "summarizing/summary": ["The user asks for weather.", "It went on.", "And on."],
        },
        "Warm.",
        inner=inner("summarizing/summary"),
        limits={"history": "its middleware sends a summary instead of the history"},
    ),
    "retrying": PublicAgent(
        "middleware: repeated tools",
        {"retrying": [[("flaky", {"name": "shop"})], "The shop is there."]},
        "The shop is there.",
    ),
    "approved": PublicAgent(
        "middleware: human in the loop",
        {"approved": [
            [("pay", {"amount": 5, "to": "bob"}), ("weather", {"city": "Rome"})], "Paid 5 to bob.",
        ]},
        "Paid 5 to bob.",
        decision={"decision": "approve"},
    ),
    "delegating": PublicAgent(
        "subagents as tools",
        {
            "delegating": [[("calendar", {"task": "find a day"})], "It is Monday."],
            "delegating/calendar": [[("search", {"query": "days"})], "Monday is free."],
        },
        "It is Monday.",
        inner=inner("delegating/calendar"),
    ),
}  # fmt: skip

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
}  # fmt: skip

AGNO = {
    "basic": PublicAgent(
        "basic agent", {"basic": ["Breaking news from New York."]}, "Breaking news from New York."
    ),
    "finance": PublicAgent(
        "agent with tools",
        {"finance": [
            [("stock_price", {"symbol": "AB"}), ("search_web", {"query": "AB"})], "AB costs 100.",
        ]},
        "AB costs 100.",
    ),
    "movie": PublicAgent(
        "structured output", {"movie": ['{"title": "Up", "genre": "drama"}']},
        '{"title":"Up","genre":"drama"}', output={"title": "Up", "genre": "drama"},
    ),
    "shopping": PublicAgent(
        "session state",
        {"shopping": [[("add_item", {"item": "milk"})], "Milk is on the list."]},
        "Milk is on the list.",
    ),
    "knowing": PublicAgent(
        "agentic RAG: a knowledge retriever",
        {"knowing": [
            [("search_knowledge_base", {"query": "moon"})], "It is 384,400 km away.",
        ]},
        "It is 384,400 km away.",
    ),
    "reading": PublicAgent(
        "RAG: knowledge in the context", {"reading": ["It is far."]}, "It is far."
    ),
    "hooked": PublicAgent(
        "structured output by a parser model",
        {"hooked": ["A drama named Up."], "hooked/parser": ['{"title": "Up", "genre": "drama"}']},
        "A drama named Up.", output={"title": "Up", "genre": "drama"},
        inner=inner("hooked/parser"),
    ),
    "confirming": PublicAgent(
        "confirmation of a tool",
        {"confirming": [
            [("stock_price", {"symbol": "AB"})], [("send_money", {"amount": 5, "to": "bob"})],
            "The money is sent.",
        ]},
        "The money is sent.",
        decision={"decision": "approve"},
    ),
    "coordinate": PublicAgent(
        "team: coordinate",
        {
            "coordinate": [
                [("delegate_task_to_member", {"member_id": "researcher", "task": "search"})],
                [("delegate_task_to_member", {"member_id": "analyst", "task": "price"})],
                "The report is done.",
            ],
            "coordinate/researcher": [[("search_web", {"query": "AB"})], "Three pages."],
            "coordinate/analyst": [[("stock_price", {"symbol": "AB"})], "It costs 100."],
        },
        "The report is done.",
        inner=inner("coordinate/researcher", "coordinate/analyst"),
    ),
    "route": PublicAgent(
        "team: route to one member",
        {
            "route": [[("delegate_task_to_member", {"member_id": "german", "task": "hi"})]],
            "route/german": ["Guten Tag."],
        },
        "Guten Tag.",
        inner=inner("route/german"),
    ),
    "collaborate": PublicAgent(
        "team: all members",
        {
            "collaborate": [[("delegate_task_to_members", {"task": "a poem"})], "A fine poem."],
            "collaborate/poet": ["Roses are red."],
            "collaborate/critic": [[("search_web", {"query": "roses"})], "They are red."],
        },
        "A fine poem.",
        inner=inner("collaborate/poet", "collaborate/critic"),
    ),
    "nested": PublicAgent(
        "team in a team",
        {
            "nested": [
                [("delegate_task_to_member", {"member_id": "desk", "task": "price"})], "Done.",
            ],
            "nested/desk": [
                [("delegate_task_to_member", {"member_id": "clerk", "task": "look"})], "100.",
            ],
            "nested/clerk": [[("stock_price", {"symbol": "AB"})], "AB is at 100."],
        },
        "Done.",
        inner=inner("nested/desk", "nested/clerk"),
    ),
}  # fmt: skip

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
}  # fmt: skip

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
        limits={"tokens": "the tokens of an agent that a guardrail runs are not counted"},
    ),
}  # fmt: skip

PACKAGES = {
    "team_lead": PublicAgent(
        "`langgraph-supervisor` 0.0.31: two agents",
        {
            "team_lead": [
                [("transfer_to_research_expert", {})], [("transfer_to_math_expert", {})],
                "The sum is 3.",
            ],
            "team_lead/research": [[("web_search", {"query": "sums"})], "There are 1 and 2."],
            "team_lead/math": [[("add", {"a": 1, "b": 2})], "It is 3."],
        },
        "There are 1 and 2.\n\nTransferring back to supervisor\n\nIt is 3.\n\n"
        "Transferring back to supervisor\n\nThe sum is 3.",
        inner=inner("team_lead/research", "team_lead/math"),
        hidden=frozenset({"transfer_back_to_supervisor"}),
    ),
    "swarm": PublicAgent(
        "`langgraph-swarm` 0.1.0: two agents",
        {
            "swarm/alice": [[("add", {"a": 1, "b": 2})], [("transfer_to_bob", {})]],
            "swarm/bob": ["Ahoy, it is 3."],
        },
        "Ahoy, it is 3.",
    ),
    "deep": PublicAgent(
        "`deepagents` 0.7.32: to-dos, files, a subagent",
        {
            "deep": [
                [("write_file", {"file_path": "/notes.md", "content": "to search"})],
                [("web_search", {"query": "plans"})],
                [("task", {"description": "criticize", "subagent_type": "critic"})],
                "The report is ready.",
            ],
            "deep/critic": ["It is too short."],
        },
        "The report is ready.",
        inner=inner("deep/critic"),
    ),
    "bank_support": PublicAgent(
        "`pydantic-ai-examples` 2.62: `bank_support`",
        {"bank_support": [
            [("customer_balance", {})],
            [("final_result", {"support_advice": "123.45", "block_card": False, "risk": 1})],
        ]},
        '{"support_advice":"123.45","block_card":false,"risk":1}',
        output={"support_advice": "123.45", "block_card": False, "risk": 1},
        config='deps = "packages_agents:build_bank_support"',
    ),
    "time_range": PublicAgent(
        "`pydantic-ai-examples` 2.62: `evals.agent`",
        {"time_range": [
            [("get_current_time", {})],
            [("final_result_TimeRangeBuilderError", {"error_message": "Which day?"})],
        ]},
        '{"error_message":"Which day?"}',
        output={"error_message": "Which day?"},
        hidden=frozenset(
            {"final_result_TimeRangeBuilderError", "final_result_TimeRangeBuilderSuccess"}
        ),
    ),
}  # fmt: skip

AGENTS: dict[str, dict[str, PublicAgent]] = {
    "langgraph": LANGGRAPH,
    "langchain": LANGCHAIN,
    "pydantic_ai": PYDANTIC_AI,
    "agno": AGNO,
    "openai_agents": OPENAI_AGENTS,
    "functions": FUNCTIONS,
    "packages": PACKAGES,
}
"""Agents by library and name."""

PENDING: dict[tuple[str, str], str] = {}
"""Cells by agent and case (`*`: all) that do not work yet, with the reason: they are skipped."""
