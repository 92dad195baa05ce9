"""An OpenAI-compatible endpoint for tests, in its own process; see `tests.kit.model_server`.

A test takes `model_endpoint: ModelEndpoint` and puts `model_endpoint.base_url` into the `base_url`
of a model. The name of the model selects the behaviour: `echo`, `hang`, `half`, `tool:NAME`,
`delegate`, ...

There is one process for all tests of a pytest process. The servers of a folder of tests live on
while the tests of the next folder run, and a run on one of them may still call its model. So each
folder has a port of its own, and sees only the calls at that port.

Folders whose tests start no processes have an endpoint in the event loop of each test instead
(`tests.kit.loop_model`).
"""

from __future__ import annotations

import http.client
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.model_server import Body

__all__ = [
    "ModelEndpoint",
    "ProcessEndpoint",
    "model_endpoint",
    "process_endpoint",
    "pytest_runtest_setup",
    "start_endpoint",
    "vendor_endpoint",
]


class ModelEndpoint:
    """An endpoint and what it has received."""

    @property
    def port(self) -> int:
        """The port of the requests that this object counts."""
        raise NotImplementedError

    @property
    def base_url(self) -> str:
        """The URL for `base_url` of a model."""
        return f"{self.root_url}/v1"

    @property
    def root_url(self) -> str:
        """The URL without a path, for the interfaces of other vendors."""
        return f"http://127.0.0.1:{self.port}"

    def open_calls(self) -> int:
        """Return the number of model calls that are open now."""
        raise NotImplementedError

    def wait_for_open(self, count: int) -> None:
        """Wait until `count` calls are open."""
        problem = lambda: f"{self.open_calls()} calls are open, not {count}"  # noqa: E731
        wait_for(lambda: self.open_calls() == count, problem=problem)

    def requests(self, model: str | None = None) -> list[Body]:
        """Return the request bodies received so far, newest last, of one model if given."""
        return [body for body in self.read_requests() if model in (None, body["model"])]

    def headers(self, model: str) -> dict[str, str]:
        """Return the header fields of the newest request for a model, names in lower case."""
        entries = reversed(self.read_headers())
        return next(entry["fields"] for entry in entries if entry["model"] == model)

    def read_requests(self) -> list[Body]:
        """Return all request bodies received so far, newest last."""
        raise NotImplementedError

    def read_headers(self) -> list[Body]:
        """Return the model and the header fields of all requests, newest last."""
        raise NotImplementedError

    def forget(self) -> None:
        """Forget the requests received so far."""
        raise NotImplementedError


class ProcessEndpoint(ModelEndpoint):
    """An endpoint that is a process."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.first_port = port

    @property
    def port(self) -> int:
        return self.first_port

    def open_calls(self) -> int:
        return int(self._request("GET", "/open")["open"])

    def read_requests(self) -> list[Body]:
        return list(self._request("GET", "/requests")["requests"])

    def read_headers(self) -> list[Body]:
        return list(self._request("GET", "/headers")["headers"])

    def forget(self) -> None:
        self._request("DELETE", "/requests")

    def stop(self) -> None:
        """Stop the process."""
        self.process.terminate()
        self.process.wait(timeout=PATIENCE)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _request(self, method: str, path: str, port: int | None = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=PATIENCE)
        try:
            connection.request(method, path)
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
            return answer
        finally:
            connection.close()


class SharedEndpoint(ProcessEndpoint):
    """An endpoint whose port, and so everything else, is that of the folder of the current test.

    A fixture of a session reads `base_url` while a test of its folder is set up, so its servers
    call the models at the port of their folder for as long as they live.
    """

    current_folder = Path()

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        super().__init__(process, port)
        self._ports: dict[Path, int] = {}

    @property
    def port(self) -> int:
        folder = self.current_folder
        if folder not in self._ports:
            self._ports[folder] = int(self._request("POST", "/ports", self.first_port)["port"])
        return self._ports[folder]


def start_endpoint(
    module: str = "tests.kit.model_server", variables: Mapping[str, str] | None = None
) -> ProcessEndpoint:
    """Start the process and wait until it listens; the caller stops it with `stop`.

    Args:
        variables: further environment variables of the process.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **(variables or {})},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
    line = process.stdout.readline() if ready else ""
    if not line:
        process.kill()
        process.wait()
        process.stdout.close()
        raise RuntimeError("the model endpoint did not start")
    return ProcessEndpoint(process, int(line))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note the folder of the test before its fixtures need the endpoint."""
    SharedEndpoint.current_folder = item.path.parent


@pytest.fixture(scope="session")
def process_endpoint() -> Iterator[ModelEndpoint]:
    """The endpoint of all processes that tests start; a folder sees only its own calls."""
    with _share_endpoint("tests.kit.model_server") as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def model_endpoint(process_endpoint: ModelEndpoint) -> ModelEndpoint:
    """The endpoint of a test: that of processes, unless its folder has one in its event loop."""
    return process_endpoint


@pytest.fixture(scope="session")
def vendor_endpoint() -> Iterator[ModelEndpoint]:
    """The endpoint with the interfaces of other vendors, see `tests.kit.vendor_server`."""
    with _share_endpoint("tests.kit.vendor_server") as endpoint:
        yield endpoint


@contextmanager
def _share_endpoint(module: str) -> Iterator[ModelEndpoint]:
    started = start_endpoint(module)
    yield SharedEndpoint(started.process, started.port)
    started.stop()
