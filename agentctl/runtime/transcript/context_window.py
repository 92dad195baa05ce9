"""The messages of a model call that fit into the context window of its model.

The stored messages of a run and of its session stay whole. What a call shows of them is determined
by a `Compaction`, which is a few numbers: the shown messages are a pure function of all messages
and of these. `fit_messages` raises the numbers as far as the window requires, in this order:

1. Files of earlier messages become one line each.
2. Results of tools before the last answer become one line with their size and number.
3. The oldest runs of the session are left out. The session's summary takes their place.
4. The oldest answers of the current run are left out, with the results of their calls.
5. The newest results of tools are cut.

The numbers only grow in a run, so that the beginning of a request stays the same from call to call,
and a run sends the same in another process. Never left out: the current
message, and the last answer with all of its calls. A call and its result are shown together or not
at all (docs/models.md "Context window").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import orjson

from agentctl.records.events import OmissionKind
from agentctl.runtime.files import (
    MessageFile,
    find_files_start,
    get_reference,
    leave_out_files_of,
    measure_file,
)

Message = Mapping[str, Any]

BYTES_PER_TOKEN = 3.0
"""Estimate before a model has reported the tokens of a large call: less than English text has."""

FULL = 0.8
"""Share of the window from which on messages are left out."""

EMPTIED = 0.6
"""Share of the window that remains used: messages are left out until it is reached, so that the
next calls leave out nothing more."""

CERTAIN = 2
"""Factor by which an estimate must exceed the window before a call is refused without a request."""

_CALIBRATING_BYTES = 8_000
"""Size of a call from which the reported tokens are a measure of its text."""

_MESSAGE_BYTES = 16
"""Estimate of what a provider adds to each message."""

LINE_BYTES = 160
"""Maximum size of the line in place of a result; a result that is not larger is shown whole."""

_SMALLEST_RESULT = 400
"""Bytes of a cut result."""

READ_RESULT = "read_tool_result"
"""The tool that reads a result."""

Reading = Literal["number", "id"]
"""The argument of that tool: the index of the message, or the id of the call."""

PAGE_CHARACTERS = 8_000
"""Maximum characters of a result that one call of that tool returns."""

_ID_BYTES = 40
"""Maximum size of an id in a line: that of OpenAI, and so that a line has `LINE_BYTES`."""


@dataclass(frozen=True, slots=True)
class Omission:
    """A part of the messages that a call does not show whole."""

    kind: OmissionKind
    """`failed_run`: runs that were too large for the window, of which the beginning of the message
    and one line remain; `files`: files of earlier messages; `tool_result`: results that are one
    line, or cut; `runs`: runs of the session that are left out; `turns`: answers of the current run
    that are left out, `summarized`: those of which the instructions have a summary; `damaged_…`:
    stored data that cannot be read (docs/databases.md "Damaged data")."""

    count: int
    """The number of runs, files, results or answers."""

    first: str
    """Id of the first run, file or tool call.

    `""` for messages of the request, and for an answer without calls.
    """

    last: str
    """Id of the last run, file or tool call; `""` as for `first`."""

    size: int
    """Their size in bytes before."""

    def record(self) -> dict[str, Any]:
        """Return the omission as a JSON object."""
        return {name: getattr(self, name) for name in ("kind", "count", "first", "last", "size")}


class Compaction(NamedTuple):
    """The messages that the calls of a run show, and the last report of its model."""

    results_before: int = 0
    """Results of tools before this index are one line."""

    history_before: int = 0
    """Messages before this index are left out; it is at most the index of the current message."""

    turns_before: int = 0
    """Messages after the current message and before this index are left out."""

    summarized_before: int = 0
    """Messages before this index are in the summary of the run."""

    result_bytes: int = 0
    """Maximum size of any other result; 0 for none."""

    maximum_bytes: int = 0
    """Maximum size of a request, learned from a refusal; 0 for none."""

    sent_bytes: int = 0
    """Size of the last call whose tokens the model has reported; 0 before the first report."""

    sent_tokens: int = 0
    """Tokens of this call."""

    files_before: int = 0
    """Files of messages before this index are one line each."""

    @property
    def is_whole(self) -> bool:
        """True if all messages are shown whole, and no bound is known."""
        return not (
            self.files_before
            or self.results_before
            or self.history_before
            or self.turns_before
            or self.result_bytes
            or self.maximum_bytes
        )

    @property
    def _bytes_per_token(self) -> float:
        if self.sent_bytes < _CALIBRATING_BYTES or not self.sent_tokens:
            return BYTES_PER_TOKEN
        return min(max(self.sent_bytes / self.sent_tokens, 1.0), 2 * BYTES_PER_TOKEN)

    def estimate_tokens(self, size: int) -> int:
        """Return the tokens of a request: of the last report, and of the new bytes since then."""
        new_tokens = int((size - self.sent_bytes) / self._bytes_per_token)
        return max(self.sent_tokens + new_tokens, int(size / (2 * BYTES_PER_TOKEN)))

    def find_bytes(self, tokens: float) -> int:
        """Return the size of a request of some estimated tokens."""
        return self.sent_bytes + int((tokens - self.sent_tokens) * self._bytes_per_token)


class FittedMessages(NamedTuple):
    """The messages of one call."""

    messages: Sequence[Message]
    """The messages to send, oldest first."""

    compaction: Compaction
    """The compaction of the call, with which the next call of the run continues."""

    omissions: tuple[Omission, ...]
    """The parts of messages that the call does not show whole."""

    size: int
    """Bytes of the request: of the messages, the instructions and the tools."""

    estimated_tokens: int
    """The tokens of the request."""


class ContextMessages:
    """All messages before the calls of a run, oldest first. Each one is measured once.

    Args:
        messages: the list to which the run adds its messages; it has the message of the run.
        own: index of the first message of the run itself; those before it are history.
        runs: the index of the first message and the id of each run of the history, in order; `""`
            for messages of the request.

    Attributes:
        current: index of the message that the run answers: its first one, or the last message of
            the user before it.
        size: bytes of the messages that are measured.
    """

    def __init__(
        self, messages: Sequence[Message], first_own: int = 0, runs: Sequence[tuple[int, str]] = ()
    ) -> None:
        self.messages = messages
        self.size = 0
        self.sizes: list[int] = []
        self._has_files = False
        self._runs = runs
        self.begin_run(first_own)

    def begin_run(self, first_own: int) -> None:
        """Set the index of the first message of the run itself."""
        has_prompt = first_own < len(self.messages) and self._is_user(first_own)
        before = filter(self._is_user, range(first_own - 1, -1, -1))
        self.current = first_own if has_prompt else next(before, 0)

    @property
    def last_turn(self) -> int:
        """The index of the last answer, or of the message of the user that follows it."""
        turns = (at for at in range(len(self.messages) - 1, -1, -1) if not self.is_result(at))
        return next(turns, 0)

    def is_result(self, index: int) -> bool:
        return bool(self.messages[index]["role"] == "tool")

    def _is_user(self, index: int) -> bool:
        return bool(self.messages[index]["role"] == "user")

    def measure(self) -> int:
        """Measure the messages that were added since; return the size of all."""
        for message in self.messages[len(self.sizes) :]:
            size = measure_message(message)
            self.sizes.append(size)
            self.size += size
            self._has_files = self._has_files or bool(message.get("files"))
        return self.size

    def measure_shown(self, index: int, compaction: Compaction) -> int:
        """Return the size of a message as a call shows it; 0 if it is left out."""
        size = self.sizes[index]
        bound = compaction.result_bytes
        if index < compaction.history_before or self.current < index < compaction.turns_before:
            return 0
        if index < compaction.files_before and (files := self.messages[index].get("files")):
            return size - sum(map(measure_file, files)) + LINE_BYTES * len(files)
        if not self.is_result(index):
            return size
        if index < compaction.results_before:
            return min(size, LINE_BYTES)
        return min(size, bound + LINE_BYTES) if bound else size

    def measure_all_shown(self, compaction: Compaction) -> int:
        return sum(self.measure_shown(at, compaction) for at in range(len(self.sizes)))

    def list_cut(self, compaction: Compaction) -> list[int]:
        """Return the indexes of the results that a call shows as a line, or cut."""
        shown_sizes = (self.measure_shown(index, compaction) for index in range(len(self.sizes)))
        cut_indexes = (
            index for index, size in enumerate(shown_sizes) if 0 < size < self.sizes[index]
        )

        return [index for index in cut_indexes if self.is_result(index)]

    def find_files_start(self) -> int:
        """Return the index before which files are left out, because they are too large together."""
        return find_files_start(self.messages) if self._has_files else 0

    def list_files(self, compaction: Compaction) -> list[MessageFile]:
        """Return the files of messages that a call shows as lines."""
        line_indexes = range(compaction.history_before, compaction.files_before)
        return [file for index in line_indexes for file in self.messages[index].get("files", ())]

    def list_ends(self, first: int, last: int) -> Iterator[int]:
        """Yield the indexes up to which messages can be left out, from `first` to `last`.

        Messages of the history are left out up to a message of the user, those of the run up to one
        that is no result.
        """
        for index in range(first + 1, last):
            if self._is_user(index) or (index > self.current and not self.is_result(index)):
                yield index
        if last > first:
            yield last

    def find_step_end(self, call_id: str) -> int:
        """Return the index after an answer with a call and after its results; 0 if there is none.

        Only answers after the current message are searched.
        """
        for at in range(len(self.messages) - 1, self.current, -1):
            if any(call["id"] == call_id for call in self.messages[at].get("tool_calls", ())):
                later = range(at + 1, len(self.messages))
                return next((index for index in later if not self.is_result(index)), later.stop)
        return 0

    def list_runs(self, end: int) -> list[str]:
        """Return the ids of the runs of the history whose messages begin before an index."""
        return [run_id for start, run_id in self._runs if start < end]


def measure_message(message: Message) -> int:
    """Return the size of a message in bytes."""
    content = message["content"]
    size = len(content) if content.isascii() else len(content.encode(errors="replace"))
    if calls := message.get("tool_calls"):
        size += len(orjson.dumps(calls))
    if files := message.get("files"):
        size += sum(map(measure_file, files))
    return size + _MESSAGE_BYTES


def fit_messages(
    context: ContextMessages,
    window: int | None,
    compaction: Compaction,
    *,
    other_bytes: int = 0,
    reading: Reading | None = "number",
) -> FittedMessages:
    """Return the messages that a model can take, and what they leave out.

    The cost is one comparison if all messages are far below the window.

    Args:
        window: tokens that the model takes, without its answer; None if it is not known.
        compaction: the compaction of the call before.
        other_bytes: bytes of the instructions and of the tools.
        reading: the argument of the tool that reads a result; None if the model has no such tool.
    """
    whole_bytes = context.measure() + other_bytes

    files_start = min(context.find_files_start(), context.current)
    if files_start > compaction.files_before:
        compaction = compaction._replace(files_before=files_start)

    # A token has at least one byte.
    if compaction.is_whole and (window is None or whole_bytes <= window * FULL):
        tokens = compaction.estimate_tokens(whole_bytes)
        return FittedMessages(context.messages, compaction, (), whole_bytes, tokens)

    shown_bytes = context.measure_all_shown(compaction) + other_bytes

    is_full = bool(compaction.maximum_bytes) and shown_bytes > compaction.maximum_bytes
    target = compaction.maximum_bytes

    if window is not None and compaction.estimate_tokens(shown_bytes) > window * FULL:
        is_full = True
        emptied_bytes = compaction.find_bytes(window * EMPTIED)
        target = min(target, emptied_bytes) if target else emptied_bytes

    if is_full:
        compaction = _reduce(context, compaction, shown_bytes - target)
        shown_bytes = context.measure_all_shown(compaction) + other_bytes

    return FittedMessages(
        _show_messages(context, compaction, reading),
        compaction,
        _list_omissions(context, compaction),
        shown_bytes,
        compaction.estimate_tokens(shown_bytes),
    )


def keep_report(compaction: Compaction, sent_bytes: int, sent_tokens: int) -> Compaction:
    """Return the compaction after a call with the reported tokens; 0 if none were reported."""
    if compaction.maximum_bytes and sent_bytes > compaction.maximum_bytes:
        compaction = compaction._replace(maximum_bytes=sent_bytes)

    return (
        compaction._replace(sent_bytes=sent_bytes, sent_tokens=sent_tokens)
        if sent_tokens
        else compaction
    )


def find_report(messages: Sequence[Message], model: str) -> tuple[int, int]:
    """Return the bytes and the tokens of the last call for earlier messages; zeros if not known.

    Only the same model counts the same tokens.
    """
    answers = (message for message in reversed(messages) if message["role"] == "assistant")
    last_answer = next(answers, {})

    metrics = last_answer.get("metrics")
    sent_bytes = last_answer.get("sent_bytes")
    tokens = metrics.get("input_tokens") if isinstance(metrics, dict) else None

    if (
        last_answer.get("model") == model
        and isinstance(sent_bytes, int)
        and isinstance(tokens, int)
    ):
        # A token has at least one byte.
        return (sent_bytes, tokens) if 0 < tokens <= sent_bytes else (0, 0)
    return 0, 0


def _reduce(context: ContextMessages, compaction: Compaction, excess: int) -> Compaction:
    """Leave out a number of bytes, or all that can be left out."""
    last_turn = context.last_turn
    for name, first, last in (
        ("files_before", compaction.files_before, context.current),
        ("results_before", compaction.results_before, last_turn),
    ):
        for index in range(first, last):
            if excess <= 0:
                return compaction

            before = context.measure_shown(index, compaction)
            compaction = compaction._replace(**{name: index + 1})
            excess -= before - context.measure_shown(index, compaction)

    for name, first, last in (
        ("history_before", compaction.history_before, context.current),
        ("turns_before", max(compaction.turns_before, context.current + 1), last_turn),
    ):
        for end in context.list_ends(first, last):
            if excess <= 0:
                return compaction
            excess -= sum(context.measure_shown(at, compaction) for at in range(first, end))
            compaction = compaction._replace(**{name: end})
            first = end

    results = [at for at in range(last_turn, len(context.messages)) if context.is_result(at)]
    if excess > 0 and results:
        room = sum(context.measure_shown(at, compaction) for at in results) - excess
        bound = max(room // len(results) - LINE_BYTES, _SMALLEST_RESULT)
        bound = min(bound, compaction.result_bytes or bound)
        compaction = compaction._replace(result_bytes=bound)

    return compaction


def _show_messages(
    context: ContextMessages, compaction: Compaction, reading: Reading | None
) -> list[Message]:
    shown_messages: list[Message] = []
    cut_indexes = {*context.list_cut(compaction)}
    call_ids = (
        message["tool_call_id"] for message in context.messages if message["role"] == "tool"
    )
    readable = find_readable(call_ids) if reading == "id" else ()

    for index, message in enumerate(context.messages):
        if index < compaction.files_before and message.get("files"):
            message = leave_out_files_of(message)

        if index in cut_indexes:
            bound = 0 if index < compaction.results_before else compaction.result_bytes
            place = f"number {index}" if reading == "number" else None
            if (call_id := message["tool_call_id"]) in readable:
                place = f"id {call_id}"
            message = {**message, "content": cut_result(message["content"], index, bound, place)}

        if index in cut_indexes or context.measure_shown(index, compaction):
            shown_messages.append(message)

    return shown_messages


def find_readable(call_ids: Iterable[str]) -> set[str]:
    """Return the ids by which a result can be read: a line has room for them, and none is twice."""
    counts = Counter(call_ids)
    id_sizes = ((call_id, len(call_id.encode(errors="replace"))) for call_id in counts)
    return {call_id for call_id, size in id_sizes if counts[call_id] == 1 and 0 < size <= _ID_BYTES}


def offers_reading(name: str, parameters: Mapping[str, Any]) -> bool:
    """Return True if a tool reads results by their ids, as `agentctl.read_tool_result`."""
    return name == READ_RESULT and "id" in parameters.get("properties", ())


def cut_result(text: str, number: int, bound: int, place: str | None) -> str:
    """Return the beginning of a result, and a line about the rest.

    Args:
        number: its index in the messages.
        bound: maximum bytes of the beginning; 0 for the line alone.
        place: the argument with which the model can read it; None if it cannot.
    """
    head = text.encode(errors="replace")[:bound].decode(errors="ignore")

    subject = f"Result {number}" if not head else f"{len(head)} characters of result {number}"
    verb = "are shown" if head else "is left out"
    line = f"[{subject} {verb}: it has {len(text)} characters."

    if place is not None:
        line += f" Read it with {READ_RESULT}, {place}, offset {len(head)}."

    return f"{head}\n{line}]" if head else f"{line}]"


def read_page(text: str, offset: int, characters: int = PAGE_CHARACTERS) -> str:
    """Return a part of a result, with a line about its place."""
    page = text[offset : offset + characters]
    return f"[Characters {offset} to {offset + len(page)} of {len(text)}]\n{page}"


def _list_omissions(context: ContextMessages, compaction: Compaction) -> tuple[Omission, ...]:
    """Return what a compaction leaves out of the messages, one entry for each kind."""
    omissions: list[Omission] = []

    if files := context.list_files(compaction):
        ids = [get_reference(files[at]).file_id for at in (0, -1)]
        size = sum(get_reference(file).size for file in files)
        omissions.append(Omission("files", len(files), ids[0], ids[1], size))

    if cut := context.list_cut(compaction):
        ids = [str(context.messages[at]["tool_call_id"]) for at in (cut[0], cut[-1])]
        size = sum(context.sizes[at] for at in cut)
        omissions.append(Omission("tool_result", len(cut), ids[0], ids[1], size))

    if end := compaction.history_before:
        runs = context.list_runs(end) or [""]
        omissions.append(Omission("runs", len(runs), runs[0], runs[-1], sum(context.sizes[:end])))

    start = context.current + 1
    middle = min(max(compaction.summarized_before, start), max(compaction.turns_before, start))

    parts: tuple[tuple[OmissionKind, int, int], ...] = (
        ("summarized", start, middle),
        ("turns", middle, compaction.turns_before),
    )

    for kind, first, end in parts:
        turns = [message for message in context.messages[first:end] if message["role"] != "tool"]
        calls = [call["id"] for turn in turns for call in turn.get("tool_calls", ())] or [""]
        if turns:
            size = sum(context.sizes[first:end])
            omissions.append(Omission(kind, len(turns), calls[0], calls[-1], size))

    return tuple(omissions)
