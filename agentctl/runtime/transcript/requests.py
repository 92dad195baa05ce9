"""The record of the requests of a run to its models.

A request is the list of messages that a model was sent. A message that the database has already is
a reference: to the history, which are the messages of earlier runs of the session, or to a message
of the run itself. Every other message is one of the words of the record, which are stored once
(decision 144).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import islice, takewhile
from typing import Any

import orjson

from agentctl.records.items import CANCELLED_RESULT
from agentctl.records.text import read_name
from agentctl.runtime.files import get_reference, list_references
from agentctl.runtime.tracing import CALL_PREFIX, Span
from agentctl.runtime.transcript.context_window import Message
from agentctl.runtime.transcript.history import complete_history

MAXIMUM_REQUESTS = 1_000
"""Maximum number of recorded requests of a run; further requests are not recorded."""

MAXIMUM_WORDS = 262_144
"""Maximum characters of the words of a run; of further words only the length is stored."""

HISTORY, OWN, WORDS, NATIVE = range(4)
"""The sources of messages. A native message is one of the run that was sent in the form of its
provider, which may have data that the neutral form lacks, such as signed thinking."""

_FIELDS = ("role", "content", "tool_calls", "tool_call_id", "tool_name")


class Requests:
    """The requests of one run as JSON values, with what their models have reported.

    `sent` of a request begins with the number of messages that it has in common with the request
    before. For each range of further messages follow its source, its begin and its end. `system` is
    the place of the instructions, if the run has other instructions. A request has `tools`
    and `omitted` only if they differ from the request before.

    Attributes:
        left_out: results of tools that requests of the code of the run do not show whole, by the
            ids of their calls: the text and the characters of a page. They are not stored.
    """

    def __init__(self, stored: Mapping[str, Any] | None = None) -> None:
        self.left_out: dict[str, tuple[str, int]] = {}

        self._calls: dict[str, dict[str, Any]] = {}
        self._words: list[dict[str, Any]] = []
        self._models: dict[str, Sequence[str]] = {}
        self._runs: Sequence[int] = ()
        self._has_begun = False
        self._room = MAXIMUM_WORDS

        # Of the request before, in this leg.
        self._sent: list[Message] = []
        self._size = 0
        self._tools: tuple[Sequence[Mapping[str, Any]], str | None] = (), None

        # Those of the calls of the component, and those that the last record states.
        self._omitted: Sequence[Mapping[str, Any]] = []
        self._stated: Sequence[Mapping[str, Any]] = []

        # Messages are found by their identity, or by their content.
        self._history: list[Message] = []
        self._places: dict[int, int] = {}
        self._keys: dict[object, tuple[int, int]] = {}
        self._indexed = 0

        if stored:
            self.extend(stored)

    def mark(self) -> tuple[int, int]:
        return len(self._calls), len(self._words)

    def since(self, mark: tuple[int, int] = (0, 0)) -> dict[str, Any]:
        """Return the additions after a mark as a JSON object."""
        record = {
            "calls": dict(islice(self._calls.items(), mark[0], None)),
            "models": self._models,
            "words": self._words[mark[1] :],
            "runs": self._runs,
        }
        return {name: value for name, value in record.items() if value}

    def extend(self, changes: Mapping[str, Any]) -> None:
        """Add what `since` has returned, and continue with its room and its omissions."""
        self._calls |= changes.get("calls", {})
        self._words += changes.get("words", ())
        self._models |= changes.get("models", {})
        self._runs = changes.get("runs", self._runs)

        self._room = MAXIMUM_WORDS - sum(len(word.get("content") or "") for word in self._words)

        # After a restart the tools are stated again.
        self._tools = (), "" if self._calls else None

        stated_omissions = [call["omitted"] for call in self._calls.values() if "omitted" in call]
        self._omitted = next(filter(None, reversed(stated_omissions)), [])
        self._stated = stated_omissions[-1] if stated_omissions else []

    def begin(self, runs: Sequence[Any], completed: Sequence[Message] | None = None) -> None:
        """Set the earlier runs (`runtime.context.EarlierRun`), with their messages as the component
        sends them, not a library."""
        if self._has_begun and completed is None:
            return

        numbers = [run.seq for run in runs if run.seq is not None]
        self._runs = numbers
        self._has_begun = True

        if completed is not None and len(numbers) == len(runs):
            # The usual case: they are found all at once, without an index.
            self._history = [*completed]
            return

        stored_runs = (run.messages for run in runs if run.seq is not None)
        self._history = [
            message for messages in stored_runs for message in complete_history(messages)
        ]
        self._index_history(converts=completed is None)

    def _index_history(self, *, converts: bool) -> None:
        for at, message in enumerate(self._history):
            self._places[id(message)] = at
            # Each completion of a history has its own results for open calls.
            if converts or message["content"] == CANCELLED_RESULT:
                self._keys[_find_key(message)] = HISTORY, at

    def add(self, attempts: Any, model: Any, call: Any, span: Span | None) -> dict[str, Any]:
        """Add a request before it is sent.

        Args:
            attempts, model: the `Attempts` of the run and its `PreparedModel` (`runtime.models`).
            call: the `ModelCall`.
            span: the span of the call; None if the runner of a library has started one.

        Returns:
            The record of the call, to which its end is added.
        """
        transcript = attempts.transcript
        assert transcript is not None

        own_messages = transcript.messages
        answer = transcript.open_answer
        is_own = answer is not None and span is not None and answer.span is span
        span = span or transcript.spans.find_open_call(model.id)

        if span is None:
            return {}
        if not is_own:
            # A library may replace its answers at the end.
            own_messages = [*takewhile(is_kept, own_messages)]
        record = {**self._describe(call, model, own_messages), **attempts.about}

        if is_own and answer is not None and "compacted" in answer.about_call:
            self._omitted = answer.about_call["compacted"]["omissions"]
        omitted = self._omitted if is_own else []
        if omitted != self._stated:
            self._stated = omitted
            record["omitted"] = omitted

        tool_names = self._name_tools(call.tools)
        if tool_names != self._tools[1]:
            record["tools"] = tool_names
        self._tools = call.tools, tool_names

        self._models.setdefault(model.id, (model.source.provider, model.source.model))
        self._keep_call(span, record)
        return record

    def end(self, record: dict[str, Any], answer: Any, span: Span | None) -> None:
        """Add the `ModelAnswer` of a call to its record and to its span."""
        names = {"model": answer.response_model, "id": answer.response_id}
        values = {"end": answer.finish_reason, **names}
        record |= {name: value for name, value in values.items() if value is not None}
        if span is not None:
            span.response_model = answer.response_model
            span.response_id = answer.response_id

    def report(self, span: Span, model: object, answer_id: object, reason: object) -> None:
        """Add what a library reports about an answer of a model that was not called here."""
        if span.id.removeprefix(CALL_PREFIX) in self._calls:
            return
        span.response_model = read_name(model)
        span.response_id = read_name(answer_id)
        names = {"model": span.response_model, "id": span.response_id, "end": read_name(reason)}
        self._keep_call(span, {name: value for name, value in names.items() if value is not None})

    def _keep_call(self, span: Span, record: dict[str, Any]) -> None:
        if len(self._calls) < MAXIMUM_REQUESTS:
            self._calls[span.id.removeprefix(CALL_PREFIX)] = record

    def _describe(self, call: Any, model: Any, own_messages: Sequence[Message]) -> dict[str, Any]:
        """Return the messages of a request by reference, and their characters."""
        messages = [*call.messages]
        repeated = _count_common(self._sent, messages)
        first = repeated
        sent_ranges = [repeated]

        if not repeated and (history := self._history) and messages[: len(history)] == history:
            first = len(history)
            sent_ranges += [HISTORY, 0, first]

        rest = messages[first:]

        if (
            rest
            and rest == own_messages[-len(rest) :]
            and not any("native" in message for message in rest)
        ):
            # The usual case again.
            sent_ranges += [OWN, len(own_messages) - len(rest), len(own_messages)]
        else:
            self._index_own(own_messages)
            for message in rest:
                source, at = self._find(message)
                native = message.get("native") if source == OWN else None
                is_native = native is not None and native.connection is model.connection
                self._append(sent_ranges, (NATIVE if is_native else source, at))

        is_longer = repeated and repeated == len(self._sent)

        size = sum(len(message["content"]) for message in messages[repeated if is_longer else 0 :])
        self._size = self._size + size if is_longer else size
        self._sent = messages

        record = {"sent": sent_ranges, "size": self._size + len(call.instructions)}

        system = (
            own_messages[0]["content"]
            if own_messages and own_messages[0]["role"] == "system"
            else ""
        )
        if call.instructions != system:
            record["system"] = self._find_system(call.instructions, system)

        return record

    def _index_own(self, own_messages: Sequence[Message]) -> None:
        for index in range(self._indexed, len(own_messages)):
            self._keys[_find_key(own_messages[index])] = OWN, index
        self._indexed = len(own_messages)

    @staticmethod
    def _append(sent_ranges: list[int], place: tuple[int, int]) -> None:
        source, index = place
        if len(sent_ranges) > 1 and sent_ranges[-3] == source and sent_ranges[-1] == index:
            sent_ranges[-1] += 1
        else:
            sent_ranges += [source, index, index + 1]

    def _find(self, message: Message) -> tuple[int, int]:
        key = _find_key(message)
        if (place := self._keys.get(key)) is not None:
            return place

        if self._history and not self._places:
            self._index_history(converts=False)

        if (at := self._places.get(id(message))) is not None:
            return HISTORY, at

        word = {name: message[name] for name in _FIELDS if name in message}
        if files := message.get("files"):
            word["files"] = list_references(files)

        self._keys[key] = self._keep(word)
        return self._keys[key]

    def _find_system(self, instructions: str, beginning: str) -> tuple[int, int] | None:
        """Return the place of instructions that are not the instructions of the run."""
        if not instructions:
            return None
        word: dict[str, Any] = {"role": "system", "content": instructions}
        if beginning and instructions.startswith(beginning):
            word = {**word, "content": instructions[len(beginning) :], "after": 0}
        key = "system", instructions
        self._keys[key] = self._keys.get(key) or self._keep(word)
        return self._keys[key]

    def _keep(self, word: dict[str, Any]) -> tuple[int, int]:
        size = len(word["content"])
        if size > self._room:
            word = {**word, "content": None, "size": size}
        else:
            self._room -= size
        self._words.append(word)
        return WORDS, len(self._words) - 1

    def _name_tools(self, tools: Sequence[Mapping[str, Any]]) -> str | None:
        if tools is self._tools[0]:
            return self._tools[1]
        return hashlib.sha256(orjson.dumps([*tools])).hexdigest()[:16] if tools else None


def _find_key(message: Message) -> object:
    calls = message.get("tool_calls")
    calls_json = orjson.dumps(calls, option=orjson.OPT_SORT_KEYS) if calls else None
    files = tuple(get_reference(file).sha256 for file in message.get("files", ()))
    return message["role"], message["content"], message.get("tool_call_id"), calls_json, files


def _count_common(before: list[Message], messages: list[Message]) -> int:
    """Return the number of equal messages with which two requests begin."""
    if messages[: len(before)] == before:
        return len(before)

    pairs = enumerate(zip(before, messages, strict=False))
    different = (at for at, (earlier, later) in pairs if earlier is not later and earlier != later)
    return next(different, min(len(before), len(messages)))


def is_kept(message: Mapping[str, Any]) -> bool:
    """Return True for a message that no library replaces: it is no answer of the run."""
    return message["role"] in ("system", "user") or "origin_run_id" in message
