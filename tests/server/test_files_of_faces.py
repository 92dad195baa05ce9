"""Files in the messages of clients of other products: the model gets the bytes that they send."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.kit.deployment import Deploy
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.files_of_runs import PDF, build_png

EXTRA = """
[openai]
enabled = true
[agui]
enabled = true
[ai_sdk]
enabled = true

[[models]]
id = "seeing"
provider = "openai"
model = "history"
base_url = "{url}"
takes = ["image", "pdf", "audio"]

[[agents]]
id = "seeing"
model = "seeing"

[[agents]]
id = "seeing-apart"
model = "seeing"
database = "second"
"""

AGENTS = pytest.mark.parametrize("agent", ["seeing", "seeing-apart"])
"""Agents whose files are in the default database, and in another one."""

SCOPES = ("agents:run", "agents:read", "sessions:read", "sessions:write")
WAV = b"RIFF\x04\x00\x00\x00WAVE"


@pytest.fixture(scope="module")
def served(deploy: Deploy, model_endpoint: ModelEndpoint) -> Iterator[ThreadedServer]:
    config = deploy(EXTRA.format(url=model_endpoint.base_url), server='compatibility = "agentos"')
    with serve_in_thread(config) as host:
        yield host


@pytest.fixture(scope="module")
def client(served: ThreadedServer) -> Iterator[openai.OpenAI]:
    key = served.deployment.token("ada", *SCOPES)
    with openai.OpenAI(api_key=key, base_url=f"{served.url}/v1", max_retries=0) as client:
        yield client


def as_url(data: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def list_sent(endpoint: ModelEndpoint) -> list[list[Any]]:
    """Return the parts of each message of the newest request: types and data."""
    messages = endpoint.requests("history")[-1]["messages"]
    return [
        [part for part in message["content"] if part["type"] != "text"]
        if isinstance(message["content"], list)
        else []
        for message in messages
        if message["role"] == "user"
    ]


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": as_url(data, "image/png")}}


DOCUMENT = {
    "type": "file",
    "file": {"filename": "paper.pdf", "file_data": as_url(PDF, "application/pdf")},
}
SOUND = {
    "type": "input_audio",
    "input_audio": {"data": base64.b64encode(WAV).decode(), "format": "wav"},
}


@AGENTS
def test_chat_completion_gives_the_files_of_all_messages(
    client: openai.OpenAI, model_endpoint: ModelEndpoint, agent: str
) -> None:
    one = build_png(11)
    two = build_png(12)
    client.chat.completions.create(
        model=agent,
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "one"}, image(one)]},  # type: ignore[list-item]
            {"role": "assistant", "content": "seen"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "two"}, image(two), DOCUMENT, SOUND],  # type: ignore[list-item]
            },
        ],
    )
    assert list_sent(model_endpoint) == [[image(one)], [image(two), DOCUMENT, SOUND]]


def test_uploaded_file_is_named_by_its_id(
    client: openai.OpenAI, model_endpoint: ModelEndpoint
) -> None:
    stored = client.files.create(file=("paper.pdf", PDF), purpose="user_data")
    assert (stored.filename, stored.bytes) == ("paper.pdf", len(PDF))
    answer = client.responses.create(
        model="seeing",
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "read"},
                    {"type": "input_file", "file_id": stored.id},
                    {
                        "type": "input_image",
                        "image_url": as_url(build_png(13), "image/png"),
                        "detail": "auto",
                    },
                ],
            }
        ],
    )
    assert answer.status == "completed"
    assert list_sent(model_endpoint) == [[DOCUMENT, image(build_png(13))]]

    other = client.files.create(file=("other.pdf", PDF), purpose="user_data")
    assert [file.id for file in client.files.list(limit=1)][:2] == [
        file.id for file in client.files.list(limit=100)
    ][:2]
    assert client.files.list(limit=1).data[0].id != stored.id
    assert client.files.content(stored.id).read() == PDF
    assert client.files.delete(other.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(other.id)


def test_uploaded_file_is_in_the_database_of_its_agent(
    client: openai.OpenAI, model_endpoint: ModelEndpoint
) -> None:
    second: Any = {"extra_query": {"db_id": "second"}}
    picture = as_url(build_png(21), "image/png")
    stored = client.files.create(file=("paper.pdf", PDF), purpose="user_data", **second)
    content: Any = [
        {"type": "input_file", "file_id": stored.id},
        {"type": "input_image", "image_url": picture, "detail": "auto"},
    ]
    message: Any = [{"role": "user", "content": content}]
    assert client.responses.create(model="seeing-apart", input=message).status == "completed"
    assert list_sent(model_endpoint) == [[DOCUMENT, image(build_png(21))]]
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="seeing", input=message)

    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(stored.id)
    assert client.files.retrieve(stored.id, **second).id == stored.id
    assert client.files.content(stored.id, **second).read() == PDF
    newest, *_ = client.files.list(limit=1, **second).data
    later = client.files.list(limit=1, after=newest.id, **second).data
    assert stored.id in {newest.id, *(file.id for file in later)}
    assert client.files.delete(stored.id, **second).deleted


@pytest.mark.parametrize(
    ("part", "status", "text"),
    [
        (
            {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
            400,
            "messages[0].content[0] must be a data URL with base64: this server fetches no URL",
        ),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}},
            400,
            "messages[0].content[0] is not base64",
        ),
        (
            {"type": "image_url", "image_url": {"url": as_url(b"<svg>", "image/svg+xml")}},
            415,
            "HTML, SVG, XML and scripts are not accepted",
        ),
        ({"type": "file", "file": {"file_id": "file-1"}}, 404, "File not found"),
        ({"type": "file", "file": {}}, 400, "must have the bytes of the file, or file_id"),
    ],
)
def test_file_that_cannot_be_given_is_refused(
    served: ThreadedServer, part: dict[str, Any], status: int, text: str
) -> None:
    response = served.client.post(
        "/v1/chat/completions",
        headers=served.bearer("ada", *SCOPES),
        json={"model": "seeing", "messages": [{"role": "user", "content": [part]}]},
    )
    assert response.status_code == status, response.text
    assert text in response.json()["error"]["message"]


def test_repeated_request_with_the_same_bytes_is_the_same_run(
    served: ThreadedServer, client: openai.OpenAI
) -> None:
    found = []
    for shade in (14, 14, 15):
        messages = [{"role": "user", "content": [image(build_png(shade))]}]
        response = served.client.post(
            "/v1/chat/completions",
            headers={**served.bearer("ada", *SCOPES), "Idempotency-Key": "picture"},
            json={"model": "seeing", "messages": messages},
        )
        found.append((response.status_code, response.headers.get("X-Run-ID")))
    first, again, other = found
    assert (first[0], again) == (200, first)
    assert (other[0] >= 400, other[1]) == (True, None), other


def test_page_of_ag_ui_sends_a_picture(
    served: ThreadedServer, model_endpoint: ModelEndpoint
) -> None:
    data = base64.b64encode(build_png(16)).decode()
    content = [
        {"type": "text", "text": "look"},
        {"type": "image", "source": {"type": "data", "value": data, "mimeType": "image/png"}},
        {
            "type": "binary",
            "mimeType": "application/pdf",
            "filename": "paper.pdf",
            "data": base64.b64encode(PDF).decode(),
        },
    ]
    body = {
        "threadId": "pictures-agui",
        "runId": "r1",
        "state": {},
        "tools": [],
        "context": [],
        "messages": [{"id": "m1", "role": "user", "content": content}],
        "forwardedProps": {},
    }
    headers = served.bearer("ada", *SCOPES)
    response = served.client.post("/agui/agents/seeing", headers=headers, json=body)
    assert '"RUN_FINISHED"' in response.text, response.text
    assert list_sent(model_endpoint) == [[image(build_png(16)), DOCUMENT]]


def test_chat_of_the_ai_sdk_sends_a_picture(
    served: ThreadedServer, model_endpoint: ModelEndpoint
) -> None:
    parts = [
        {"type": "text", "text": "look"},
        {"type": "file", "mediaType": "image/png", "url": as_url(build_png(17), "image/png")},
    ]
    body = {
        "id": "pictures-ai",
        "trigger": "submit-message",
        "messages": [{"id": "m1", "role": "user", "parts": parts}],
    }
    headers = served.bearer("ada", *SCOPES)
    response = served.client.post("/ai/agents/seeing", headers=headers, json=body)
    assert '"finish"' in response.text, response.text
    assert list_sent(model_endpoint) == [[image(build_png(17))]]


@AGENTS
def test_pictures_need_no_text(
    served: ThreadedServer, model_endpoint: ModelEndpoint, agent: str
) -> None:
    headers = served.bearer("ada", *SCOPES)
    data = build_png(19)
    source = {"type": "data", "value": base64.b64encode(data).decode(), "mimeType": "image/png"}
    agui = {
        "threadId": f"textless-{agent}",
        "runId": "r1",
        "state": {},
        "tools": [],
        "context": [],
        "messages": [{"id": "m", "role": "user", "content": [{"type": "image", "source": source}]}],
        "forwardedProps": {},
    }
    file = {"type": "file", "mediaType": "image/png", "url": as_url(data, "image/png")}
    ai_sdk = {
        "id": f"textless-ai-{agent}",
        "trigger": "submit-message",
        "messages": [{"id": "m1", "role": "user", "parts": [file]}],
    }
    chat = {"model": agent, "messages": [{"role": "user", "content": [image(data)]}]}
    requests = {
        f"/agui/agents/{agent}": agui,
        f"/ai/agents/{agent}": ai_sdk,
        "/v1/chat/completions": chat,
    }
    for path, body in requests.items():
        response = served.client.post(path, headers=headers, json=body)
        assert response.status_code == 200, response.text
        assert model_endpoint.requests("history")[-1]["messages"][-1]["content"] == [image(data)]
    for fields in ({}, {"message": ""}):
        response = served.client.post(
            f"/agents/{agent}/runs",
            headers=headers,
            data={"stream": "false", **fields},
            files=[("images", ("dot.png", io.BytesIO(data), "image/png"))],
        )
        assert response.json().get("status") == "COMPLETED", response.text
        assert list_sent(model_endpoint) == [[image(data)]]


@AGENTS
def test_form_of_agentos_has_files_and_its_record_links_to_them(
    served: ThreadedServer, model_endpoint: ModelEndpoint, agent: str
) -> None:
    headers = served.bearer("ada", *SCOPES)
    picture = {"content": base64.b64encode(build_png(18)).decode(), "mime_type": "image/png"}
    response = served.client.post(
        f"/agents/{agent}/runs",
        headers=headers,
        data={"message": "look", "stream": "false", "images": json.dumps([picture])},
        files=[("files", ("paper.pdf", io.BytesIO(PDF), "application/pdf"))],
    )
    assert response.status_code == 200, response.text
    assert list_sent(model_endpoint) == [[DOCUMENT, image(build_png(18))]]

    given = response.json()["input"]
    (document,) = given["files"]
    assert (document["filename"], document["mime_type"]) == ("paper.pdf", "application/pdf")
    assert served.client.get(document["url"], headers=headers).content == PDF
    other = document["url"].replace(response.json()["session_id"], "another")
    assert served.client.get(other, headers=headers).status_code == 404
    stranger = served.client.get(document["url"], headers=served.bearer("eve", *SCOPES))
    assert stranger.status_code == 404

    refused = served.client.post(
        f"/agents/{agent}/runs",
        headers=headers,
        data={"message": "look", "stream": "false"},
        files=[("videos", ("film.mp4", io.BytesIO(b"x"), "video/mp4"))],
    )
    assert refused.status_code == 422
    assert "videos is not supported" in refused.text


def test_form_that_continues_a_run_takes_no_files(served: ThreadedServer) -> None:
    headers = served.bearer("ada", *SCOPES)
    form = {"message": "hello", "stream": "false"}
    run = served.client.post("/agents/seeing/runs", headers=headers, data=form).json()
    path = f"/agents/seeing/runs/{run['run_id']}/continue"
    given = {"session_id": run["session_id"], "files": "an-id"}
    refused = served.client.post(path, headers=headers, data=given)
    assert refused.status_code == 422
    assert "only the start of a run takes files" in refused.text
