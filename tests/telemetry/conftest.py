"""A real collector, a real database, and models on the stub endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.telemetry.receiver import Collector, run_collector


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Run a collector to which spans are sent soon."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with run_collector() as running:
        yield running


@pytest.fixture(scope="module")
def kept_collector() -> Iterator[Collector]:
    """Run a collector for all tests of a module."""
    with run_collector() as running:
        yield running


@pytest.fixture
def deployment(tmp_path: Path, model_endpoint: ModelEndpoint, collector: Collector) -> Deployment:
    return build_deployment(tmp_path, model_endpoint, collector)


def build_deployment(
    folder: Path, endpoint: ModelEndpoint, collector: Collector, *, more: str = "", extra: str = ""
) -> Deployment:
    """Write a configuration with traces for a collector.

    Args:
        more: further keys of `[tracing]`.
        extra: TOML to append.
    """
    tracing = f'[tracing]\nenabled = true\nendpoint = "{collector.url}"\n{more}\n'
    world = folder / "world"
    world.mkdir()
    return create_deployment(world, endpoint.base_url, extra=f"{tracing}\n{extra}")
