"""No run of an agent of a library is lost when a call of the database fails.

What fails and what must hold is the same as in `test_unlucky_runs.py`.
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

LIBRARY_KINDS = tuple(filter(is_of_library, KINDS))


@pytest.mark.parametrize("kind", LIBRARY_KINDS)
async def test_run_of_a_library_goes_on_after_any_call_that_fails(
    quick_retries: None, tmp_path: Path, model_endpoint: ModelEndpoint, kind: str
) -> None:
    await fail_every_call(tmp_path, model_endpoint.base_url, kind)


@pytest.mark.parametrize("kind", LIBRARY_KINDS)
async def test_sample_of_the_calls_of_a_library_that_fail(
    quick_retries: None, tmp_path: Path, model_endpoint: ModelEndpoint, kind: str
) -> None:
    await fail_some_calls(tmp_path, model_endpoint.base_url, kind)
