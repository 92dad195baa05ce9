"""Agents of packages, unchanged."""

from __future__ import annotations

from compat.agents.public_agent import STREAMED, PublicAgent, inner

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
        output={"active_agent": "bob"},
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
        output=...,  # its files have the time
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
    "remembering": PublicAgent(
        "`langmem` 0.0.30: memories in the store of the server",
        {"remembering": [
            [("manage_memory", {"content": "likes tea", "action": "create"})],
            [("search_memory", {"query": "tea"})], "You like tea.",
        ]},
        "You like tea.",
    ),
    "reflecting": PublicAgent(
        "`langgraph-reflection` 0.0.1: an agent and its critic",
        {
            "reflecting": [
                [("web_search", {"query": "spring"})], "A first text.", "A second text.",
            ],
            "reflecting/critic": ["make it longer", "good"],
        },
        "A first text.\n\nA second text.",
        inner=inner("reflecting", "reflecting/critic"),
        limits={"stream": STREAMED},
    ),
    "many_tools": PublicAgent(
        "`langgraph-bigtool` 0.0.3: tools that are found first",
        {"many_tools": [
            [("_find_tools", {"query": "sums"})], [("add", {"a": 1, "b": 2})], "It is 3.",
        ]},
        "It is 3.",
    ),
    "triage_agent": PublicAgent(
        "`pydantic-ai-examples` 2.62: `medical_agent_delegation`",
        {
            "triage_agent": [
                [("consult_specialist", {"specialty": "cardiology", "question": "pain"})],
                [("final_result", {"final_status": "resolved_by_specialist"})],
            ],
            "triage_agent/cardiology": [
                [("final_result", {
                    "diagnosis": ["d"], "differential": [], "recommended_tests": [],
                    "immediate_actions": [], "estimated_time_minutes": 5,
                })],
            ],
        },
        '{"final_status":"resolved_by_specialist"}',
        output={
            "specialty": None, "final_report": None, "treatment_plan": None,
            "final_status": "resolved_by_specialist",
        },
        inner=inner("triage_agent/cardiology"),
        config='deps = "packages_agents:build_patient"',
    ),
}  # fmt: skip
