"""Specifications of runs for tests, with default values."""

from __future__ import annotations

from typing import Any

from agentctl.records.run_spec import RunSpec


def a_spec(run_id: str = "r1", session_id: str = "s1", **given: Any) -> RunSpec:
    values: dict[str, Any] = {
        "component_type": "agent",
        "component_id": "echo",
        "user_id": "ann",
        "input": "hello",
        "time_limit": 9.0,
        "tool_timeout": 9.0,
    } | given
    return RunSpec(run_id=run_id, session_id=session_id, **values)
