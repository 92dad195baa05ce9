"""Files in runs: the requests of models, the records, and the errors."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.model import ModelEndpoint
from tests.server.agents_in_code import serve_agents
from tests.server.files_of_runs import PDF, Site, build_png, upload

CONFIG = """
[[models]]
id = "seeing"
provider = "openai"
model = "history"
base_url = "{url}"
takes = ["image", "pdf", "audio"]

[[models]]
id = "narrow"
provider = "openai"
model = "narrow"
base_url = "{url}"
takes = ["image"]
context_tokens = 2500

[[models]]
id = "blind"
provider = "openai"
model = "delegate"
base_url = "{url}"

[[agents]]
id = "seeing"
model = "seeing"
[[agents]]
id = "seeing-apart"
model = "seeing"
database = "second"
[[agents]]
id = "narrow"
model = "narrow"
[[agents]]
id = "blind"
model = "blind"

[[teams]]
id = "mixed"
model = "blind"
members = ["seeing"]

[[workflows]]
id = "two"
steps = [{{ name = "one", agent = "seeing" }}, {{ name = "two", agent = "blind" }}]
"""


def refuse(site: Site, path: str, files: list[Any]) -> tuple[int, str]:
    form = {"message": "look", "stream": False, "files": files}
    response = site.client.post(path, json=form)
    return response.status_code, response.text


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("files")
    config = CONFIG.format(url=model_endpoint.base_url)
    with serve_agents(folder, model_endpoint, config) as client:
        yield Site(client, folder, model_endpoint)


def as_url(data: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def test_model_gets_each_file_in_its_own_part(site: Site) -> None:
    picture = build_png()
    sound = b"RIFF\x04\x00\x00\x00WAVE"
    table = b"a,b\n1,2\n"
    files = [
        site.put("dot.png", picture),
        site.put("paper.pdf", PDF),
        site.put("bell.wav", sound),
        site.put("table.csv", table),
    ]
    record = site.run("seeing", "look", *files)

    text, *parts = site.sent()[-1]["content"]
    assert text == {"type": "text", "text": "look\n\nFile table.csv:\n\na,b\n1,2\n"}
    assert parts == [
        {"type": "image_url", "image_url": {"url": as_url(picture, "image/png")}},
        {
            "type": "file",
            "file": {"filename": "paper.pdf", "file_data": as_url(PDF, "application/pdf")},
        },
        {
            "type": "input_audio",
            "input_audio": {"data": base64.b64encode(sound).decode(), "format": "wav"},
        },
    ]

    # The record has references: those of the request, and of the message.
    assert [each["file_id"] for each in record["files"]] == files
    assert record["files"][0].keys() == {"file_id", "name", "media_type", "size", "sha256"}
    assert record["messages"][0]["files"] == record["files"]
    items = site.client.get(f"/runs/{record['run_id']}", params={"view": "items"}).json()
    assert items["files"] == record["files"]
    assert base64.b64encode(picture).decode() not in json.dumps(record)


def test_later_message_shows_earlier_files_again(site: Site) -> None:
    picture = build_png(1)
    other = build_png(2)
    first = site.run("seeing", "first", site.put("one.png", picture))
    session_id = first["session_id"]
    site.run("seeing", "second", session_id=session_id)
    urls = [part["image_url"]["url"] for part in site.sent()[0]["content"][1:]]
    assert urls == [as_url(picture, "image/png")]

    # A file of the session can be given again, and one that was deleted is a line.
    again = first["files"][0]["file_id"]
    site.run("seeing", "third", again, site.put("two.png", other), session_id=session_id)
    assert len(site.sent()[-1]["content"]) == 3


def test_member_gets_the_files_of_its_team(site: Site) -> None:
    picture = build_png(3)
    form = {"message": "seeing", "stream": False, "files": [site.put("dot.png", picture)]}
    record = site.client.post("/teams/mixed/runs", json=form).json()
    assert record["status"] == "COMPLETED", record
    note = "[The file dot.png (image/png) is not shown: this model takes no image.]"
    assert site.sent("delegate")[-3]["content"].endswith(note)
    assert site.sent()[-1]["content"][1]["image_url"]["url"] == as_url(picture, "image/png")


def test_first_step_of_a_workflow_gets_the_files(site: Site) -> None:
    form = {"message": "go", "stream": False, "files": [site.put("dot.png", build_png(4))]}
    record = site.client.post("/workflows/two/runs", json=form).json()
    first, second = (site.client.get(f"/runs/{each}").json() for each in record["member_runs"])
    assert (len(record["files"]), len(first["files"]), second["files"]) == (1, 1, [])


def test_form_and_json_name_files(site: Site) -> None:
    ids = [site.put(f"{at}.png", build_png(at)) for at in (5, 6)]
    form = {"message": "look", "stream": "false", "files": ",".join(ids)}
    record = site.client.post("/agents/seeing/runs", data=form).json()
    assert record.get("status") == "COMPLETED", record
    assert [each["file_id"] for each in record["files"]] == ids


def test_files_that_cannot_be_given_are_refused_before_the_run(site: Site) -> None:
    picture = site.put("dot.png", build_png(7))
    of_other = upload(site.client, "dot.png", build_png(8), user_id="someone")
    bound = site.run("seeing", "bind", site.put("b.png", build_png(9)))["files"][0]
    path = "/agents/{}/runs"
    before = site.client.get("/runs").json()["meta"]["total_count"]

    status, text = refuse(site, path.format("blind"), [picture])
    assert status == 422
    assert json.loads(text)["detail"] == (
        "files: the model blind of the agent blind does not take dot.png, a file of the kind image."
        ' If its provider does, add "image" to takes of the model in the configuration'
    )
    for file_id in ("unknown", of_other, bound["file_id"]):
        status, text = refuse(site, path.format("seeing"), [file_id])
        assert (status, json.loads(text)["detail"]) == (404, "File not found")
    assert refuse(site, path.format("seeing"), [picture, picture])[0] == 422
    assert refuse(site, path.format("seeing"), [str(at) for at in range(17)])[0] == 422
    assert refuse(site, path.format("seeing"), [1])[0] == 422
    assert refuse(site, "/teams/world-team/runs", [picture])[0] in (404, 422)
    assert site.client.get("/runs").json()["meta"]["total_count"] == before


def test_message_with_files_needs_no_text(site: Site) -> None:
    picture = build_png(21)
    shown = {"type": "image_url", "image_url": {"url": as_url(picture, "image/png")}}
    for path in ("/agents/seeing", "/teams/mixed"):
        form: dict[str, Any] = {"stream": False, "files": [site.put("dot.png", picture)]}
        record = site.client.post(f"{path}/runs", json=form).json()
        assert (record.get("status"), record.get("input")) == ("COMPLETED", ""), (path, record)
        assert shown in site.sent()[-1]["content"], path
    first = site.run("seeing", "", site.put("dot.png", picture))
    assert site.sent()[-1]["content"] == [shown]
    assert first["messages"][0]["content"] == ""
    session = site.client.get(f"/sessions/{first['session_id']}").json()
    assert session["session_name"] == "dot.png"
    again = f"/agents/seeing/runs/{first['run_id']}"
    for verb, body in (("retry", {}), ("fork", {"at": 1})):
        repeated = site.client.post(f"{again}/{verb}", json={"stream": False, **body}).json()
        assert repeated.get("status") == "COMPLETED", repeated
        assert site.sent()[-1]["content"] == [shown]
    site.run("seeing", "and now?", session_id=first["session_id"])
    assert site.sent()[0]["content"] == [shown]
    for body in ({"files": []}, {"files": None}, {}, {"message": " ", "files": []}):
        refused = site.client.post("/agents/seeing/runs", json={"stream": False, **body})
        assert (refused.status_code, "message" in refused.text) == (422, True), body


def test_key_covers_the_files(site: Site) -> None:
    one, two = (site.put(f"{at}.png", build_png(at)) for at in (10, 11))
    headers = {"Idempotency-Key": "with-files"}
    form = {"message": "look", "stream": False, "files": [one]}
    first = site.client.post("/agents/seeing/runs", json=form, headers=headers).json()
    again = site.client.post("/agents/seeing/runs", json=form, headers=headers).json()
    assert again["run_id"] == first["run_id"]
    other = site.client.post("/agents/seeing/runs", json={**form, "files": [two]}, headers=headers)
    assert other.status_code == 422


@pytest.mark.parametrize("agent", ["seeing", "seeing-apart"])
def test_fork_has_copies_of_the_files(site: Site, agent: str) -> None:
    picture = build_png(12)
    first = site.run("seeing", "look", site.put("dot.png", picture))
    at = len(first["messages"])
    form = {"at": at, "message": "and now", "stream": False, "agent_id": agent}
    path = f"/agents/seeing/runs/{first['run_id']}"
    forked = site.client.post(f"{path}/fork", json=form).json()
    assert forked["status"] == "COMPLETED", forked
    (copy,) = forked["messages"][0]["files"]
    assert copy["sha256"] == first["files"][0]["sha256"]
    assert copy["file_id"] != first["files"][0]["file_id"]
    # The copy outlives the session of the original.
    assert site.client.delete(f"/sessions/{first['session_id']}").is_success
    site.run(agent, "again", session_id=forked["session_id"])
    assert site.sent()[0]["content"][1]["image_url"]["url"] == as_url(picture, "image/png")


def test_retry_has_the_files_of_its_origin(site: Site) -> None:
    first = site.run("seeing", "look", site.put("dot.png", build_png(13)))
    path = f"/agents/seeing/runs/{first['run_id']}/retry"
    retried = site.client.post(path, json={"stream": False}).json()
    assert retried["files"] == first["files"]
    assert len(site.sent()[-1]["content"]) == 2


def test_files_of_earlier_messages_are_left_out_first(site: Site) -> None:
    picture = site.put("one.png", build_png(14))
    first = site.run("narrow", "first " + "x" * 500, picture)
    second = site.put("two.png", build_png(15))
    record = site.run("narrow", "second " + "y" * 500, second, session_id=first["session_id"])
    (omission,) = record["messages"][-1]["compacted"]["omissions"]
    assert (omission["kind"], omission["count"], omission["first"]) == ("files", 1, picture)
    earlier, _, current = site.sent("narrow")
    assert earlier["content"].endswith("[The file one.png (image/png) is left out.]")
    assert len(current["content"]) == 2
