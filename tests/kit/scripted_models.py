"""A stub of model providers that follows a script, in a thread of the tests.

The name of the model is a role, such as `trip` or `trip/hotels`. The script of a role is the list
of its answers in the order of its calls; a script by text chooses the list whose key occurs in the
last message. Models without a script use that of the role `*`. An answer is a text, a list
of calls `(tool, arguments)`, or the HTTP status of a failure.

The stub serves OpenAI's chat completions and responses (streamed and plain), Anthropic's messages
and the interface of Gemini (streamed).
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kit.model_server import Body, Disconnected, EndpointServer, ModelHandler, count_usage
from tests.kit.scripted_responses import build_response, count_words, encode_event, list_events
from tests.kit.vendor_server import Anthropic, Gemini, Vendor, VendorAnswer

Answer = int | str | Sequence[tuple[str, Mapping[str, Any]]]
Answers = Sequence[Answer]
Script = Mapping[str, Answers | Mapping[str, Answers]]

_GEMINI = re.compile(r"/v1beta/models/([^:]+):")


@dataclass
class ModelCall:
    """One request of a run, and what it got."""

    role: str
    number: int
    body: Body
    answer: Answer
    message: Body
    state: str = "open"  # then `answered`, `refused` or `disconnected`
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """The tool calls of the answer."""
        return [] if isinstance(self.answer, int | str) else [(n, dict(a)) for n, a in self.answer]

    @property
    def text(self) -> str:
        """The text of the answer."""
        return self.answer if isinstance(self.answer, str) else ""


class ScriptedModels(EndpointServer):
    """A running stub. Calls of a role with the number in `hold` hang; those of `refuse` fail.

    Attributes:
        script: the answers of the next run, set by `begin`.
        hold: role and number (from 0) of the call that hangs after the first word of a text.
        refuse: role, number and HTTP status of the call that fails.
        calls: the requests since `begin`, in the order of their arrival.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _ScriptedHandler)
        self.lock = threading.Lock()
        self.numbers = itertools.count()
        self.begin({})

    @property
    def url(self) -> str:
        """The URL without a path."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def begin(
        self,
        script: Script,
        hold: tuple[str, int] | None = None,
        refuse: tuple[str, int, int] | None = None,
    ) -> None:
        """Forget all calls and start a script from its first answers."""
        with self.lock:
            self.script = script
            self.hold = hold
            self.refuse = refuse
            self.calls: list[ModelCall] = []
            self.counts = Counter[str]()

    def release(self) -> None:
        """Close the connections of calls that hang."""
        self.hold = None

    def open_calls(self) -> list[ModelCall]:
        """Return the calls whose connection is open."""
        return [call for call in self.calls if call.state == "open"]

    def choose(self, body: Body) -> ModelCall:
        """Record a request and choose its answer."""
        role = body["model"]
        with self.lock:
            answers = self.script[role] if role in self.script else self.script["*"]
            key = role
            if isinstance(answers, Mapping):
                last = json.dumps((body.get("messages") or body["input"])[-1])
                key = next(text for text in answers if text in last)
                answers = answers[key]
            number = self.counts[key]
            order = self.counts[role + "#"]
            self.counts[key] += 1
            self.counts[role + "#"] += 1
            answer = answers[number] if number < len(answers) else f"no answer {number} of {key}"
            call = ModelCall(role, order, body, answer, build_message(answer, next(self.numbers)))
            self.calls.append(call)
            return call


@contextmanager
def serve_models() -> Iterator[ScriptedModels]:
    """Serve a stub until the end of the block."""
    models = ScriptedModels()
    thread = threading.Thread(target=models.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield models
    finally:
        models.shutdown()
        thread.join()
        models.server_close()


@pytest.fixture(scope="session")
def models() -> Iterator[ScriptedModels]:
    """A stub for all tests of a process; a test sets its script with `begin`."""
    with serve_models() as served:
        yield served


class _ScriptedHandler(ModelHandler):
    server: ScriptedModels  # type: ignore[assignment]

    def do_POST(self) -> None:  # noqa: N802
        body: Body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if found := _GEMINI.match(self.path):
            body |= {"model": found[1], "messages": body["contents"]}
        call = self.server.choose(body)
        refuse = self.server.refuse
        state = "answered"
        try:
            if refuse is not None and refuse[:2] == (call.role, call.number):
                state = "refused"
                self._refuse(refuse[2])
            elif self.server.hold == (call.role, call.number):
                self._hold(call)
            elif isinstance(call.answer, int):
                state = "refused"
                self._refuse(call.answer)
            elif self.path.startswith("/v1/messages"):
                self._stream(call, Anthropic())
            elif _GEMINI.match(self.path):
                self._stream(call, Gemini())
            elif self.path.startswith("/v1/responses"):
                self._respond(call)
            else:
                usage = count_usage(body, call.message)
                call.input_tokens = usage["prompt_tokens"]
                call.output_tokens = usage["completion_tokens"]
                self._message(body, call.message)
        except (Disconnected, OSError):
            state = "disconnected"
            self.close_connection = True
        finally:
            call.state = state

    def _hold(self, call: ModelCall) -> None:
        if call.text and call.body.get("stream") and "completions" in self.path:
            self._start_stream()
            delta = {"role": "assistant", "content": call.text.split()[0] + " "}
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            head = {"id": "held", "object": "chat.completion.chunk", "created": 1}
            self._event(json.dumps({**head, "model": call.role, "choices": [choice]}))
        while self.server.hold is not None:
            self._pause(0.02)
        raise Disconnected

    def _respond(self, call: ModelCall) -> None:
        call.input_tokens = count_words(call.body)
        call.output_tokens = len(call.text.split()) + len(call.calls)
        tokens = call.input_tokens, call.output_tokens
        response = build_response(call.role, call.message, tokens)
        if not call.body.get("stream"):
            self._send(200, json.dumps(response).encode())
            return
        self._start_stream()
        for event in list_events(response):
            self._chunk(encode_event(event))
        self._chunk(b"")

    def _stream(self, call: ModelCall, vendor: Vendor) -> None:
        made = [(name, json.dumps(arguments)) for name, arguments in call.calls]
        answer = VendorAnswer(call.text, call=made[0] if made else None)
        call.input_tokens = 7
        call.output_tokens = answer.output_tokens
        self._start_stream()
        for event in vendor.events(call.role, answer):
            self._chunk(event)
        self._chunk(b"")


def build_message(answer: Answer, number: int) -> Body:
    if isinstance(answer, int | str):
        return {"role": "assistant", "content": str(answer)}
    calls = [
        {
            "id": f"call_{number}_{index}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for index, (name, arguments) in enumerate(answer)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}
