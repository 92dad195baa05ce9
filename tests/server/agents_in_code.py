"""A server whose agents are code that calls models of the configuration, and a client of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import serve_in_thread

__all__ = ["run_agent", "serve_agents", "serve_module"]


@contextmanager
def serve_agents(folder: Path, endpoint: ModelEndpoint, extra: str) -> Iterator[httpx2.Client]:
    """Run a server in a folder; yield a client of an administrator.

    The server is in this process: another one would import all libraries of the agents again.

    Args:
        extra: the part of the configuration with the models and agents.
    """
    deployment = create_deployment(folder, endpoint.base_url, extra=extra)
    with (
        serve_in_thread(deployment, code_leaves_connections=True) as server,
        deployment.client(server.url) as client,
    ):
        yield client


@contextmanager
def serve_module(
    folder: Path,
    endpoint: ModelEndpoint,
    module: str,
    names: Iterable[str],
    extra: str = "",
    **environment: str,
) -> Iterator[httpx2.Client]:
    """Run a server with agents of a module of this folder; yield a client of an administrator.

    Args:
        module: name of the module, with a function `build_NAME` for each agent.
        names: ids of the agents.
        extra: a further part of the configuration.
        environment: variables of the server; `MODEL_URL` is that of the endpoint.
    """
    shutil.copy(Path(__file__).with_name(f"{module}.py"), folder)
    agents = "".join(
        f'[[agents]]\nid = "{name}"\nobject = "{module}:build_{name}"\n' for name in names
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"MODEL_URL": endpoint.base_url, **environment}.items():
            patch.setenv(name, value)
        with serve_agents(folder, endpoint, extra + agents) as client:
            yield client


def run_agent(client: httpx2.Client, agent: str, message: Any, **body: Any) -> dict[str, Any]:
    """Run an agent to its end; return the record of the run.

    Args:
        message: text, or a value that is sent as JSON text.
        body: further fields of the request.
    """
    text = message if isinstance(message, str) else json.dumps(message)
    form = {"message": text, "stream": False, **body}
    record: dict[str, Any] = client.post(f"/agents/{agent}/runs", json=form).json()
    return record
