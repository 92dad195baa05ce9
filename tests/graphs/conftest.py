"""A server with graphs of the cookbooks of LangGraph, shared by the tests of a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.server import ConformanceServer
from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import serve_in_thread

MODULE = "cookbook_graphs"


@pytest.fixture(scope="module")
def graphs(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[ConformanceServer]:
    folder = tmp_path_factory.mktemp("graphs")
    source = Path(__file__).with_name(f"{MODULE}.py").read_text()
    (folder / f"{MODULE}.py").write_text(source)
    tables = "\n".join(
        f'[[agents]]\nid = "{name}"\nobject = "{MODULE}:{name}"\n'
        for name in re.findall(r"^(\w+): Any = ", source, re.MULTILINE)
    )
    for name, scope in (("shared_notes", "shared"), ("no_notes", "off")):
        tables += f'\n[[agents]]\nid = "{name}"\nobject = "{MODULE}:notes"\nstore = "{scope}"\n'
    tables = tables.replace(':configured"', ':configured"\nconfigurable = ["model", "depth"]')
    tables = tables.replace(':limited"', ':limited"\nconfigurable = ["tries"]')
    deployment = create_deployment(folder, model_endpoint.base_url, extra=tables)
    variables = {"MODEL_URL": model_endpoint.base_url}
    with serve_in_thread(deployment, code_leaves_connections=True, variables=variables) as server:
        yield ConformanceServer(server.url, deployment)
