"""Configuration for tests with races and kills: components of every kind, most of them quick."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentctl.config.settings import Agent, Database, Model, Settings, Step, Team, Workflow
from agentctl.records.kinds import ComponentKind

__all__ = [
    "COMPONENTS",
    "LONG",
    "QUICK",
    "build_settings",
    "collect_garbage",
    "ignore_never_awaited",
    "pause",
]

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"
"""True to search for as long as needed (CONTRIBUTING.md), instead of some seconds."""

COMPONENTS: tuple[tuple[ComponentKind, str], ...] = (
    ("agent", "quick"),
    ("agent", "slow"),
    ("agent", "hang"),
    ("agent", "tool"),
    ("agent", "sole"),
    ("team", "pair"),
    ("team", "jam"),
    ("workflow", "line"),
    ("workflow", "snag"),
)
"""quick: echoes its message; slow: the same for a minute; hang: never answers; tool: calls
`pause`; sole: quick, with at most one live run in a session; pair: delegates to quick; jam: runs
quick and hang; line: quick, then pair; snag: quick, then hang. Not listed: busy, which is slow and
has at most one live run in a session.
"""

QUICK: tuple[tuple[ComponentKind, str], ...] = (
    ("agent", "quick"),
    ("team", "pair"),
    ("workflow", "line"),
)
"""Components that end without a cancel and need no other process."""


ignore_never_awaited = pytest.mark.filterwarnings(
    "ignore:coroutine .* was never awaited:RuntimeWarning"
)
"""The model library starts tasks with a coroutine object. If such a task is cancelled before its
first step, the coroutine is never awaited.
"""


@pytest.fixture
def collect_garbage() -> Iterator[None]:
    """Collect the garbage of a test before the next one starts, which may be disturbed by it."""
    yield
    gc.collect()


async def pause(seconds: float) -> str:
    """Sleep for some seconds, and stop when cancelled."""
    await asyncio.sleep(seconds)
    return "paused"


def build_settings(database: Path, model_url: str = "http://127.0.0.1:9/v1") -> Settings:
    """Build a configuration with one database.

    Args:
        model_url: the stub endpoint for hang, tool and the components that use them.
    """
    demo = [Model(name, "demo", name) for name in ("echo", "slow", "leader")]
    stubs = [Model("hang", "openai", "hang", model_url)]
    stubs += [Model("tool", "openai", "tool:pause", model_url)]
    return Settings(
        databases=(Database("main", f"sqlite:///{database}"),),
        models=(*demo, *stubs),
        agents=(
            _agent("quick", "echo"),
            _agent("slow", "slow"),
            _agent("hang", "hang"),
            _agent("tool", "tool", tools=("tests.runs.components:pause",)),
            _agent("sole", "echo", on_busy="reject"),
            _agent("busy", "slow", on_busy="reject"),
        ),
        teams=(
            _team("pair", "leader", ("quick", "slow"), mode="coordinate"),
            _team("jam", "echo", ("quick", "hang"), mode="broadcast"),
        ),
        workflows=(
            _workflow("line", Step("first", agent="quick"), Step("second", team="pair")),
            _workflow("snag", Step("first", agent="quick"), Step("second", agent="hang")),
        ),
    )


def _agent(id: str, model: str, **more: object) -> Agent:
    return Agent(id, model, name=id.title(), database="main", **more)  # type: ignore[arg-type]


def _team(id: str, model: str, members: tuple[str, ...], *, mode: str) -> Team:
    name = id.title()
    return Team(id, model, members, name=name, mode=mode, database="main")  # type: ignore[arg-type]


def _workflow(id: str, *steps: Step) -> Workflow:
    return Workflow(id, steps, name=id.title(), database="main")
