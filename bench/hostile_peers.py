"""The longest wait of `/health` while a hostile peer of a server works.

    python -m bench.hostile_peers [NAME ...]

A peer is a model endpoint, an MCP program, an agent in code, or a client, and sends as much as it
can (`tests.lab.hostile`). The first row is the same server without a hostile peer. On a machine
with other work the last two columns count: the longest wait without the time in which the event
loop or this program waited for a processor, and the processor time of the server meanwhile. A
thread that waits for a processor while the event loop waits for it adds to the first of them only.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.model import start_endpoint
from tests.kit.process import serve_config
from tests.lab.hostile import endpoint, mcp_program
from tests.lab.hostile.health import Target, Wait, measure_waits
from tests.lab.hostile.worst_inputs import CASES, serve_world

CODE = Path(__file__).parents[1] / "tests" / "lab" / "hostile" / "agents.py"
"""Agents in code. Their module has texts of 300 MB: only the server imports it."""

AGENTS = (
    "long_text", "wide_text", "storable_text", "many_lists", "fitting_lists", "long_leaf",
    "many_pieces", "many_thoughts", "many_calls", "large_arguments", "large_results",
    "many_outputs", "large_state", "much_progress", "from_thread",
)  # fmt: skip

QUIET_SECONDS = 3.0
"""Time of a measurement without a hostile peer, and of a flood without an end."""

TARGET_MILLISECONDS = 100.0

SCALE = 10
"""Size of the data of the worst inputs: as much as lists and searches read."""

Act = Callable[["Target"], None]


def rest(_: Target) -> None:
    """Do nothing."""
    time.sleep(QUIET_SECONDS)


def flood(target: Target) -> None:
    """Let the MCP program of the server begin, and wait."""
    target.run("start")
    time.sleep(QUIET_SECONDS)


def run(agent: str, **fields: object) -> Act:
    """Return an act that runs an agent."""
    return lambda target: target.run(agent, **fields)


def read_session(readers: int) -> Act:
    """Return an act of several readers of a session of 28 MB."""

    def act(target: Target) -> None:
        if not target.get("/sessions/long").startswith(b"HTTP/1.1 200"):
            for _ in range(2):
                target.run("a-storable_text", session_id="long")
        # In other processes: the threads of this one would delay its own requests.
        url = f"{target.server.url}/sessions/long"
        header = f"Authorization: Bearer {target.token}"
        load = ["wrk", f"-c{readers}", "-t1", f"-d{QUIET_SECONDS:g}", "--timeout", "30"]
        subprocess.run([*load, "-H", header, url], check=True, capture_output=True, timeout=60)

    return act


CLIENTS: dict[str, Act] = {
    "client: metadata of many values": lambda target: _refused(
        target, b'{"message":"x","metadata":{"a":[' + b"[]," * 300_000 + b"[]]}}"
    ),
    "client: long session": read_session(1),
    "client: long session, 8 readers": read_session(8),
    "client: long form": lambda target: _refused(
        target, b"message=go&" + b"a=b&" * 250_000, "application/x-www-form-urlencoded"
    ),
    "client: escaped text": lambda target: _refused(
        target, b'{"message":"' + b"\\u00e9" * 170_000 + b'"}'
    ),
    "client: many names": lambda target: _refused(
        target, json.dumps({f"n{number}": 0 for number in range(80_000)}).encode()
    ),
    "client: deep": lambda target: _refused(target, b"[" * 500_000 + b"]" * 500_000),
    "client: output schema": lambda target: _refused(
        target,
        json.dumps(
            {"message": "x", "output_schema": {"type": "object", "allOf": [{}] * 200_000}}
        ).encode(),
    ),
}


def _refused(target: Target, body: bytes, kind: str = "application/json") -> None:
    target.send("/agents/echo/runs", body, kind)


def list_acts() -> dict[str, Act]:
    """Return the acts that share one server."""
    acts: dict[str, Act] = {"none": rest}
    acts |= {f"endpoint: {name}": run(f"m-{name}") for name in endpoint.SCRIPTS if name != "echo"}
    acts |= {f"agent: {name}": run(f"a-{name}") for name in AGENTS}
    recorded = ("storable_text", "many_pieces", "fitting_lists", "many_calls")
    acts |= {f"agent, streamed: {name}": run(f"a-{name}", stream=True) for name in recorded}
    return acts | CLIENTS


def build_config(url: str) -> str:
    """Return an agent for each answer of the endpoint, and for each agent in code."""
    models = "".join(_build_agent(f"m-{name}", name, url) for name in endpoint.SCRIPTS)
    hosted = "".join(
        f'[[agents]]\nid = "a-{name}"\nobject = "hostile_agents:{name}"\n' for name in AGENTS
    )
    return "[runs]\ntimeout_seconds = 60\n" + models + hosted


def build_mcp_config(behaviour: str, url: str) -> str:
    """Return an agent that calls the tool of an MCP program."""
    model = f"call:{behaviour.replace('-', '_')}_start"
    return (
        _build_agent("start", model, url, f'tools = ["mcp:{behaviour}.start"]\n')
        + f'[[mcp_servers]]\nid = "{behaviour}"\ncommand = "{sys.executable}"\n'
        + f'args = ["{mcp_program.__file__}", "{behaviour}"]\ncall_seconds = 20\n'
    )


def _build_agent(name: str, model: str, url: str, tools: str = "") -> str:
    return (
        f'[[models]]\nid = "{name}"\nprovider = "openai"\nmodel = "{model}"\nretries = 0\n'
        f'base_url = "{url}"\n[[agents]]\nid = "{name}"\nmodel = "{name}"\n{tools}'
    )


@contextmanager
def serve(folder: Path, url: str, extra: str) -> Iterator[Target]:
    """Start a server in an empty folder."""
    folder.mkdir()
    shutil.copy(CODE, folder / "hostile_agents.py")
    deployment: Deployment = create_deployment(folder, url, extra=extra)
    with serve_config(deployment.path) as server:
        yield Target(server, deployment.token("hostile", ADMIN, seconds=3_600))


def measure_all(folder: Path, names: list[str]) -> Iterator[tuple[str, list[Wait]]]:
    """Yield the waits of each peer whose name contains one of `names`, or of all."""

    def is_wanted(name: str) -> bool:
        return not names or any(part in name for part in names)

    with ExitStack() as stack:
        model = start_endpoint("tests.lab.hostile.endpoint")
        stack.callback(model.stop)
        url = model.base_url
        with serve(folder / "shared", url, build_config(url)) as target:
            target.run("m-echo")
            for name, act in list_acts().items():
                if is_wanted(name):
                    yield name, measure_waits(target, lambda act=act: act(target))
    wanted = {name: case for name, case in CASES.items() if is_wanted(f"bound: {name}")}
    if wanted:
        (folder / "worst").mkdir()
        with serve_world(folder / "worst", SCALE) as world:
            for name, case in wanted.items():
                act = lambda case=case: case.act(world)  # noqa: E731
                yield f"bound: {name}", measure_waits(world.target, act)
    with ExitStack() as stack:
        model = start_endpoint("tests.lab.hostile.endpoint")
        stack.callback(model.stop)
        url = model.base_url
        for number, behaviour in enumerate(
            (*mcp_program.FLOODS, *mcp_program.RESULTS, *mcp_program.LISTS)
        ):
            if is_wanted(name := f"mcp: {behaviour}"):
                config = build_mcp_config(behaviour, url)
                with serve(folder / f"mcp-{number}", url, config) as target:
                    yield name, measure_waits(target, lambda target=target: flood(target))


def main(names: list[str]) -> int:
    """Measure and print a line for each peer; return 1 if one is over the target."""
    status = 0
    print(
        f"{'peer':<36}{'requests':>9}{'median ms':>11}{'longest ms':>12}{'without CPU waits':>19}"
        f"{'processor ms':>14}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, waits in measure_all(Path(folder), names):
            median = statistics.median(wait.seconds for wait in waits) * 1000
            longest, quiet, busy = (max(values) * 1000 for values in zip(*waits, strict=True))
            status |= busy > TARGET_MILLISECONDS
            mark = "" if busy <= TARGET_MILLISECONDS else "  over the target"
            line = f"{name:<36}{len(waits):>9}{median:>11.1f}{longest:>12.1f}{quiet:>19.1f}"
            print(f"{line}{busy:>14.1f}{mark}", flush=True)
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
