"""No run is lost, and no effect is made twice, when a call of the database fails.

For each kind of agent, each call of a run fails once: before the database has it, while it works on
it, and after it has committed it. Then the run has gone on. While the database is away for longer,
a cancel ends the run at once. `test_unlucky_libraries.py` has the agents of libraries.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.model import ModelEndpoint
from tests.runs.unlucky_runs import (
    KINDS,
    fail_every_call,
    fail_some_calls,
    is_of_library,
    quick_retries,
)

__all__ = ["quick_retries"]

OWN_KINDS = tuple(kind for kind in KINDS if not is_of_library(kind))

QUICK_KINDS = ("configured", "team-durable", "function-durable")
"""The kinds of the sample in `check`: with and without journal, members and code."""

FURTHER_KINDS = tuple(kind for kind in OWN_KINDS if kind not in QUICK_KINDS)


@pytest.mark.parametrize("kind", OWN_KINDS)
async def test_run_goes_on_after_any_call_that_fails(
    quick_retries: None, tmp_path: Path, model_endpoint: ModelEndpoint, kind: str
) -> None:
    await fail_every_call(tmp_path, model_endpoint.base_url, kind)


@pytest.mark.parametrize("kind", QUICK_KINDS)
async def test_sample_of_the_calls_that_fail(
    quick_retries: None, tmp_path: Path, model_endpoint: ModelEndpoint, kind: str
) -> None:
    await fail_some_calls(tmp_path, model_endpoint.base_url, kind)


@pytest.mark.parametrize("kind", FURTHER_KINDS)
async def test_sample_of_the_calls_of_further_kinds_that_fail(
    quick_retries: None, tmp_path: Path, model_endpoint: ModelEndpoint, kind: str
) -> None:
    await fail_some_calls(tmp_path, model_endpoint.base_url, kind)
