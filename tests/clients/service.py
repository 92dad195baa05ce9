"""A server for client libraries, with the facts that its users cannot see: calls and rows."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import serve_in_thread

__all__ = ["Service", "serving"]

_GATED = """
[[models]]
id = "refund"
provider = "openai"
model = "tool:add"
base_url = "{url}"

[[agents]]
id = "gated"
model = "refund"
tools = ["world_tools:add"]
approve = {{ add = "user" }}
"""


@dataclass(frozen=True)
class Service:
    """A running server and the stub endpoint of its models."""

    url: str
    deployment: Deployment
    endpoint: ModelEndpoint

    def token(self, subject: str = "ann") -> str:
        """Return a token of an administrator."""
        return self.deployment.token(subject, ADMIN)

    def count_calls(self) -> Counter[str]:
        """Return how often a model was called with each last message of a user."""
        asked = [
            [str(each["content"]) for each in body["messages"] if each["role"] == "user"]
            for body in self.endpoint.requests()
        ]
        return Counter(messages[-1] for messages in asked)

    def count_runs(self) -> Counter[str]:
        """Return the number of stored runs for each input."""
        counts = Counter[str]()
        with self.deployment.client(self.url) as client:
            query = {"limit": "100"}
            while True:
                page = client.get("/runs", params=query).json()
                counts.update(run["input"] for run in page["data"])
                if (cursor := page["meta"]["next_cursor"]) is None:
                    return counts
                query["cursor"] = cursor


@contextlib.contextmanager
def serving(folder: Path, endpoint: ModelEndpoint) -> Iterator[Service]:
    """Serve a configuration in an empty folder within the block."""
    extra = _GATED.format(url=endpoint.base_url)
    deployment = create_deployment(folder, endpoint.base_url, extra=extra)
    with serve_in_thread(deployment) as server:
        yield Service(server.url, deployment, endpoint)
