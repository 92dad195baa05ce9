"""Requests as Open WebUI sends them (`routers/openai.py`, `routers/tasks.py` of its source)."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from operations import KEY, URL, due, expect, operation, report, wait_for_status

HELLO: Any = [{"role": "user", "content": "hello"}]
CHAT = {
    "X-OpenWebUI-User-Name": "Ada",
    "X-OpenWebUI-User-Id": "u-1",
    "X-OpenWebUI-User-Email": "ada@example.org",
    "X-OpenWebUI-User-Role": "user",
    "X-OpenWebUI-Chat-Id": "chat-1",
}
"""The header fields of ENABLE_FORWARD_USER_INFO_HEADERS."""

TASK = "### Task:\nGenerate a title.\n<chat_history>\nhello\n</chat_history>"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


class Refused(Exception):
    """A response with an error status."""

    def __init__(self, status_code: int, text: str) -> None:
        super().__init__(f"{status_code} {text}")
        self.status_code = status_code


def send(path: str, body: Any = None, key: str = KEY, **headers: str) -> Any:
    request = urllib.request.Request(URL + path, headers={**CHAT, **headers})
    request.add_header("Authorization", f"Bearer {key}")
    if body is not None:
        request.add_header("Content-Type", "application/json")
        request.data = json.dumps(body).encode()
    try:
        return urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        raise Refused(error.code, error.read().decode()) from None


def stream(messages: Any, model: str = "echo", **options: Any) -> Iterator[Any]:
    """Yield the chunks of a chat, in which Open WebUI always streams."""
    body = {"stream": True, "model": model, "messages": messages, **options}
    with send("/chat/completions", body) as response:
        expect(response.headers["Content-Type"].startswith("text/event-stream"))
        for line in response:
            data = line.decode().removeprefix("data:").strip()
            if data.startswith("{"):
                chunk = json.loads(data)
                if "error" in chunk:
                    raise RuntimeError(chunk["error"]["message"])
                yield chunk


def chat(messages: Any = HELLO, model: str = "echo", **options: Any) -> str:
    chunks = stream(messages, model, **options)
    return "".join(
        choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]
    )


def do_task(**options: Any) -> str:
    body = {"model": "echo", "messages": [{"role": "user", "content": TASK}], "stream": False}
    with send("/chat/completions", body | options) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


@operation
def models() -> None:
    with send("/models") as response:
        expect("echo" in [model["id"] for model in json.load(response)["data"]])


@operation
def message() -> None:
    expect(chat() == "hello")


@operation
def message_with_usage() -> None:
    *_, last = stream(HELLO, stream_options={"include_usage": True})
    expect(last["usage"]["total_tokens"] > 0)


@operation
def message_with_a_system_prompt() -> None:
    expect("Be brief." in chat([{"role": "system", "content": "Be brief."}, *HELLO], "history"))


@operation
def second_message() -> None:
    asked = [*HELLO, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "more"}]
    texts = [text for _, text in json.loads(chat(asked, "history"))]
    expect(texts[-3:] == ["hello", "hello", "more"], texts)


@operation
def title() -> None:
    expect(do_task(max_completion_tokens=1000) == TASK)


@operation
def tags() -> None:
    expect(do_task() == TASK)


@operation
def requests_of_one_chat_in_one_session() -> None:
    body = {"stream": True, "model": "echo", "messages": HELLO}
    sessions = set()
    for options in ({}, {"stream": False, "max_completion_tokens": 1000}, {"stream": False}):
        with send("/chat/completions", body | options) as response:
            response.read()
            sessions.add(response.headers["X-Session-ID"])
    expect(len(sessions) == 1, sessions)


@operation
def settings_of_the_chat() -> None:
    expect(chat(temperature=0.7, top_p=0.9, max_tokens=500) == "hello")


@operation
def stop_generating() -> None:
    body = {"stream": True, "model": "trickle", "messages": HELLO}
    response = send("/chat/completions", body, **{"X-Session-ID": "webui-stopped"})
    response.readline()
    response.close()
    wait_for_status("webui-stopped", "CANCELLED")


@operation
def tools_of_the_program() -> None:
    asked: Any = [{"role": "user", "content": 'What is the weather? {"city": "Paris"}'}]
    calls: dict[int, Any] = {}
    for chunk in stream(asked, "weather", tools=[WEATHER]):
        for choice in chunk["choices"]:
            for delta in choice["delta"].get("tool_calls") or []:
                call = calls.setdefault(delta["index"], {**delta, "function": {"arguments": ""}})
                call["function"]["name"] = delta["function"].get("name") or call["function"]["name"]
                call["function"]["arguments"] += delta["function"].get("arguments") or ""
    (call,) = calls.values()
    asked += [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "Sunny in Paris"},
    ]
    expect(chat(asked, "weather", tools=[WEATHER]) == "Sunny in Paris")


@operation
def continue_response() -> None:
    expect(chat([*HELLO, {"role": "assistant", "content": "The answer is"}]))


@operation
def image() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    expect(chat([{"role": "user", "content": [{"type": "text", "text": "What?"}, picture]}]))


@operation
def embeddings() -> None:
    with send("/embeddings", {"model": "echo", "input": ["hello"]}) as response:
        expect(json.load(response)["data"])


@operation
def speech() -> None:
    with send("/audio/speech", {"model": "echo", "input": "hello", "voice": "alloy"}) as response:
        expect(response.read())


@due
def wrong_key() -> None:
    try:
        send("/models", key="sk-wrong")
    except Refused as error:
        expect(error.status_code == 401, error)
    else:
        raise AssertionError("no error")


if __name__ == "__main__":
    report()
