"""Programs that speak OpenAI's API, unchanged, on the default configuration (docs/openai.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.endpoint import ModelEndpoint
from tests.peers.openai_suite import PROGRAMS, Host, read_results, serve
from tests.peers.openai_table import DECIDED, PAGE, render

EVERY = os.environ.get("AGENTCTL_TEST_PEERS") == "1"

FEW = ["open-webui"]
"""The programs of the normal suite, which need no packages; `make test-peers` runs all."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Iterator[Host]:
    with serve(tmp_path_factory.mktemp("openai-programs"), model_endpoint.base_url) as served:
        yield served


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS if EVERY else FEW)
def test_program_has_the_stored_results(host: Host, program: str) -> None:
    if not PROGRAMS[program].is_installed:
        pytest.skip(f"needs the packages of {program}: make test-peers")
    found, stored = host.run(program), read_results()[program]
    different = {
        operation: (outcome, stored.get(operation, "not stored"))
        for operation, outcome in found.items()
        if outcome.outcome != stored.get(operation)
    }
    assert not different, "if this is intended, run: python -m tests.peers.openai_suite"
    assert list(found) == list(stored)


def test_every_refusal_is_decided() -> None:
    results = read_results()
    assert results.keys() == PROGRAMS.keys()
    refused = {
        name: {operation for operation, outcome in found.items() if outcome == "refused"}
        for name, found in results.items()
    }
    assert {name: found for name, found in refused.items() if found} == {
        name: set(reasons) for name, reasons in DECIDED.items()
    }
    assert {outcome for found in results.values() for outcome in found.values()} <= {
        "right", "due", "refused",
    }  # fmt: skip


def test_table_of_the_page_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == render(text), "run: python -m tests.peers.openai_table"
