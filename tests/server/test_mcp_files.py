"""Files in results of tools of MCP servers, and in results for clients of MCP."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.kit.conditions import PATIENCE
from tests.kit.model import ModelEndpoint
from tests.server.agents_in_code import serve_module
from tests.server.files_of_runs import PDF, Site, build_png

PNG = build_png(7)

CONFIG = """
[mcp_endpoint]
enabled = true

[[mcp_servers]]
id = "media"
command = "{python}"
args = ["{script}", "{picture}", "{paper}"]

[[models]]
id = "drawing"
provider = "openai"
model = "plan"
base_url = "{url}"
takes = ["image"]

[[agents]]
id = "drawing"
model = "drawing"
tools = ["mcp:media"]

[[agents]]
id = "painter-apart"
object = "looking_agents:build_painter"
database = "second"
"""


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def plan(tool: str) -> str:
    function = {"name": f"media_{tool}", "arguments": "{}"}
    return json.dumps([{"tool_calls": [{"id": "c", "type": "function", "function": function}]}])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("media")
    extra = CONFIG.format(
        url=model_endpoint.base_url,
        python=sys.executable,
        script=Path(__file__).with_name("media_server.py"),
        picture=encode(PNG),
        paper=encode(PDF),
    )
    with serve_module(folder, model_endpoint, "looking_agents", ("painter",), extra) as client:
        yield Site(client, folder, model_endpoint)


def test_data_of_a_tool_result_becomes_files_that_the_model_gets(site: Site) -> None:
    record = site.run("drawing", plan("draw"))
    picture, paper = record["files"]
    assert (picture["name"], paper["name"]) == ("draw-1.png", "_2Fpaper.pdf")
    for file, data in ((picture, PNG), (paper, PDF)):
        assert site.client.get(f"/files/{file['file_id']}/content").content == data
    assert record["tools"][0]["result"] == (
        f"drawn\n[file draw-1.png (image/png), {len(PNG)} bytes, {picture['file_id']}]\n"
        f"[file _2Fpaper.pdf (application/pdf), {len(PDF)} bytes, {paper['file_id']}]"
    )
    *_, result, shown = site.sent("plan")
    assert result["role"] == "tool"
    assert "[The file _2Fpaper.pdf (application/pdf) is not shown: this model" in result["content"]
    (image,) = [part["image_url"] for part in shown["content"] if part["type"] == "image_url"]
    assert image["url"] == f"data:image/png;base64,{encode(PNG)}"

    # A later message shows the picture again; the database has references only.
    site.run("drawing", plan("draw"), session_id=record["session_id"])
    assert json.dumps(site.sent("plan")).count(encode(PNG)) == 2
    stored = b"".join(path.read_bytes() for path in site.folder.glob("*.db*") if path.is_file())
    assert encode(PNG).encode() not in stored
    assert encode(PDF).encode() not in stored


def test_data_that_is_no_allowed_file_is_a_line(site: Site) -> None:
    record = site.run("drawing", plan("deceive"))
    lines = record["tools"][0]["result"].splitlines()
    assert lines[0].startswith("[image image/png, 27 bytes, not shown: ")
    assert lines[1].startswith("[audio audio/wav, ")
    assert "not shown: " in lines[2]
    assert len(record["files"]) == 16
    assert lines[-1] == f"[image image/png, {len(PNG)} bytes, not shown]"
    assert {file["media_type"] for file in record["files"]} == {"image/png"}


def test_client_of_mcp_gets_pictures_and_links(site: Site) -> None:
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {name: site.client.headers[name] for name in ("authorization",)}
    url = str(site.client.base_url).rstrip("/")

    async def call(agent: str = "painter", **arguments: Any) -> Any:
        async with (
            httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http,
            Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
        ):
            return await client.call_tool(f"agent_{agent}", arguments)

    result = asyncio.run(call(message=encode(PNG)))
    text, picture, large, table = result.content
    assert (text.text, picture.type, picture.mime_type) == ("painted", "image", "image/png")
    assert base64.b64decode(picture.data) == PNG
    assert [(each.type, each.name) for each in (large, table)] == [
        ("resource_link", "large.png"), ("resource_link", "t.csv")
    ]  # fmt: skip
    ids = result.structured_content["files"]
    assert str(table.uri) == f"{url}/files/{ids[2]}/content"
    assert site.client.get(str(table.uri)).content == b"a,b\n"

    given = asyncio.run(call(message=encode(PNG), files=[site.put("n.txt", b"text")]))
    run = site.client.get(f"/runs/{given.structured_content['run_id']}").json()
    assert run["files"][0]["name"] == "n.txt"
    refused = asyncio.run(call(message=encode(PNG), files=["../x"]))
    assert (refused.is_error, refused.content[0].text) == (True, "File not found")

    apart = asyncio.run(call("painter-apart", message=encode(PNG)))
    text, picture, large, table = apart.content
    assert (text.text, base64.b64decode(picture.data)) == ("painted", PNG)
    assert site.client.get(str(table.uri)).content == b"a,b\n"
