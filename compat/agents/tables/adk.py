"""Agents of Google ADK."""

from __future__ import annotations

from compat.agents.public_agent import PublicAgent, inner

ADK = {
    "quickstart": PublicAgent(
        "quickstart: two tools, one of them synchronous",
        {"quickstart": [
            [("get_weather", {"city": "Rome"}), ("get_time", {"city": "Rome"})], "It is warm.",
        ]},
        "It is warm.",
    ),
    "dice": PublicAgent(
        "the state of the session in a tool and an instruction",
        {"dice": [[("roll", {"sides": 6})], "You rolled."]}, "You rolled.",
    ),
    "team": PublicAgent(
        "a team: `sub_agents`",
        {
            "team": [
                [("get_weather", {"city": "Rome"})],
                [("transfer_to_agent", {"agent_name": "greeting"})],
            ],
            "team/greeting": ["Hello there."],
        },
        "Hello there.",
        inner=inner("team/greeting"),
    ),
    "pipeline": PublicAgent(
        "`SequentialAgent` with `output_key`",
        {"pipeline/code": ["print(1)"], "pipeline/review": ["It is fine."]},
        "print(1)\n\nIt is fine.",
    ),
    "research": PublicAgent(
        "`ParallelAgent`, then an agent that merges",
        {
            "research/sun": ["sunny"], "research/wind": ["sunny"],
            "research/merge": ["Both agree."],
        },
        "sunny\n\nsunny\n\nBoth agree.",
    ),
    "drafting": PublicAgent(
        "`LoopAgent` with `exit_loop`",
        {
            "drafting/write": ["A draft.", "A better draft."],
            "drafting/check": ["Make it better.", [("exit_loop", {})]],
        },
        "A draft.\n\nMake it better.\n\nA better draft.",
    ),
    "travel": PublicAgent(
        "`AgentTool`",
        {
            "travel": [
                [("get_weather", {"city": "Rome"})], [("search", {"request": "hotels"})],
                "There is one.",
            ],
            "travel/search": [[("get_time", {"city": "Rome"})], "One hotel."],
        },
        "There is one.",
        inner=inner("travel/search"),
    ),
    "expenses": PublicAgent(
        "a tool that a person approves",
        {"expenses": [[("reimburse", {"purpose": "taxi", "amount": 20})], "It is paid."]},
        "It is paid.",
        decision={"decision": "approve"},
    ),
    "capital": PublicAgent(
        "`output_schema`", {"capital": ['{"name": "Rome", "population": 3}']},
        '{"name": "Rome", "population": 3}', output={"name": "Rome", "population": 3},
    ),
    "looking": PublicAgent(
        "a picture in the message", {"looking": ["It is grey."]}, "It is grey.", file="picture",
    ),
    "guarded": PublicAgent(
        "an `App` whose agent has callbacks",
        {"guarded": [
            [("get_weather", {"city": "Atlantis"})], [("get_weather", {"city": "Rome"})],
            "It is warm.",
        ]},
        "It is warm.",
    ),
}  # fmt: skip
