"""Killed servers and a failing receiver: every fact arrives, and no other one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit.postgres import running_postgres
from tests.webhooks.soak import list_databases, soak


def test_facts_arrive_from_killed_servers(tmp_path: Path) -> None:
    result = soak(tmp_path, runs=40, servers=2, kills=2)
    assert result.is_right, result
    assert result.runs >= 40
    assert result.requests > result.accepted


@pytest.mark.skipif(
    os.environ.get("AGENTCTL_TEST_LONG") != "1", reason="the long mode: AGENTCTL_TEST_LONG=1"
)
def test_thousand_facts_arrive_from_three_servers(tmp_path: Path) -> None:
    with running_postgres(durable=True) as url:
        result = soak(tmp_path, runs=1_000, servers=3, kills=20, databases=list_databases(url))
    assert result.is_right, result
    assert result.runs >= 1_000
