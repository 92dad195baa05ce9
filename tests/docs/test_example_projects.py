"""The projects in `docs/examples`, each served by a process and used over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import pytest

from agentctl.cli.files import write_key_pair
from agentctl.interface.requests import RunRequest
from agentctl.records.runs import RunRecord
from agentctl.remote import RemoteOperations
from tests.kit.documents import ROOT
from tests.kit.model import ModelEndpoint
from tests.kit.process import ServerProcess, serve_config

EXAMPLES = ROOT / "docs" / "examples"
LONGEST = 60
"""Lines of Python of a project."""


@dataclass(frozen=True)
class Project:
    """A served project."""

    server: ServerProcess
    folder: Path

    def run(self, agent: str, message: str, *, session: str, user: str, **claims: Any) -> RunRecord:
        """Return the record of a run for a user with further claims."""
        payload = {"sub": user, "scopes": ["agents:run"], "exp": int(time.time()) + 600, **claims}
        key = (self.folder / "keys/signing.pem").read_text()
        token = jwt.encode(payload, key, algorithm="RS256")

        async def create() -> RunRecord:
            async with RemoteOperations(self.server.url, token) as operations:
                request = RunRequest(message, session)
                return (await operations.runs.create("agent", agent, request)).value

        return asyncio.run(create())


@contextlib.contextmanager
def _serve(
    name: str,
    folder: Path,
    endpoint: ModelEndpoint,
    model: str,
    *,
    prepare: Callable[[], None] = lambda: None,
    **variables: str,
) -> Iterator[Project]:
    """Serve a copy of a project whose model is one of the endpoint."""
    project = folder / name
    shutil.copytree(EXAMPLES / name, project)
    write_key_pair(project / "keys/signing.pem", "RS256")
    prepare()
    config = project / "agentctl.toml"
    text = config.read_text().replace("https://api.openai.com/v1", endpoint.base_url)
    config.write_text(text.replace("gpt-5.2-mini", model))
    variables = {"OPENAI_API_KEY": "test", "OPENAI_BASE_URL": endpoint.base_url, **variables}
    with serve_config(config, variables=variables) as server:
        yield Project(server, project)


@pytest.mark.parametrize("name", ["tenants", "pydantic_ai_agent", "langgraph_agent", "mcp_servers"])
def test_projects_are_short_and_listed(name: str) -> None:
    files = [*(EXAMPLES / name).rglob("*.py")]
    assert sum(len(file.read_text().splitlines()) for file in files) < LONGEST
    assert f"({name})" in (EXAMPLES / "README.md").read_text()


def _call(name: str, **arguments: object) -> str:
    """A message that makes the model `exact` of the endpoint call a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return json.dumps({"tool_calls": [{"id": "c1", "type": "function", "function": function}]})


def test_tools_see_the_data_of_the_callers_company(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    with _serve("tenants", tmp_path, model_endpoint, "exact") as project:
        place = _call("place_order", article="a chair")
        placed = project.run("orders", place, session="s1", user="ann", tenant="acme")
        assert placed["content"] == "ordered a chair"
        desk = _call("place_order", article="a desk")
        project.run("orders", desk, session="s2", user="cid", tenant="globex")
        listing = _call("list_orders")
        listed = project.run("orders", listing, session="s3", user="bob", tenant="acme")
        assert "a chair, placed by ann" in str(listed["content"])
        assert "desk" not in str(listed["content"])
        chosen = _call("list_orders", context={"claims": {"tenant": "acme"}})
        listed = project.run("orders", chosen, session="s2", user="cid", tenant="globex")
        assert "chair" not in str(listed["content"])
        refused = project.run("orders", place, session="s4", user="eve")
        assert refused["tools"][0]["tool_call_error"]


def test_pydantic_ai_agent_has_deps_and_history(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    model = {"SUPPORT_MODEL": "openai-chat:exact"}
    with _serve("pydantic_ai_agent", tmp_path, model_endpoint, "", **model) as project:
        for user, plan in (("bob", "free"), ("ann", "business")):
            run = project.run("support", _call("read_plan"), session=f"s-{user}", user=user)
            assert run["content"] == f"{user} has the plan {plan}"
            assert [each["tool_name"] for each in run["tools"]] == ["read_plan"]
        project.run("support", '{"content": "You are welcome"}', session="s-ann", user="ann")
        sent = json.dumps(model_endpoint.requests("exact")[-1])
        assert "The customer is ann." in sent
        assert "ann has the plan business" in sent
        assert "bob" not in sent


def test_langgraph_works_with_and_without_a_checkpointer(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    with _serve("langgraph_agent", tmp_path, model_endpoint, "", GRAPH_MODEL="history") as project:
        for agent in ("plain", "durable"):
            first = project.run(agent, "one", session=f"s-{agent}", user="ann")
            assert first["status"] == "COMPLETED", first["error"]
            assert str(first["content"]).startswith("Hello ann.")
            second = project.run(agent, "two", session=f"s-{agent}", user="ann")
            content = str(second["content"])
            assert "Hello ann" not in content.partition("[[")[0]
            sent = json.loads(content[content.index("[[") :])
            roles = [role for role, _ in sent]
            assert roles == ["user", "assistant", "assistant", "user"], sent
            assert [sent[0][1], sent[-1][1]] == ["one", "two"]


def test_mcp_servers_of_others_are_used(tmp_path: Path, model_endpoint: ModelEndpoint) -> None:
    notes = tmp_path / "mcp_servers" / "notes"

    def prepare() -> None:
        git = ("git", "-C", str(notes), "-c", "user.name=ann", "-c", "user.email=ann@example.org")
        notes.mkdir()
        for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "Buy milk"]):
            subprocess.run([*git, *words], check=True)

    with _serve("mcp_servers", tmp_path, model_endpoint, "exact", prepare=prepare) as project:
        log = _call("git_git_log", repo_path="notes")
        read = project.run("historian", log, session="s1", user="ann")
        assert "Buy milk" in str(read["content"]), read
        times = {"source_timezone": "UTC", "target_timezone": "Asia/Tokyo", "time": "12:00"}
        asked = _call("time_convert_time", **times)
        converted = project.run("historian", asked, session="s1", user="ann")
        assert "21:00" in str(converted["content"])
        offered = [
            tool["function"]["name"] for tool in model_endpoint.requests("exact")[-1]["tools"]
        ]
        assert sorted(offered) == [
            "git_git_log",
            "git_git_show",
            "git_git_status",
            "time_convert_time",
        ]
