"""Agents, teams and workflows of agno."""

from __future__ import annotations

from compat.agents.public_agent import PublicAgent, inner

EARLIER = "the steps of a workflow get earlier runs if it asks for them, which it does not"

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
    "looking": PublicAgent(
        "a picture in the message", {"looking": ["It is grey."]}, "It is grey.", file="picture",
    ),
    "reader": PublicAgent(
        "a PDF in the message, structured output",
        {"reader": ['{"title": "Up", "genre": "drama"}']},
        '{"title":"Up","genre":"drama"}', output={"title": "Up", "genre": "drama"},
        file="document",
    ),
    "content": PublicAgent(
        "workflow: a team, then an agent",
        {
            "content/team": [
                [("delegate_task_to_member", {"member_id": "web", "task": "search"})], "Found it.",
            ],
            "content/web": [[("search_web", {"query": "AB"})], "Three pages."],
            "content/planner": ["A plan for a week."],
        },
        "A plan for a week.",
        inner=inner("content/team", "content/web", "content/planner"),
        limits={"history": EARLIER},
    ),
    "measured": PublicAgent(
        "workflow: a function as a step", {"measured/writer": ["abc"]}, "abc (3 letters)",
        inner=inner("measured/writer"),
        limits={"history": EARLIER},
    ),
    "parallel": PublicAgent(
        "workflow: `Parallel`",
        {
            "parallel/news": [[("search_web", {"query": "news"})], "News."],
            "parallel/web": ["Pages."],
            "parallel/writer": ["An article."],
        },
        "An article.",
        inner=inner("parallel/news", "parallel/web", "parallel/writer"),
        limits={"history": EARLIER},
    ),
    "checked": PublicAgent(
        "workflow: `Condition`",
        {
            "checked/writer": ["5 percent of all."],
            "checked/verifier": [[("search_web", {"query": "5"})], "It is true."],
        },
        "It is true.",
        inner=inner("checked/writer", "checked/verifier"),
        limits={"history": EARLIER},
    ),
    "looped": PublicAgent(
        "workflow: `Loop`", {"looped/researcher": ["little", "enough"]}, "enough",
        inner=inner("looped/researcher"),
        limits={"history": EARLIER},
    ),
    "routed": PublicAgent(
        "workflow: `Router`", {"routed/tech": ["Chips."]}, "Chips.", inner=inner("routed/tech"),
        limits={"history": EARLIER},
    ),
    "letter": PublicAgent(
        "input of a person for a tool",
        {"letter": [[("send_letter", {"subject": "tea"})], "The letter is sent."]},
        "The letter is sent.",
        decision={"decision": "answer", "answer": {"to": "bob"}},
    ),
    "hooks": PublicAgent(
        "hooks before the run and around tools",
        {"hooks": [[("stock_price", {"symbol": "AB"})], "AB costs 100."]}, "AB costs 100.",
    ),
    "falling": PublicAgent(
        "another model after a failure",
        {"falling/first": [500], "falling": ["I take over."]}, "I take over.",
        inner=inner("falling/first"),
    ),
    "shop": PublicAgent(
        "a tool that asks again",
        {"shop": [[("order", {"article": "mud"})], [("order", {"article": "tea"})], "Tea comes."]},
        "Tea comes.",
    ),
    "kept": PublicAgent(
        "history in a database of the library", {"kept": ["I keep it."]}, "I keep it.",
        limits={
            "restart": "its database is in memory",
            "cancel": "its database has no text of a cancelled call",
        },
    ),
}  # fmt: skip
