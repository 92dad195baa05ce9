"""Runs with calls of MCP tools leave no task, descriptor or child process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit.model import ModelEndpoint
from tests.mcp.lifecycle import measure

RUNS = 1_000 if os.environ.get("AGENTCTL_TEST_LONG") else 40


@pytest.mark.parametrize("kill", [False, True], ids=["normal", "killed program"])
async def test_nothing_is_left_of_runs(
    tmp_path: Path, model_endpoint: ModelEndpoint, kill: bool
) -> None:
    counts = await measure(tmp_path, model_endpoint, RUNS, kill=kill)
    assert (counts.completed, counts.cancelled) == (RUNS // 2, RUNS // 2)
    assert (counts.tasks, counts.descriptors, counts.children) == (0, 0, 0)
    assert counts.connections == (2 if kill else 1)
