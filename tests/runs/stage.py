"""What is hosted where processes race and die: a component of every kind, most of them quick."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentctl.config.settings import Agent, Database, Model, Settings, Step, Team, Workflow
from agentctl.records.kinds import ComponentKind

__all__ = ["COMPONENTS", "LONG", "QUICK", "never_awaited", "pause", "stage", "tidied"]

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"
"""Whether to look for as long as it takes (CONTRIBUTING.md), and not only for some seconds."""

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
"""quick: says what it was told; slow: likewise, for a minute; hang: never answers; tool: calls
`pause`; sole: quick, and alone in its session; pair: delegates to quick; jam: asks quick and hang;
line: quick, then pair; snag: quick, then hang. Besides there is busy: slow, and alone as well.
"""

QUICK: tuple[tuple[ComponentKind, str], ...] = (
    ("agent", "quick"),
    ("team", "pair"),
    ("workflow", "line"),
)
"""Those that end by themselves, and need nothing but this process."""


never_awaited = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
"""The model library starts tasks that hold a coroutine; one that is cancelled before its first step
leaves that coroutine behind.
"""


@pytest.fixture
def tidied() -> Iterator[None]:
    """What a test leaves is collected before the next one begins, which may mind."""
    yield
    gc.collect()


async def pause(seconds: float) -> str:
    """Take that long, and stop when told to."""
    await asyncio.sleep(seconds)
    return "paused"


def stage(database: Path, model_url: str = "http://127.0.0.1:9/v1") -> Settings:
    """A configuration with one database.

    Args:
        model_url: the stub endpoint, for hang, tool and those that ask them.
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
            _agent("tool", "tool", tools=("tests.runs.stage:pause",)),
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
