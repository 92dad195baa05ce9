"""The programs that agentctl is compared with, each in a separate environment.

`make bench` creates the environment `.bench/NAME` from `NAME-requirements.txt`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.servers import ROOT, RunningServer, run_program
from bench.work import Work
from tests.kit.ports import find_free_port
from tests.kit.process import base_environment

FOLDER = Path(__file__).parent


class Peer(NamedTuple):
    """A program of the environment with this name; its version is that of a package."""

    environment: str
    name: str
    package: str

    @property
    def title(self) -> str:
        text = (FOLDER / f"{self.environment}-requirements.txt").read_text()
        found = re.search(rf"^{self.package}==(.+)$", text, re.MULTILINE)
        assert found is not None, self.package
        return f"{self.name} {found[1]}"

    @property
    def is_installed(self) -> bool:
        return self.find_program("python").exists()

    def find_program(self, name: str) -> Path:
        return ROOT / ".bench" / self.environment / "bin" / name


AGENTOS = Peer("agentos", "AgentOS", "agno")
LANGGRAPH = Peer("langgraph", "langgraph dev", "langgraph-api")
LITELLM = Peer("litellm", "LiteLLM", "litellm")


@contextmanager
def serve_agentos(work: Work, release: Peer) -> Iterator[RunningServer]:
    """Run AgentOS on the same work; its database must have been seeded."""
    port = find_free_port()
    with run_program(work, port, *_agentos_command(work, release, "serve", port)) as process_id:
        yield RunningServer(port, process_id, work)


def seed_agentos(work: Work, release: Peer) -> None:
    """Fill the database of AgentOS through its own classes."""
    done = subprocess.run(
        _agentos_command(work, release, "seed", 0),
        cwd=work.folder,
        env=base_environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        raise RuntimeError(f"AgentOS could not be seeded: {done.stderr[-2_000:]}")


def _agentos_command(work: Work, release: Peer, act: str, port: int) -> list[str]:
    place = work.folder / release.environment
    place.mkdir(exist_ok=True)
    described = work.described(port) | {"database": str(place / "agentos.db")}
    (place / "work.json").write_text(json.dumps(described))
    program = str(FOLDER / "agentos_server.py")
    return [str(release.find_program("python")), program, act, str(place / "work.json")]


GRAPH = """
from hosted_agents import langgraph_own

graph = langgraph_own()
"""


@contextmanager
def serve_langgraph(work: Work) -> Iterator[RunningServer]:
    """Run `langgraph dev` with the graph of `hosted_agents`: in memory, without authorization."""
    place = work.folder / "langgraph-dev"  # not importable: LangGraph is a namespace package
    place.mkdir(exist_ok=True)
    shutil.copy(FOLDER / "hosted_agents.py", place)
    (place / "model_url").write_text(work.model_url)
    (place / "graph.py").write_text(GRAPH)
    graphs = {"agent": "./graph.py:graph"}
    (place / "langgraph.json").write_text(json.dumps({"dependencies": ["."], "graphs": graphs}))
    port = find_free_port()
    command = (
        str(LANGGRAPH.find_program("langgraph")),
        "dev",
        "--no-browser",
        "--no-reload",
        "--port",
        str(port),
        "--n-jobs-per-worker",
        "50",
        "--server-log-level",
        "WARNING",
    )
    variables = {"LANGGRAPH_CLI_NO_ANALYTICS": "1", "HOME": str(place)}
    with run_program(work, port, *command, folder=place, environment=variables) as process_id:
        yield RunningServer(port, process_id, work, health="/ok")


@contextmanager
def serve_litellm(work: Work) -> Iterator[RunningServer]:
    """Run the proxy of LiteLLM with one model and a master key, without a database."""
    place = work.folder / "litellm"
    place.mkdir(exist_ok=True)
    parameters = {"model": "openai/paced", "api_base": work.model_url, "api_key": "none"}
    models = [{"model_name": "paced", "litellm_params": parameters}]
    (place / "config.yaml").write_text(json.dumps({"model_list": models}))
    logs = {"version": 1, "loggers": {"uvicorn.access": {"level": "WARNING"}}}
    (place / "logs.json").write_text(json.dumps(logs))
    port = find_free_port()
    key = "sk-benchmark"
    command = (
        str(LITELLM.find_program("litellm")),
        "--config",
        "config.yaml",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--log_config",
        "logs.json",
    )
    variables = {
        "LITELLM_MASTER_KEY": key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HOME": str(place),
    }
    with run_program(work, port, *command, folder=place, environment=variables) as process_id:
        yield RunningServer(port, process_id, work, key=key, health="/health/liveliness")
