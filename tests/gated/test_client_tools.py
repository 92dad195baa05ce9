"""Tools of the caller (`client_tools`): runs hand out their calls, and go on with the results."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from agentctl.server import create_app
from tests.kit.conditions import PATIENCE
from tests.kit.model import ModelEndpoint
from tests.kit.process import ServerProcess
from tests.kit.site import SCOPES, Site, answer, call, create_site
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

TAB = {
    "name": "open-tab",
    "description": "Open a tab of the browser",
    "parameters": {
        "type": "object",
        "properties": {"url": {"type": "string", "pattern": "^(?!ftp)"}},
        "required": ["url"],
    },
}
ASK = {"name": "ask_color"}
CODE = '''
from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel


async def respond(messages, info):
    results = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    if results:
        yield " and ".join(part.model_response_str() for part in results)
        return
    yield {
        number: DeltaToolCall(tool.name, '{"url": "x"}', tool_call_id=f"c{number}")
        for number, tool in enumerate(info.function_tools)
        if tool.name != "own"
    }


agent = Agent(FunctionModel(stream_function=respond))


@agent.tool_plain
def own() -> str:
    """A tool of the agent."""
    return "own"


async def plain(message: str) -> str:
    return message
'''
EXTRA = """
[[agents]]
id = "typed"
object = "typed_code:agent"
approve = { "o*" = "user" }

[[agents]]
id = "plain"
object = "typed_code:plain"

[[agents]]
id = "searching"
model = "plan"
tools = ["mcp:finder"]

