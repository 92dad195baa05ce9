"""A server whose log lines and metrics a test reads."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import orjson
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.kit.conditions import PATIENCE
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.process import ServerProcess, serve_config

__all__ = ["LOG", "MCP_SERVER", "TOOL_FILES", "ObservedServer", "describe_tools", "serve_observed"]

TOOLS = '''
import logging
import time

import agentctl


async def hold(seconds: float) -> str:
    """Hold the whole process up."""
    time.sleep(seconds)
    return "held"


def explode() -> str:
    """Fail."""
    text = "tool-text\\n1999-01-01T00:00:00.000Z ERROR forged: line"
    logging.getLogger("agentctl.tool").warning("%s", text + "\\x1b[2J\\x9b2J\\u202e")
    raise RuntimeError(text + "\\x1b[2J\\x9b2J\\u202e")


@agentctl.tool(approve="user")
def pay() -> str:
    """Wait for an approval."""
    return "paid"
'''

TOOL_FILES = {"watched_tools.py": TOOLS}

MODEL = """
[[models]]
id = "{name}"
provider = "openai"
model = "tool:{name}"
base_url = "{url}"

[[agents]]
id = "{name}"
model = "{name}"
tools = ["watched_tools:{name}"]
"""

MCP_SERVER = f"""
[[mcp_servers]]
id = "files"
command = "{sys.executable}"
args = ["{Path(__file__).parents[1] / "mcp" / "stdio_server.py"}"]
"""

LOG = '[log]\nformat = "{form}"\nlevel = "{level}"\n\n[metrics]\nlisten = "127.0.0.1:0"\n'

_METRICS = re.compile(r"^metrics: (http://\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class ObservedServer:
    """A running server.

    Attributes:
        client: a client with the admin scope.
        anybody: a client without a token.
    """

    deployment: Deployment
    served: ServerProcess
    client: httpx2.Client
    anybody: httpx2.Client

    @property
    def metrics_url(self) -> str:
        found = _METRICS.search(self.served.wait_for("metrics: "))
        assert found is not None
        return found[1]

    def lines(self) -> list[dict[str, Any]]:
        """Return the log lines so far, parsed from JSON."""
        return [orjson.loads(line) for line in self.served.log_text.splitlines() if line[:1] == "{"]

    def read_metrics(self) -> str:
        """Return its metrics as text."""
        answer = self.anybody.get(self.metrics_url)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return answer.text

    def scrape(self) -> list[Sample]:
        """Return its metrics, parsed as Prometheus parses them."""
        families = list(text_string_to_metric_families(self.read_metrics()))
        assert len({family.name for family in families}) == len(families)
        return [sample for family in families for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with this name and these labels."""
        # To parse all metrics takes 20 ms, and tests ask again until a value is there.
        lines = [line for line in self.read_metrics().splitlines() if line.startswith(name)]
        families = text_string_to_metric_families("\n".join([*lines, ""]))
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def describe_tools(url: str) -> str:
    """Return the tables of an agent for each of the tools.

    Args:
        url: the `base_url` of their models.
    """
    return "".join(MODEL.format(name=name, url=url) for name in ("hold", "explode", "pay"))


@contextlib.contextmanager
def serve_observed(folder: Path, url: str, more: str = "") -> Iterator[ObservedServer]:
    """Serve a separate deployment with the models of an endpoint, and a log of JSON."""
    (folder / "watched_tools.py").write_text(TOOLS)
    extra = describe_tools(url) + more + LOG.format(form="json", level="info")
    deployment = create_deployment(folder, url, extra=extra)
    with (
        serve_config(deployment.path) as served,
        deployment.client(served.url) as client,
        httpx2.Client(timeout=PATIENCE) as anybody,
    ):
        # The last line of the start: lines about requests come after it.
        served.wait_for("metrics: ")
        yield ObservedServer(deployment, served, client, anybody)
