"""Graphs of LangGraph after its tutorials."""

from __future__ import annotations

from compat.agents.public_agent import STREAMED, PublicAgent, inner

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
        output={"texts": [
            "joke: A joke of cats", "poem: A poem of cats", "story: A story of cats",
        ]},
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
        output={
            "subjects": ["lions", "bears"], "jokes": ["A lion walks in.", "A bear walks in."],
        },
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
        output={"documents": ["The moon is 384,400 km away."]},
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
        output={"email": {"subject": "hello", "body": "how are you"}},
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
        output={
            "sections": ["past", "future"],
            "written": ["The past was good.", "The future is open."],
        },
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
        output={"feedback": "", "good": True},
    ),
}  # fmt: skip
