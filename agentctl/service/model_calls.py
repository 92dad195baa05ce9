"""The model calls of a stored run, and the messages that each of them was sent.

The calls are the spans of the run with the record of their requests. The messages are rebuilt from
this record and from the messages of the session (`runs.log.requests`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any

import orjson

from agentctl.interface.operations.model_calls import ModelCallDetail, ModelCallRecord, SentMessage
from agentctl.records.runs import RunRow
from agentctl.runs.log.requests import NATIVE, OWN, WORDS
from agentctl.runtime.transcript.history import complete_history
from agentctl.runtime.transcript.spans import CALL_PREFIX
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import run_reads

Place = tuple[int, int]
"""The source of a message, and its index there."""

_SOURCES = ("history", "run", "added", "run")

_MESSAGE_FIELDS = ("role", "content", "tool_calls", "tool_call_id", "tool_name")


class StoredCalls:
    """The model calls of one run.

    Args:
        spans: the spans of the run, as its record has them.
        own: its messages.
        requests: the record of its requests, empty if there is none.
    """

    def __init__(
        self,
        spans: Sequence[Mapping[str, Any]],
        own: Sequence[Mapping[str, Any]],
        requests: Mapping[str, Any],
    ) -> None:
        self._own = own
        self._system = (OWN, 0) if own and own[0]["role"] == "system" else None
        self._spans = {span["id"]: span for span in spans if span["kind"] == "model"}
        self._models: Mapping[str, Sequence[str]] = requests.get("models", {})
        calls: Mapping[str, Mapping[str, Any]] = requests.get("calls", {})
        self._calls = {f"{CALL_PREFIX}{number}": call for number, call in calls.items()}
        self._words: Sequence[Mapping[str, Any]] = requests.get("words", ())
        self.runs: Sequence[int] = requests.get("runs", ())
        self._empty = {at for at, word in enumerate(self._words) if _is_empty(word)}

    def list_records(self) -> list[ModelCallRecord]:
        """Return the records of all calls, oldest first."""
        sent: dict[str, Mapping[str, Any]] = {}
        now: dict[str, Any] = {"tools": None, "omitted": []}
        for call_id, places in self._replay():
            call = self._calls[call_id]
            now = {name: call.get(name, before) for name, before in now.items()}
            empty = sum(source == WORDS and at in self._empty for source, at in places)
            sent[call_id] = {**now, "count": len(places) - empty}
        ids = sorted(self._spans.keys() | self._calls.keys(), key=_get_number)
        return [self._build(each, sent.get(each, {})) for each in ids]

    def rebuild(
        self, call_id: str, history: Sequence[Mapping[str, Any]]
    ) -> list[SentMessage] | None:
        """Return the messages of a call in their order; None if they are not recorded.

        Args:
            history: the completed messages of the earlier runs that exist, up to the first deleted.
        """
        places = next((found for each, found in self._replay() if each == call_id), None)
        if places is None:
            return None
        sources = history, self._own, self._words, self._own
        built = [_build_message(sources, source, at) for source, at in places]
        return [message for message in built if not _is_empty(message)]

    def _build(self, call_id: str, sent: Mapping[str, Any]) -> ModelCallRecord:
        span, call = self._spans.get(call_id, {}), self._calls.get(call_id, {})
        model = span.get("name")
        provider, requested = self._models.get(model or "", (None, None))
        return {
            "id": call_id,
            "model": model,
            "provider": provider,
            "requested_model": requested,
            "response_model": call.get("model"),
            "response_id": call.get("id"),
            "attempt": call.get("attempt", 1),
            "is_fallback": "fallback" in call,
            "error_code": call.get("error"),
            "finish_reason": call.get("end"),
            "status": span.get("status"),
            "started_at": span.get("started_at"),
            "first_token_at": span.get("first_token_at"),
            "finished_at": span.get("finished_at"),
            "input_tokens": span.get("input_tokens"),
            "output_tokens": span.get("output_tokens"),
            "message_count": sent.get("count"),
            "characters": call.get("size"),
            "tools": sent.get("tools"),
            "omissions": sent.get("omitted", []),
        }

    def _replay(self) -> Iterator[tuple[str, list[Place]]]:
        """Yield the places of the messages of each recorded request."""
        places: list[Place] = []
        for call_id, call in self._calls.items():
            if (sent := call.get("sent")) is None:
                continue
            numbers = iter(sent[1:])
            places = places[: sent[0]]
            for source, first, end in zip(numbers, numbers, numbers, strict=True):
                places += [(source, at) for at in range(first, end)]
            system = call.get("system", self._system)
            yield call_id, [*([] if system is None else [(system[0], system[1])]), *places]


def _get_number(call_id: str) -> int:
    return int(call_id.removeprefix(CALL_PREFIX))


def _is_empty(message: Mapping[str, Any]) -> bool:
    """Return True for an answer without text and calls, which no provider is sent."""
    is_answer = message["role"] == "assistant" and message["content"] == ""
    return is_answer and not message.get("tool_calls")


def _build_message(sources: Sequence[Sequence[Mapping[str, Any]]], source: int, at: int) -> Any:
    found = next(islice(sources[source], at, None), None)
    if found is None:
        return {"role": "user", "content": None, "source": _SOURCES[source], "missing": "deleted"}
    message = {name: found[name] for name in _MESSAGE_FIELDS if name in found}
    if "after" in found:
        message["content"] = sources[1][found["after"]]["content"] + found["content"]
    if message["content"] is None:
        message["missing"] = "too_large"
    return {**message, "source": _SOURCES[source], **({"native": True} if source == NATIVE else {})}


@unit
def read_model_calls(row: RunRow) -> Steps[StoredCalls]:
    """Read the model calls of a run that has ended or is paused."""
    stored = yield from run_reads.get_requests(row.run_id)
    texts = row.spans or "[]", row.messages or "[]", stored or "{}"
    return StoredCalls(*map(orjson.loads, texts))


@unit
def read_model_call(row: RunRow, call_id: str) -> Steps[ModelCallDetail | None]:
    """Read a model call with its messages; None if the run has none with the id."""
    calls = yield from read_model_calls(row)
    record = next((each for each in calls.list_records() if each["id"] == call_id), None)
    if record is None:
        return None
    history = yield from _read_history(row, calls.runs)
    messages = calls.rebuild(call_id, history)
    size = sum(len(message["content"] or "") for message in messages or ())
    is_whole = not any("missing" in message for message in messages or ())
    is_complete = is_whole and size == record["characters"]
    return {
        **record,
        "run_id": row.run_id,
        "state": "unknown" if messages is None else "complete" if is_complete else "incomplete",
        "messages": messages or [],
    }


@unit
def _read_history(row: RunRow, numbers: Sequence[int]) -> Steps[list[Mapping[str, Any]]]:
    """Read the messages of earlier runs of a session, up to the first run that is deleted."""
    if not numbers:
        return []
    first, last = numbers[0], numbers[-1]
    stored = yield from run_reads.list_messages(row.session_id, first, last)
    found = dict(stored)
    kept = takewhile(found.__contains__, numbers)
    return [each for number in kept for each in complete_history(orjson.loads(found[number]))]
