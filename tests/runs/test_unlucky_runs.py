"""No run is lost, and no effect is made twice, when a call of the database fails.

For each kind of agent, each call of a run fails once: before the database has it, while it works on
it, and after it has committed it. Then the run has gone on. While the database is away for longer,
a cancel ends the run at once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.model import ModelEndpoint
from tests.runs.unlucky_runs import KINDS, Search, UnluckyRuns, is_of_library, quick_retries

__all__ = ["quick_retries"]

SAMPLE_STEP = 73
"""Of that many calls, a sample lets one fail; the calls differ between the kinds."""

QUICK_KINDS = ("configured", "team-durable", "function-durable")
"""The kinds of the sample in `check`: with and without journal, members and code."""

OWN_KINDS = tuple(kind for kind in KINDS if kind not in QUICK_KINDS and not is_of_library(kind))

LIBRARY_KINDS = tuple(filter(is_of_library, KINDS))


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("kind", KINDS)
async def test_run_goes_on_after_any_call_that_fails(
    quick_retries: None, tmp_path: Path, model_endpoint: ModelEndpoint, kind: str, streamed: bool
) -> None:
    async with UnluckyRuns.open(tmp_path, model_endpoint.base_url, kind) as unlucky:
        search = Search(unlucky, kind, streamed=streamed)
        await search.run()

    assert not search.problems
    # Each kind makes more calls than that.
    assert search.runs > 60


async def fail_some_calls(folder: Path, model_url: str, kind: str) -> None:
    """Let some calls of a kind fail, other ones than those of the kind before it."""
    index = [*KINDS].index(kind)
    first = 2 * index % SAMPLE_STEP
    async with UnluckyRuns.open(folder, model_url, kind) as unlucky:
        search = Search(unlucky, kind, streamed=index % 2 == 0)
        await search.run(step=SAMPLE_STEP, first=first)

    assert not search.problems
    assert search.runs


@pytest.mark.parametrize("kind", QUICK_KINDS)
async def test_sample_of_the_calls_that_fail(
    quick_retries: None, tmp_path: Path, model_endpoint: ModelEndpoint, kind: str
) -> None:
    await fail_some_calls(tmp_path, model_endpoint.base_url, kind)


@pytest.mark.parametrize("kind", OWN_KINDS)
async def test_sample_of_the_calls_of_further_kinds_that_fail(
    quick_retries: None, tmp_path: Path, model_endpoint: ModelEndpoint, kind: str
) -> None:
    await fail_some_calls(tmp_path, model_endpoint.base_url, kind)


@pytest.mark.parametrize("kind", LIBRARY_KINDS)
async def test_sample_of_the_calls_of_libraries_that_fail(
    quick_retries: None, tmp_path: Path, model_endpoint: ModelEndpoint, kind: str
) -> None:
    await fail_some_calls(tmp_path, model_endpoint.base_url, kind)
