"""A stub of a model provider whose answers take steps, in a thread of the tests.

A message `work N ID` is answered with N calls of the tool `add`, one after the other, and then with
a text. Other messages of the user change nothing of that: they are steered messages, or the message
of a later run of the session, which gets the final answer at once. While `hold` is set, an answer
waits; `release` lets some of them go. The log has every request with its messages.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.kit.model_server import Body, Disconnected, EndpointServer, ModelHandler

_WORK = re.compile(r"work (\d+) (\S+)")


@dataclass
class SteppedRequest:
    """One request, and whether its answer was sent whole."""

    body: Body

    is_answered: bool = False

    texts: list[str] = field(default_factory=list)
    """The texts of the user in it, oldest first."""

    @property
    def last_roles(self) -> tuple[str, ...]:
        return tuple(message["role"] for message in self.body["messages"])


class SteppingModels(EndpointServer):
    """A running stub.

    Attributes:
        requests: the log, in the order of arrival.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _SteppingHandler)
        self.requests: list[SteppedRequest] = []
        self._permits = threading.Semaphore(0)
        self._is_holding = False

    @property
    def url(self) -> str:
        """The `base_url` of a model."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def hold(self) -> None:
        """Let answers wait for `release` from now on."""
        self._is_holding = True

    def release(self, count: int = 1) -> None:
        """Let some of the answers that wait, or the next ones, go."""
        for _ in range(count):
            self._permits.release()

    def let_go(self) -> None:
        """Hold no answers any more."""
        self._is_holding = False
        self.release(100)

    def wait_for_permit(self, handler: _SteppingHandler) -> None:
        while self._is_holding and not self._permits.acquire(blocking=False):
            handler._pause(0.002)


class _SteppingHandler(ModelHandler):
    server: SteppingModels  # type: ignore[assignment]

    def do_POST(self) -> None:  # noqa: N802
        body: Body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        texts = [_read_text(m) for m in body["messages"] if m["role"] == "user"]
        request = SteppedRequest(body, texts=texts)
        self.server.requests.append(request)
        try:
            self.server.wait_for_permit(self)
            self._message(body, _answer(body, len(self.server.requests)))
            request.is_answered = True
        except (Disconnected, OSError):
            self.close_connection = True


def _read_text(message: Body) -> str:
    content = message["content"]
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return str(content)


def _answer(body: Body, number: int) -> Body:
    messages = body["messages"]
    start = 0
    steps = 0
    for index, message in enumerate(messages):
        found = _WORK.search(_read_text(message)) if message["role"] == "user" else None
        if found is not None:
            start = index
            steps = int(found[1])

    taken = sum(bool(message.get("tool_calls")) for message in messages[start:])
    if taken >= steps:
        heard = [_read_text(m) for m in messages[start:] if m["role"] == "user"]
        return {"role": "assistant", "content": f"done after {' | '.join(heard)}"}
    function = {"name": "add", "arguments": json.dumps({"a": taken, "b": 1})}
    call: dict[str, Any] = {"id": f"call_{number}_{taken}", "type": "function"}
    return {"role": "assistant", "content": None, "tool_calls": [{**call, "function": function}]}


@contextmanager
def serve_stepping_models() -> Iterator[SteppingModels]:
    """Serve a stub until the end of the block."""
    models = SteppingModels()
    thread = threading.Thread(target=models.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield models
    finally:
        models.let_go()
        models.shutdown()
        thread.join()
        models.server_close()
