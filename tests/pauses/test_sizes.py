"""Results that are larger than the state of a run may be, of runs that wait."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator

import pytest

from tests.kit.model import ModelEndpoint
from tests.pauses.graphs import build_tool_calls
from tests.pauses.waiting import WaitingServer, create_waiting_deployment
from tests.server.files_of_runs import build_png


@pytest.fixture(scope="module")
def limited(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[WaitingServer]:
    """A server whose runs may have 200,000 bytes."""
    folder = tmp_path_factory.mktemp("limited")
    limits = "[limits]\nrun_bytes = 200_000"
    deployment = create_waiting_deployment(folder, model_endpoint.base_url, limits)
    with deployment.serve_in_thread() as server:
        yield server


@pytest.mark.parametrize("form", ["calls", "kept_calls"])
def test_bytes_of_files_in_kept_results_do_not_count(limited: WaitingServer, form: str) -> None:
    """The file is too large for the state of a run, which refers to it."""
    picture = build_png() + random.Random(1).randbytes(120_000)
    file_id = limited.upload("dot.png", picture)
    run = limited.start(form, build_tool_calls("show", "confirm"), files=[file_id])
    assert run["status"] == "PAUSED", run

    limited.decide(run, "answer", answer="yes")
    run = limited.wait_for_end(run)
    assert run["status"] == "COMPLETED", run
    artifact = f"artifact {hashlib.sha256(picture).hexdigest()}"
    assert limited.deployment.ledger(run) == ["show", artifact]


@pytest.mark.parametrize("form", ["batched", "agno_payer", "openai_payer"])
def test_approved_call_is_done_although_its_result_is_too_large(
    limited: WaitingServer, form: str
) -> None:
    run = limited.start(form, json.dumps({"amount": 10, "to": "everyone"}))
    assert run["status"] == "PAUSED", run
    limited.decide(run, "approve")
    ended = limited.wait_for_end(run)
    assert ended["error"]["detail"] == "The run exceeded its maximum size"
    (approval,) = limited.list_approvals(run)
    assert approval["execution"] == "done"
    (call,) = ended["tools"]
    assert call["result"].startswith("paid 10 to all of them")
    assert len(limited.deployment.ledger(run)) == 1
