"""Agents of langchain's `create_agent`."""

from __future__ import annotations

from compat.agents.public_agent import PublicAgent, inner

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
        output={"todos": [{"content": "search", "status": "pending"}]},
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
    "falling": PublicAgent(
        "middleware: another model after a failure",
        {"falling/first": [500], "falling": ["I take over."]}, "I take over.",
        inner=inner("falling/first"),
    ),
    "warranty": PublicAgent(
        "customer support: steps in a separate state",
        {"warranty": [
            [("record_warranty", {"status": "valid"})],
            [("give_solution", {"solution": "repair"})], "We repair it.",
        ]},
        "We repair it.",
        output={"warranty": "valid"},
    ),
    "stored": PublicAgent(
        "long-term memory: the store in tools, `stream_writer`",
        {"stored": [
            [("save_user_info", {"name": "Ann"})], [("get_user_info", {})], "You are Ann.",
        ]},
        "You are Ann.",
    ),
    "addressed": PublicAgent(
        "`context_schema` and a dynamic prompt",
        {"addressed": [[("weather", {"city": "Rome"})], "John, it is warm."]},
        "John, it is warm.",
    ),
    "selecting": PublicAgent(
        "middleware: another model for long conversations",
        {"selecting": [[("search", {"query": "plans"})]], "selecting/strong": ["All found."]},
        "All found.",
    ),
    "careful": PublicAgent(
        "middleware: errors of tools as messages",
        {"careful": [
            [("divide", {"a": 1, "b": 0})], [("divide", {"a": 4, "b": 2})], "It is 2.",
        ]},
        "It is 2.",
    ),
    "redacting": PublicAgent(
        "middleware: personal data is removed",
        {"redacting": [[("search", {"query": "mails"})], "No mails."]}, "No mails.",
    ),
    "direct": PublicAgent(
        "a tool with `return_direct`", {"direct": [[("quote", {"topic": "tea"})]]}, "",
    ),
    "sql_agent": PublicAgent(
        "SQL agent: a person approves the query",
        {"sql_agent": [
            [("sql_db_list_tables", {})],
            [("sql_db_query", {"query": "SELECT tracks FROM genres"})], "Rock has 12 tracks.",
        ]},
        "Rock has 12 tracks.",
        decision={"decision": "approve"},
    ),
    "reader": PublicAgent(
        "a PDF in the message", {"reader": ["It is empty."]}, "It is empty.", file="document",
    ),
}  # fmt: skip
