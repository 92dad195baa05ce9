"""Graphs of LangGraph with own states, outputs, functions and stores."""

from __future__ import annotations

from compat.agents.public_agent import STREAMED, PublicAgent, inner

LANGGRAPH_SHAPES = {
    "chain": PublicAgent(
        "workflows: prompt chaining, a state without messages",
        {"chain": ["A flat joke", "A better joke", "The best joke"]},
        "A flat joke\n\nA better joke\n\nThe best joke",
        body={"message": None, "input": {"topic": "cats"}},
        output={
            "topic": "cats", "joke": "A flat joke", "improved_joke": "A better joke",
            "final_joke": "The best joke",
        },
        conversation=False,
    ),
    "routing": PublicAgent(
        "workflows: routing, synchronous nodes",
        {"routing/router": ['{"step": "poem"}'], "routing/poem": ["Roses are red."]},
        "Roses are red.",
        inner=inner("routing/router"),
        body={"message": None, "input": {"input": "roses"}},
        output={"input": "roses", "decision": "poem", "output": "Roses are red."},
        conversation=False,
    ),
    "schemas": PublicAgent(
        "schemas of input and output, a private state", {"schemas": ["In the evening."]},
        "In the evening.",
        body={"message": None, "input": {"question": "when?"}},
        output={"answer": "In the evening."},
        conversation=False,
    ),
    "trip": PublicAgent(
        "a `TypedDict` with `Required` keys", {"trip": ["Two days in Rome."]},
        "Two days in Rome.",
        body={"message": None, "input": {"city": "Rome"}},
        output={"city": "Rome", "plan": "Two days in Rome."},
        conversation=False,
    ),
    "send": PublicAgent(
        "map-reduce with `Send`, a state without messages",
        {
            "send": ['{"subjects": ["lions", "bears"]}'],
            "send/joke": ["It walks in.", "It walks in."],
            "send/best": ["A bear walks in."],
        },
        "It walks in.\n\nIt walks in.\n\nA bear walks in.",
        inner=inner("send"),
        body={"message": None, "input": {"topic": "animals"}},
        output={
            "topic": "animals", "subjects": ["lions", "bears"],
            "jokes": ["It walks in.", "It walks in."], "best_joke": "A bear walks in.",
        },
        conversation=False,
    ),
    "planning": PublicAgent(
        "plan and execute",
        {
            "planning": ['{"steps": ["look", "answer"]}'],
            "planning/executor": [[("look_up", {"query": "Rome"})], "Rome is old."],
            "planning/replan": [[("Act", {"action": {"response": "It is old."}})]],
        },
        '{"input":"How old is Rome?","plan":["look","answer"],'
        '"past_steps":[["look","Rome is old."]],"response":"It is old."}',
        inner=inner("planning", "planning/executor", "planning/replan"),
        body={"message": None, "input": {"input": "How old is Rome?"}},
        output={
            "input": "How old is Rome?", "plan": ["look", "answer"],
            "past_steps": [["look", "Rome is old."]], "response": "It is old.",
        },
        limits={"stream": STREAMED},
        conversation=False,
    ),
    "corrective": PublicAgent(
        "corrective RAG: grades, another query, a search",
        {
            "corrective/grade": ['{"binary_score": "yes"}', '{"binary_score": "no"}'],
            "corrective/rewrite": ["What do agents do?"],
            "corrective": ["They plan."],
        },
        "What do agents do?\n\nThey plan.",
        inner=inner("corrective/grade"),
        body={"message": None, "input": {"question": "agents?"}},
        output={
            "question": "What do agents do?", "generation": "They plan.", "web_search": "Yes",
            "documents": ["Agents plan.", "facts about What do agents do?"],
        },
        conversation=False,
    ),
    "agentic": PublicAgent(
        "agentic RAG: a retriever tool, a grade, another question",
        {
            "agentic": [
                [("retrieve_posts", {"query": "agents"})], [("retrieve_posts", {"query": "plans"})],
            ],
            "agentic/grade": ['{"binary_score": "no"}', '{"binary_score": "yes"}'],
            "agentic/rewrite": ["What do agents plan?"],
            "agentic/answer": ["They plan steps."],
        },
        "They plan steps.",
        inner=inner("agentic/grade", "agentic/rewrite"),
        limits={"stream": STREAMED},
    ),
    "essay": PublicAgent(
        "functional API: `@entrypoint` and `@task`", {"essay": ["Cats are cats."]},
        "Cats are cats.",
        body={"message": None, "input": {"topic": "cats"}},
        output={"essay": "Cats are cats.", "score": 14},
        conversation=False,
    ),
    "functional": PublicAgent(
        "functional API: an agent with tools, synchronous",
        {"functional": [[("multiply", {"a": 3, "b": 4})], "It is 12."]}, "It is 12.",
    ),
    "profile": PublicAgent(
        "long-term memory: the store of the server", {"profile": ["I know you."]}, "I know you.",
    ),
    "configured": PublicAgent(
        "a model of `context_schema`, set by the request", {"configured/large": ["I am large."]},
        "I am large.",
        config='configurable = ["provider"]',
        body={"input": {"configurable": {"provider": "configured/large"}}},
    ),
    "looking": PublicAgent(
        "a picture in the message", {"looking": ["It is grey."]}, "It is grey.", file="picture",
    ),
    "back": PublicAgent(
        "multi-agent: handoffs there and back",
        {
            "back/flights": [
                [("ask_hotels_advisor", {})], [("look_up", {"query": "flights"})], "Fly at noon.",
            ],
            "back/hotels": [[("ask_flights_advisor", {})]],
        },
        "Fly at noon.",
        inner=inner("back/flights", "back/hotels"),
    ),
    "transformed": PublicAgent(
        "a subgraph with another state, called in a node", {"inner/summary": ["short news"]},
        '{"report":"long news","headline":"SHORT NEWS"}',
        inner=inner("inner/summary"),
        body={"message": None, "input": {"report": "long news"}},
        output={"report": "long news", "headline": "SHORT NEWS"},
        limits={"stream": STREAMED},
        conversation=False,
    ),
    "reviewed": PublicAgent(
        "human in the loop: `interrupt` in a tool",
        {"reviewed": [[("book_hotel", {"hotel": "Ritz"})], "The Ritz is booked."]},
        "The Ritz is booked.",
        decision={"decision": "answer", "answer": "accept"},
    ),
    "unsteady": PublicAgent(
        "a node with `RetryPolicy`", {"unsteady": ["Here at last."]}, "Here at last.",
    ),
    "fallback": PublicAgent(
        "`with_fallbacks` after a failed model call",
        {"fallback/first": [500], "fallback": ["I take over."]}, "I take over.",
        inner=inner("fallback/first"),
        failure="MODEL_UNAVAILABLE",  # the library raises the first failure
    ),
    "personal": PublicAgent(
        "an asynchronous factory of a graph", {"personal": ["Hello, ann."]}, "Hello, ann.",
    ),
}  # fmt: skip
