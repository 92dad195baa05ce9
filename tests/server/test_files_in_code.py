"""Files for the code of agents: in the form of its library, through the context, and made by it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator

import pytest

from agentctl.runtime import files
from tests.kit.model import ModelEndpoint
from tests.server.agents_in_code import serve_module
from tests.server.files_of_runs import PDF, Site, build_png

OWN = ("langgraph", "pydantic_ai", "agno", "openai_agents")
"""Agents with a client of their library; `known_…` have the model of the configuration."""

LATE = "late_pydantic_ai"
"""An agent of an asynchronous factory."""

KNOWN = tuple(f"known_{name}" for name in OWN)

CONFIG = """
[[models]]
id = "seeing"
provider = "openai"
model = "history"
base_url = "{url}"
takes = ["image", "pdf"]

[[models]]
id = "making"
provider = "openai"
model = "tool:make_report"
base_url = "{url}"

[[models]]
id = "threading"
provider = "openai"
model = "tool:make_in_thread"
base_url = "{url}"

[[agents]]
id = "making"
model = "making"
tools = ["looking_agents:make_report"]

[[agents]]
id = "threading"
model = "threading"
tools = ["looking_agents:make_in_thread"]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("looking")
    extra = CONFIG.format(url=model_endpoint.base_url)
    names = (*OWN, *KNOWN, LATE, "fitted", "reader", "maker")
    with serve_module(folder, model_endpoint, "looking_agents", names, extra) as client:
        yield Site(client, folder, model_endpoint)


@pytest.mark.parametrize("agent", [*OWN, *KNOWN, LATE])
def test_agent_of_a_library_looks_at_the_bytes(site: Site, agent: str) -> None:
    shade = 20 + [*OWN, *KNOWN, LATE].index(agent)
    # The last bytes are written in two ways: the base64 of pydantic-ai is that for URLs.
    picture = build_png(shade) + 6 * b"\xff"
    model = "history" if agent in KNOWN else "echo"
    form = base64.b64encode(picture).decode()
    ids = [site.put("dot.png", picture), site.put("paper.pdf", PDF), site.put("a.txt", b"hello")]
    record = site.run(agent, "look", *ids)
    (prompt,) = [each for each in site.sent(model) if each["role"] == "user"]
    texts = [part["text"] for part in prompt["content"] if part["type"] == "text"]
    assert "".join(texts) == "look\n\nFile a.txt:\n\nhello"
    sent = json.dumps(prompt)
    assert f"data:image/png;base64,{form}" in sent
    assert f"data:application/pdf;base64,{base64.b64encode(PDF).decode()}" in sent

    # The later message of the session shows them again; the database has references.
    site.run(agent, "again", session_id=record["session_id"])
    assert json.dumps(site.sent(model)).count(form) == 1
    assert [each["name"] for each in record["files"]] == ["dot.png", "paper.pdf", "a.txt"]
    stored = b"".join(path.read_bytes() for path in site.folder.glob("*.db*") if path.is_file())
    assert base64.b64encode(picture) not in stored
    assert base64.urlsafe_b64encode(picture) not in stored


@pytest.mark.parametrize("agent", [*OWN, *KNOWN])
def test_agent_of_a_library_gets_a_picture_without_text(site: Site, agent: str) -> None:
    picture = build_png(60)
    model = "history" if agent in KNOWN else "echo"
    form = {"stream": False, "files": [site.put("dot.png", picture)]}
    record = site.client.post(f"/agents/{agent}/runs", json=form).json()
    (prompt,) = [each for each in site.sent(model) if each["role"] == "user"]
    pictures = [part for part in prompt["content"] if part["type"] == "image_url"]
    assert base64.b64encode(picture).decode() in json.dumps(pictures)
    # agno sends an empty text. The endpoint of `echo` answers with none, an error for pydantic-ai.
    assert len(pictures) == len(prompt["content"]) or agent == "agno"
    assert record["status"] == "COMPLETED" or agent == "pydantic_ai", record
    site.run(agent, "again", session_id=record["session_id"])