[[mcp_servers]]
id = "finder"
command = "false"
"""


@pytest.fixture(scope="module")
def client_site(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Site:
    folder = tmp_path_factory.mktemp("client-tools")
    (folder / "typed_code.py").write_text(CODE)
    return create_site(folder, model_endpoint.base_url, extra=EXTRA)


def start(
    site: Site, server: ServerProcess | ThreadedServer, path: str, message: Any, **fields: Any
) -> httpx2.Response:
    text = message if isinstance(message, str) else json.dumps(message)
    headers = site.deployment.bearer("ann", *SCOPES)
    return httpx2.post(
        f"{server.url}{path}",
        json={"message": text, "stream": False, **fields},
        headers=headers,
        timeout=PATIENCE,
    )


async def test_any_server_continues_with_the_results(client_site: Site) -> None:
    plan = [
        answer(
            call("open-tab", "t1", url="a"), call("ask_color", "t2"), call("note", "t3", text="n")
        ),
        answer(call("open-tab", "t4", url="b")),
    ]

    tools = {"client_tools": [TAB, ASK], "tool_choice": "required"}

    with client_site.serve_in_thread() as server:
        runs = [
            start(client_site, server, "/agents/clerk/runs", plan, **tools).json(),
            start(client_site, server, "/teams/office/runs", plan, **tools).json(),
            start(client_site, server, "/agents/typed/runs", "x", client_tools=[TAB, ASK]).json(),
        ]

        for run in runs:
            assert run["status"] == "PAUSED", run
            asked = [(row["kind"], row["policy"], row["tool_name"]) for row in run["approvals"]]
            assert asked == [("external", "user", "open-tab"), ("external", "user", "ask_color")]

    with client_site.serve_in_thread() as server:
        for run in runs:
            await client_site.decide(server, run["run_id"], "complete", "open-tab", result="tab")
            assert len(await client_site.pending(run["run_id"])) == 1

            await client_site.decide(server, run["run_id"], "complete", result={"color": "red"})
            if run is not runs[2]:
                # The next leg has the tools, too.
                await client_site.wait_for_end(server, run["run_id"], "PAUSED")
                await client_site.decide(server, run["run_id"], "complete", result="last tab")

            record = await client_site.wait_for_end(server, run["run_id"])
            expected = 'tab and {"color":"red"}' if run is runs[2] else "last tab"
            assert (record["status"], record["content"]) == ("COMPLETED", expected)


@pytest.mark.parametrize(
    ("path", "fields", "detail"),
    [
        ("/agents/clerk/runs", {"client_tools": [{"name": "refund"}]}, "has a tool refund"),
        ("/teams/office/runs", {"client_tools": [{"name": "note"}]}, "has a tool note"),
        ("/teams/office/runs", {"client_tools": [{"name": "delegate_task_to_member"}]}, "has a"),
        ("/agents/typed/runs", {"client_tools": [{"name": "own"}]}, "has a tool own"),
        ("/agents/searching/runs", {"client_tools": [{"name": "finder_x"}]}, "MCP server"),
        ("/agents/plain/runs", {"client_tools": [ASK]}, "the agent plain takes none"),
        ("/workflows/claims/runs", {"client_tools": [ASK]}, "the workflow claims takes none"),
        (
            "/agents/typed/runs",
            {"client_tools": [ASK], "tool_choice": "required"},
            "tool_choice is for",
        ),
        ("/agents/clerk/runs", {"tool_choice": "required"}, "tool_choice must be"),
        ("/agents/clerk/runs", {"client_tools": [ASK], "tool_choice": "x"}, "tool_choice must"),
        ("/agents/clerk/runs", {"client_tools": [ASK, ASK]}, "two tools named ask_color"),
        ("/agents/clerk/runs", {"client_tools": [{"name": "a b"}]}, "client_tools[0].name"),
        ("/agents/clerk/runs", {"client_tools": [{"name": "a", "x": 1}]}, "x"),
        ("/agents/clerk/runs", {"client_tools": [{"description": "a"}]}, "name"),
        (
            "/agents/clerk/runs",
            {"client_tools": [{"name": "a", "parameters": {"type": "array"}}]},
            "client_tools[0].parameters",
        ),
        (
            "/agents/clerk/runs",
            {"client_tools": [{"name": "a", "parameters": {"required": 1}}]},
            "not a valid JSON Schema",
        ),
        (
            "/agents/clerk/runs",
            {"client_tools": [{"name": "a", "parameters": {"$ref": "http://127.0.0.1:9/"}}]},
            "refers to something",
        ),
        (
            "/agents/clerk/runs",
            {"client_tools": [{"name": "a", "parameters": {"items": {"$ref": "#"}}}]},
            "must not be recursive",
        ),
        (
            "/agents/clerk/runs",
            {"client_tools": [{"name": "a", "parameters": {"enum": [[]] * 1_000}}]},
            "more than 1000 subschemas",
        ),
    ],
)
def test_unusable_tools_are_refused(
    client_server: ThreadedServer, client_site: Site, path: str, fields: dict[str, Any], detail: str
) -> None:
    response = start(client_site, client_server, path, "x", **fields)
    assert response.status_code == 422, response.text
    assert detail in response.json()["detail"]


@pytest.fixture(scope="module")
def client_server(client_site: Site) -> Any:
    app = create_app(client_site.deployment.settings)
    with serve_in_thread(client_site.deployment, app) as host:
        yield host


def test_calls_with_other_arguments_reach_the_model_again(
    client_server: ThreadedServer, client_site: Site, model_endpoint: ModelEndpoint
) -> None:
    url = {**TAB, "name": "tree"}
    plan = [
        answer(call("tree", url="x"), call("ask_color", "c", any=1), call("tree", "f", url="ftp"))
    ]
    tools = [url, {**ASK, "parameters": {"additionalProperties": False}}]
    run = start(
        client_site,
        client_server,
        "/agents/clerk/runs",
        plan,
        client_tools=tools,
        tool_choice="tree",
    ).json()
    assert [row["tool_name"] for row in run["approvals"]] == ["tree"]
    failed = [tool for tool in run["tools"] if tool["tool_call_error"]]
    assert [tool["tool_name"] for tool in failed] == ["ask_color", "tree"]
    sent = model_endpoint.requests("plan")[-1]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "tree"}}
    assert [tool["function"]["name"] for tool in sent["tools"]][-2:] == ["tree", "ask_color"]
