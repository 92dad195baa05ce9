"""The world of failures: a server with components of every kind, and a strict endpoint."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

from tests.kit.environments import find_adk
from tests.lab.world import World, open_world

__all__ = ["IN_CODE", "KINDS", "ROOT", "SERVERS", "find_component", "open_failing_world"]

ROOT = Path(__file__).parents[3]

RUN_SECONDS = 60
TOOL_SECONDS = 20
EXPIRE_SECONDS = 20
"""Time limits of a run, of a tool and of an approval. Only the failures that exceed them wait for
them; all others, and the messages after them, have to end before on a busy machine."""

IN_CODE = (
    "function", "generator", "pydantic-ai", "langgraph", "langgraph-checkpointer", "agno-agent",
    "agno-team", "agno-workflow", "openai-agents", "google-adk",
)  # fmt: skip
"""The kinds of agents in code."""

KINDS = ("configured", "durable", "team", "broadcast", "workflow", *IN_CODE)
"""The kinds of agents: a configured one, one that is durable, a team that coordinates and one that
broadcasts, a workflow of two agents, and those in code."""

SERVERS = (KINDS[:-1], KINDS[-1:])
"""The kinds of each server: Google ADK needs a separate environment."""

_PATHS = {"team": "teams/team", "broadcast": "teams/broadcast", "workflow": "workflows/workflow"}

OUTPUTS = (
    "configured", "durable", "function", "generator", "pydantic-ai", "langgraph", "agno-agent",
    "openai-agents", "google-adk",
)  # fmt: skip
"""The kinds that have an agent with an output schema."""

_TOOLS = ("add", "fail", "fail_late", "give", "wait", "lose_child", "pay")

_SETTINGS = f"""
[runs]
timeout_seconds = {RUN_SECONDS}
tool_timeout_seconds = {TOOL_SECONDS}

[limits]
run_bytes = 4_194_304

[approvals]
expire_seconds = {EXPIRE_SECONDS}

[[mcp_servers]]
id = "program"
command = "{sys.executable}"
args = ["{ROOT / "tests" / "mcp" / "stdio_server.py"}"]
call_seconds = {TOOL_SECONDS}
"""


def find_component(kind: str, variant: str) -> str | None:
    """Return the path of a component; None if the kind does not have the variant."""
    if variant == "output" and kind not in OUTPUTS:
        return None
    path = _PATHS.get(kind, f"agents/{kind}")
    return f"{path}-{variant}" if variant else path


def open_failing_world(
    kinds: Sequence[str] = SERVERS[0], deployment: str = "one on sqlite", **options: Any
) -> AbstractAsyncContextManager[World]:
    """Open a world with components of some kinds.

    Args:
        kinds: the kinds of agents, of one of `SERVERS`; one without those in code starts sooner.
        options: as of `open_world`.
    """
    python, variables = find_adk() if "google-adk" in kinds else (sys.executable, {})
    return open_world(
        deployment,
        config=partial(_format_config, kinds=kinds),
        limits="",
        variables={"FAILURES_MODEL_URL": "{url}", "PYTHONPATH": str(ROOT), **variables},
        python=python,
        endpoint="tests.lab.failures.endpoint",
        **options,
    )


def _format_config(world: World, *, kinds: Sequence[str]) -> str:
    tools = ", ".join(f'"tests.lab.failures.tools:{name}"' for name in _TOOLS)
    lines = f'model = "strict"\ninstructions = "Be brief."\ntools = [{tools}, "mcp:program"]\n'
    lines += 'approve = { "pay" = "user" }\n'
    queue = 'on_busy = "enqueue"'
    tables = [
        _SETTINGS,
        '[[models]]\nid = "strict"\nprovider = "openai"\nmodel = "strict"\nretries = 0\n'
        f'base_url = "{world.endpoint.base_url}"',
    ]
    output = 'output = "tests.lab.failures.tools:Total"'
    for variant, more in {"": "", "-queue": queue, "-output": output}.items():
        for kind in ("configured", "durable"):
            durable = f"{more}\ndurable = true" if kind == "durable" else more
            tables.append(f'[[agents]]\nid = "{kind}{variant}"\n{lines}{durable}')
        for kind in IN_CODE:
            if kind in kinds and (variant != "-output" or kind in OUTPUTS):
                name = kind.replace("-", "_") + variant.replace("-queue", "").replace("-", "_")
                module = "hosted_adk" if kind == "google-adk" else "hosted"
                place = f"tests.lab.failures.{module}:{name}"
                entry = f'[[agents]]\nid = "{kind}{variant}"\nobject = "{place}"'
                tables.append(entry if variant == "-output" else f"{entry}\n{more}")
    for variant, more in {"": "", "-queue": queue}.items() if "team" in kinds else ():
        tables += [
            f'[[teams]]\nid = "team{variant}"\nmode = "coordinate"\n{lines}'
            f'members = ["configured", "function"]\n{more}',
            f'[[teams]]\nid = "broadcast{variant}"\nmode = "broadcast"\nmodel = "strict"\n'
            f'members = ["configured", "pydantic-ai"]\n{more}',
            f'[[workflows]]\nid = "workflow{variant}"\n{more}\nsteps = [{{ name = "first", '
            'agent = "configured" }, { name = "second", agent = "pydantic-ai" }]',
        ]
    return "\n\n".join(tables)