def test_message_has_all_files_that_a_run_may_have(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound of a model call is for the files of earlier messages."""
    monkeypatch.setattr(files, "MAXIMUM_FILE_BYTES", 100_000)
    ids = [site.put(f"{at}.png", build_png(at) + bytes(21_000)) for at in range(5)]

    first = site.run("langgraph", "look", *ids)
    assert "is left out" not in str(site.sent("echo")[-1])
    assert len(site.sent("echo")[-1]["content"]) == 6

    site.run("langgraph", "again", session_id=first["session_id"])
    earlier = site.sent("echo")[-3]["content"]
    assert str(earlier).count("is left out.]") == 5


def test_library_with_a_window_leaves_files_out_first(site: Site) -> None:
    first = site.run("fitted", "first " + "x" * 500, site.put("one.png", build_png(50)))
    second = site.put("two.png", build_png(51))
    record = site.run("fitted", "second " + "y" * 500, second, session_id=first["session_id"])
    (omission,) = record["messages"][-1]["compacted"]["omissions"]
    assert (omission["kind"], omission["count"]) == ("files", 1)
    earlier, _, current = site.sent("echo")
    assert "is left out.]" in json.dumps(earlier)
    assert json.dumps([earlier, current]).count("data:image/png") == 1


def test_code_reads_the_files_of_its_message(site: Site) -> None:
    picture = build_png(40)
    record = site.run("reader", "look", site.put("dot.png", picture), site.put("paper.pdf", PDF))
    output = record["output"]
    assert output["found"] == {"dot.png": picture.hex(), "paper.pdf": PDF.hex()}
    assert (output["path"], output["suffix"]) == (picture.hex(), ".png")
    later = site.run("reader", "", site.put("b.png", picture), session_id=record["session_id"])
    assert later["output"]["shown"] == ["dot.png", "paper.pdf"]


def test_saved_file_has_versions(site: Site) -> None:
    record = site.run("maker", "x;y\n3;4\n5;6\n")
    assert record["content"] == "table.csv text/csv 8;table.csv text/csv 8;table.csv text/csv 12;"
    first, second = record["files"]
    assert [each["version"] for each in (first, second)] == [1, 2]
    assert site.client.get(f"/files/{second['file_id']}/content").content == b"x;y\n3;4\n5;6\n"
    stored = site.client.get(f"/files/{first['file_id']}").json()
    assert (stored["run_id"], stored["origin"]) == (record["run_id"], "run")

    path = f"/runs/{record['run_id']}"
    items = site.client.get(path, params={"view": "items"}).json()["items"]
    notices = [each for each in items if each["type"] == "notice"]
    assert [each["file"] for each in notices] == [first, second]
    assert notices[0]["text"] == "saved table.csv (text/csv, 8 bytes), version 1"


@pytest.mark.parametrize("agent", ["making", "threading"])
def test_tool_makes_a_file_that_a_later_run_reads(site: Site, agent: str) -> None:
    form = {"message": '{"rows": 3}', "stream": True}
    with site.client.stream("POST", f"/agents/{agent}/runs", json=form) as response:
        text = "".join(response.iter_text())
    (saved,) = re.findall(r"event: FileSaved\ndata: (.*)", text)
    file = json.loads(saved)["file"]
    record = site.client.get(f"/runs/{json.loads(saved)['run_id']}").json()
    assert record["content"] == f"{file['file_id']} 8"
    assert record["files"] == [file]

    later = site.run("reader", "look", file["file_id"], session_id=record["session_id"])
    assert later["output"]["found"] == {"report.csv": (b"n\n" * 4).hex()}


def test_bounds_of_saved_files_are_errors_of_the_code(site: Site) -> None:
    form = {"message": "\x00\x01", "stream": False}
    record = site.client.post("/agents/maker/runs", json={**form, "message": "<svg/>"}).json()
    assert (record["status"], record["error"]["code"]) == ("ERROR", "AGENT_FAILED")
    assert [each["version"] for each in record["files"]] == [1]


def test_deleted_file_is_a_line_for_models_and_missing_for_code(site: Site) -> None:
    file_id = site.put("dot.png", build_png(41))
    record = site.run("known_langgraph", "look", file_id)
    assert site.client.delete(f"/files/{file_id}").is_success
    site.run("known_langgraph", "again", session_id=record["session_id"])
    assert "[The file dot.png (image/png) was deleted.]" in json.dumps(site.sent())
