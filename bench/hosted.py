"""Streamed tokens of hosted agents: the CPU time of the server for each.

    python -m bench.hosted [ROUNDS [LIBRARY ...]]

An agent of each library streams with the client of OpenAI that the library has, and with a model of
the configuration (docs/models.md "Models in code"). An agent of the configuration and a
pass-through, to which the ratios are, are measured in the same rounds.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.seeding import seed_database
from bench.servers import serve_agentctl, serve_endpoint, serve_floors
from bench.streams import raise_file_limit
from bench.tokens import FAST, FLOOR, PACED, Side, build_completion, build_run_side, measure_sides
from bench.work import create_work, sized_sessions

LIBRARIES = ("langgraph", "pydantic_ai", "agno", "openai_agents")
CLIENTS = ("own", "configured")
LOADS = (PACED, FAST)


def measure_hosted(folder: Path, model_url: str, rounds: int, libraries: Sequence[str]) -> None:
    """Print the CPU time of a token in µs, medians of the rounds."""
    raise_file_limit()
    sides: dict[str, Side] = {}
    with ExitStack() as stack:
        for name in ("configuration", *libraries):
            work = create_work(folder / name, model_url, sized_sessions((1,)))
            if name != "configuration":
                add_agents(work.folder, name, model_url)
            seed_database(work)
            place = stack.enter_context(serve_agentctl(work))
            if name == "configuration":
                sides[name] = build_run_side(place)
                continue
            for client in CLIENTS:
                sides[f"{name}, {client}"] = build_run_side(place, client)
        floor = stack.enter_context(serve_floors(work))
        sides[FLOOR] = Side(floor, partial(build_completion, floor, "/stream", "paced"), b"[DONE]")
        for load in LOADS:
            found = measure_sides(sides, load, rounds)
            for name, values in found.items():
                pairs = zip(values, found[FLOOR], strict=True)
                ratio = statistics.median(each / base for each, base in pairs)
                shown = f"{statistics.median(values):.0f} us | {ratio:.2f}"
                print(f"{load.title} | {name} | {shown}", flush=True)


def add_agents(
    folder: Path, library: str, model_url: str, clients: Sequence[str] = CLIENTS
) -> None:
    """Add the agents of a library to the configuration, and their module to its folder."""
    with (folder / "agentctl.toml").open("a") as file:
        for client in clients:
            target = f"hosted_agents:{library}_{client}"
            file.write(f'\n[[agents]]\nid = "{client}"\nobject = "{target}"\n')
    shutil.copy(Path(__file__).with_name("hosted_agents.py"), folder)
    (folder / "model_url").write_text(model_url)


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith("AGENTCTL_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as directory, serve_endpoint() as url:
        measure_hosted(
            Path(directory),
            f"{url}/v1",
            int(sys.argv[1]) if sys.argv[1:] else 3,
            sys.argv[2:] or LIBRARIES,
        )
