"""The transcript of a run: its text, messages, tool calls and usage so far.

It is filled as data arrives, so that a task that is cancelled at any `await` leaves its partial
text and its usage here. Transcripts, the store and histories share this form of messages:

    {"role": "system" | "user" | "assistant" | "tool", "content": str, "created_at": int seconds,
     "tool_calls"?: [{"id", "name", "arguments": object}], "tool_call_id"?, "tool_name"?,
     "files"?: [references of files], "metrics"?: {nine counters}, "finish_reason"?: str | None,
     "compacted"?: {"omissions", "estimated_tokens", "window", "summary"}, "sent_bytes"?: int}

Assistant messages have `tool_calls`, `metrics` and `finish_reason`; tool messages have
`tool_call_id` and `tool_name`. A message with `origin_run_id` is one of the run that this one
repeats. `runtime.models.conversion` converts them to the form of the model library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any, NamedTuple

import orjson

from agentctl.records import times
from agentctl.records.items import CANCELLED_RESULT
from agentctl.records.run_spec import RunSpec
from agentctl.records.sessions import TOKEN_COUNTERS
from agentctl.runtime.failures import Causes, ExecutionError
from agentctl.runtime.files import build_files
from agentctl.runtime.tracing import MAXIMUM_TOKENS, Span, Spans, bound_count
from agentctl.runtime.transcript.answer import AnswerInProgress, StopTexts
from agentctl.runtime.transcript.history import build_tool_message
from agentctl.runtime.transcript.requests import Requests, is_kept
from agentctl.work.unstopped import UnstoppedWork

_STORED = (
    "tools", "_messages", "_usage", "_usage_of_models", "_knows_usage", "_content", "_reasoning",
    "_unanswered", "output", "runner_kind", "native_kind", "native_history", "progress_events",
)  # fmt: skip
"""The attributes that a checkpoint stores unchanged."""


class TranscriptMark(NamedTuple):
    """A point in the growth of a transcript: the numbers of its parts so far."""

    messages: int = 0
    content: int = 0
    reasoning: int = 0
    spans: int = 0
    tools: int = 0
    requests: tuple[int, int] = (0, 0)


class Transcript:
    """The growing record of one run.

    Args:
        unstopped: unstopped work of the transcript that this one replaces, if any.

    Attributes:
        tools: one entry for each tool call: `tool_call_id`, `tool_name`, `tool_args` (object),
            `tool_call_error` and `result` (both None while the call is open).
        unstopped: tools and other work that did not end when the run was stopped or when the time
            limit of the tool was reached. Their late results are dropped.
        output: the structured result as a JSON value; None without a result.
        runner_kind: the kind of the runner of its run; None if no leg of this release has begun.
        native_kind, native_history: the kind of runner, and its messages as JSON, if any.
        requests: what its models were shown.
        stop: cuts the texts of its answers at its stop texts; None for a run without any.
        size: the bytes of its texts and results, as far as the run counts them.
        left_out: the omissions of stored data that is damaged.
        room: tokens of the context window without an answer; 0 if not known.
        is_full: whether the conversation fills the context window.
        open_answer: the answer that is arriving, if any.
    """

    def __init__(self, unstopped: UnstoppedWork | None = None) -> None:
        self.tools: list[dict[str, Any]] = []
        self.unstopped = unstopped or UnstoppedWork()
        self.output: Any = None
        self.runner_kind: str | None = None
        self.native_kind: str | None = None
        self.native_history: str | None = None

        self.progress_events = 0
        self.spans = Spans()
        self.causes = Causes()
        self.requests = Requests()
        self.stop: StopTexts | None = None
        self.size = 0
        self.left_out: list[dict[str, Any]] = []

        self._messages: list[dict[str, Any]] = []
        self._usage: dict[str, int | None] = dict.fromkeys(TOKEN_COUNTERS, 0)
        self._usage_of_models: dict[str, dict[str, int | None]] = {}
        self._knows_usage = True
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self.open_answer: AnswerInProgress | None = None

        self._open_calls: dict[str, tuple[dict[str, Any], Span]] = {}
        self._unanswered: dict[str, str] = {}
        self._requested: set[str] = set()

        self.room = 0
        self.is_full = False

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All messages so far, including an answer that is still arriving."""
        if self.open_answer is None or self.open_answer.is_empty:
            return [*self._messages]
        return [*self._messages, self.open_answer.message([])]

    @property
    def finish_reason(self) -> str | None:
        """The finish reason of the last complete answer; None if it has none."""
        own_messages = (
            message for message in reversed(self._messages) if "origin_run_id" not in message
        )
        answers = (message for message in own_messages if message["role"] == "assistant")
        return next((answer["finish_reason"] for answer in answers), None)

    @property
    def metrics(self) -> dict[str, int | None]:
        """The nine counters of this run without its members, including the open model call.

        None for a counter that is not known.
        """
        counters = {**self._usage}
        if self.open_answer is not None:
            _add_counts(counters, self.open_answer.usage)
        return counters

    @property
    def model_metrics(self) -> dict[str, dict[str, int | None]] | None:
        """The counters of each model by its name, "" if it is not known; their sum is `metrics`.

        None if all tokens are of the model that was called first.
        """
        if self._usage_of_models.keys() <= {self.spans.first_model}:
            return None
        of_models = {model: dict(usage) for model, usage in self._usage_of_models.items()}
        first = next(iter(of_models.values()))
        for name, count in self.metrics.items():
            rest = (count or 0) - sum(usage[name] or 0 for usage in of_models.values())
            if rest:
                _add_counts(first, {name: rest})
        return of_models

    def measure(self) -> int:
        """Return the bytes that count in `limits.run_bytes`: texts, calls, results and thinking.

        The instructions and the message of the run do not count: they were checked before. Nor does
        an answer that is arriving.
        """
        size = 0
        for text in self._reasoning:
            size += len(text.encode())

        for message in self._messages:
            is_kept = "origin_run_id" in message or "message_id" in message
            if message["role"] in ("assistant", "tool") or is_kept:
                size += len(message["content"].encode())
            if message.get("tool_calls"):
                size += len(orjson.dumps(message["tool_calls"]))
        return size

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with all of the transcript, for a checkpoint.

        An answer that is still arriving is completed first.
        """
        self.end_answer([])
        return {
            **{name.removeprefix("_"): getattr(self, name) for name in _STORED},
            "open_calls": list(self._open_calls),
            "spans": self.spans.to_json(),
            "causes": self.causes,
            "requests": self.requests.since(),
        }

    @classmethod
    def from_json(cls, checkpoint: Mapping[str, Any]) -> Transcript:
        """Return the transcript of a checkpoint, to which the next leg adds."""
        transcript = cls()

        # A checkpoint of an earlier version has no usage by model, and no kind.
        checkpoint = {"usage_of_models": {}, "runner_kind": None, **checkpoint}

        for name in _STORED:
            setattr(transcript, name, copy(checkpoint[name.removeprefix("_")]))

        transcript.spans = Spans.from_json(checkpoint["spans"])
        transcript.causes = Causes(checkpoint.get("causes", ()))
        transcript.requests = Requests(checkpoint.get("requests"))

        for call_id in checkpoint["open_calls"]:
            entry = transcript._find_open_entry(call_id)
            if entry is not None:
                span = transcript.spans.find_open(call_id)
                span = span or transcript.spans.start_tool_call(call_id, entry["tool_name"])
                transcript._open_calls[call_id] = entry, span

        return transcript

    def _find_open_entry(self, call_id: str) -> dict[str, Any] | None:
        """Return the newest entry of a call that has not ended; models may repeat an id."""
        entry: dict[str, Any]
        for entry in reversed(self.tools):
            if entry["tool_call_id"] == call_id and entry["tool_call_error"] is None:
                return entry
        return None

    def mark(self) -> TranscriptMark:
        """Return the present end of the transcript, for `since`."""
        return TranscriptMark(
            len(self._messages),
            len(self._content),
            len(self._reasoning),
            self.spans.count,
            len(self.tools),
            self.requests.mark(),
        )

    def since(self, mark: TranscriptMark, *, results: bool = False) -> dict[str, Any]:
        """Return the additions after a mark as JSON; the results of ended calls on request."""
        messages = self._messages[mark.messages :]
        if not results:
            messages = [message for message in messages if message["role"] != "tool"]

        return {
            "messages": messages,
            "tools": self.tools[mark.tools :] if results else [],
            "content": "".join(self._content[mark.content :]),
            "reasoning": "".join(self._reasoning[mark.reasoning :]),
            "usage": self._usage,
            "usage_of_models": self._usage_of_models,
            "knows_usage": self._knows_usage,
            "progress_events": self.progress_events,
            "spans": self.spans.since(mark.spans, tools=results),
            "requests": self.requests.since(mark.requests),
        }

    def extend(self, additions: Mapping[str, Any]) -> None:
        """Add what `since` has returned; the results of all calls before it are added."""
        self._messages += additions["messages"]

        self.tools += additions.get("tools", ())

        self._content += [additions["content"]] if additions["content"] else []
        self._reasoning += [additions["reasoning"]] if additions["reasoning"] else []

        self._usage = dict(additions["usage"])
        self._knows_usage = additions["knows_usage"]
        self._usage_of_models = dict(additions.get("usage_of_models", {}))
        self.progress_events = additions["progress_events"]

        self.spans.extend(additions["spans"])
        self.requests.extend(additions.get("requests", {}))

        for message in additions["messages"]:
            calls = message.get("tool_calls", ())
            self._unanswered |= {call["id"]: call["name"] for call in calls}
            self._unanswered.pop(message.get("tool_call_id", ""), None)
            self._requested = {call["id"] for call in calls}

    def keep_runner_kind(self, kind: str) -> None:
        """Keep the kind of the runner; raise ExecutionError if the run began with another kind."""
        if self.runner_kind not in (None, kind):
            raise ExecutionError("VERSION_CHANGED")
        self.runner_kind = kind

    def forget_usage(self) -> None:
        """Make all counters unknown, for a runner that may not report them."""
        self._knows_usage = False
        self._usage = dict.fromkeys(TOKEN_COUNTERS, None)

    def add_usage(self, usage: Mapping[str, int], model: str | None = None) -> None:
        """Add to the counters of the run. A counter that is not given is unchanged.

        Args:
            model: the model that used the tokens; None for the one that was called last.
        """
        _add_counts(self._usage, usage)
        # A library reports the usage of a call at its end.
        self._add_usage_of_model(model or self.spans.last_model or "", usage)

    def _add_usage_of_model(self, model: str, usage: Mapping[str, int | None]) -> None:
        total = self._usage_of_models.setdefault(model, dict.fromkeys(TOKEN_COUNTERS))
        _add_counts(total, usage)

    def add_content(self, delta: str) -> None:
        self._content.append(delta)

    @property
    def reasoning_content(self) -> str | None:
        """The text of the thinking so far; None if there is none."""
        return "".join(self._reasoning) or None

    def add_reasoning(self, delta: str) -> None:
        self._reasoning.append(delta)

    def replace_content(self, text: str) -> None:
        self._content = [text]

    def is_open(self, call_id: str) -> bool:
        """Return True if a call has no result so far."""
        return call_id in self._open_calls

    @property
    def open_calls(self) -> dict[str, str]:
        """The names of the calls without a result so far, by their ids."""
        return {call_id: entry["tool_name"] for call_id, (entry, _) in self._open_calls.items()}

    def replace_answers(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Replace everything after the user's message, and the content: a library has the order.

        Args:
            messages: answers (`content`, `tool_calls`, `created_at`) and results (`tool_call_id`,
                `tool_name`, `content`, `created_at`); with `member_run_id` those of a member. One
                with the role `user` is the place of a message of `add_message` (`message_id`).
        """
        self.end_answer([])

        kept_messages = [entry for entry in self._messages if is_kept(entry)]
        sent_messages = {entry.get("message_id"): entry for entry in kept_messages}
        messages = [*messages]
        placed_ids = {message["message_id"] for message in messages if message["role"] == "user"}

        self._messages = [
            entry for entry in kept_messages if entry.get("message_id") not in placed_ids
        ]
        self._unanswered = {}

        for message in messages:
            if message["role"] == "user":
                self._messages.append(sent_messages[message["message_id"]])
                continue

            if message["role"] == "tool":
                self._messages.append(dict(message))
                continue

            calls = message["tool_calls"]
            answer = {
                "role": "assistant",
                "content": message["content"],
                "created_at": message["created_at"],
                "metrics": dict.fromkeys(TOKEN_COUNTERS),
                "finish_reason": "tool_call" if calls else "stop",
                "model": None,
            }

            if "member_run_id" in message:
                answer["member_run_id"] = message["member_run_id"]

            self._messages.append({**answer, "tool_calls": calls} if calls else answer)

    def add_kept(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Add messages that are known already, such as the messages of the origin of a run."""
        self._messages += [dict(message) for message in messages]

    def add_system(self, text: str) -> None:
        self._messages.append(_build_message("system", text))

    def add_user(self, text: str, files: str | None = None) -> None:
        """Add the message of the user, with its files: a JSON array of references."""
        self._messages.append(_build_message("user", text) | build_files(files))
        self.name_left_out()

    def add_question(self, spec: RunSpec) -> None:
        """Add what a run begins with: the messages of the run that it repeats, then its own."""
        origin = spec.origin
        if origin is not None:
            self.add_kept(origin.messages)
        if origin is None or origin.has_prompt:
            self.add_user(spec.input, spec.files)

    def add_message(self, message_id: str, text: str) -> None:
        """Add a message that was sent to the run while it works, after what it has so far.

        An open answer is completed first. A message that is part of the run already is not added.
        """
        if message_id in self.message_ids:
            return
        self.end_answer([])
        self._messages.append(_build_message("user", text) | {"message_id": message_id})

    @property
    def message_ids(self) -> set[str]:
        """The ids of the messages that were sent to the run while it works."""
        return {
            message["message_id"]
            for message in self._messages
            if "message_id" in message and "origin_run_id" not in message
        }

    def name_left_out(self) -> None:
        """Record what the run did not get (`left_out`) with the message that it answers."""
        if not self.left_out:
            return

        for message in self._messages:
            if message["role"] == "user" and "origin_run_id" not in message:
                message["compacted"] = {"omissions": self.left_out}
                return

    def add_answer(self, text: str) -> None:
        """Add an answer that did not come from this run's model; it uses no tokens."""
        self.begin_answer()
        self.extend_answer(text)
        self.end_answer([], "stop")

    def begin_answer(
        self, model: str | None = None, about_call: Mapping[str, Any] = {}
    ) -> Span | None:
        """Start an answer. An open one is completed first, without tool calls.

        Args:
            model: id of the model that answers; None if it is not a model of this run.
            about_call: further members of the message, such as what the call left out.

        Returns:
            The span of the call of the model.
        """
        self.end_answer([])
        span = self.spans.start_model_call(model) if model is not None else None
        self.open_answer = AnswerInProgress(
            model, 0 if self._knows_usage else None, span, about_call
        )
        return span

    def note_call(self, about_call: Mapping[str, Any]) -> None:
        """Add members to the message of the open answer, about its call."""
        if self.open_answer is not None:
            self.open_answer.about_call = {**self.open_answer.about_call, **about_call}

    def extend_answer(self, delta: str) -> None:
        if self.open_answer is not None:
            if not self.open_answer.pieces:
                self.mark_first_token()
            self.open_answer.pieces.append(delta)

    def mark_first_token(self) -> None:
        """Record that a part of the open answer has arrived, such as thinking."""
        if self.open_answer is not None and self.open_answer.span is not None:
            self.open_answer.span.mark_first_token()

    def complete_answer(self) -> None:
        """Record that the open answer has arrived completely; it stays open for its calls."""
        if self.open_answer is not None:
            self.open_answer.finish_reason = "stop"

    def fail_answer(self, code: str) -> None:
        """Record that the model call of the open answer has failed; the answer stays open."""
        if self.open_answer is not None:
            self.open_answer.end_span("failed", code)

    def set_usage(self, usage: Mapping[str, int]) -> None:
        """Set the counters of the open answer to their current values (not a difference)."""
        if self.open_answer is not None:
            self.open_answer.usage = {name: usage.get(name, 0) for name in TOKEN_COUNTERS}

    def end_answer(
        self, tool_calls: list[dict[str, Any]], finish_reason: str | None = None
    ) -> None:
        """Complete the open answer with its tool calls, which may be none.

        Args:
            finish_reason: see docs/contract.md "Run record"; None if the answer is incomplete,
                unless `complete_answer` was called.
        """
        if self.stop is not None:
            self.stop.release()

        answer = self.open_answer
        self.open_answer = None
        if answer is None:
            return

        message = answer.end(tool_calls, finish_reason)

        _add_counts(self._usage, answer.usage)
        if answer.model is not None:
            self._add_usage_of_model(answer.model, answer.usage)

        # A model may repeat the ids of an earlier answer: then the new call is meant.
        self._unanswered |= {call["id"]: call["name"] for call in tool_calls}

        if tool_calls or message["content"]:
            self._messages.append(message)

    def mark_incomplete(self, finish_reason: str) -> None:
        """Set the finish reason of the last answer of a completed run, if it has no calls."""
        own_messages = [message for message in self._messages if "origin_run_id" not in message]

        if (
            own_messages
            and own_messages[-1]["role"] == "assistant"
            and not own_messages[-1].get("tool_calls")
        ):
            own_messages[-1]["finish_reason"] = finish_reason

    def request_call(self, call: dict[str, Any]) -> None:
        """Add a call to the messages: `id`, `name` and `arguments`.

        Calls that are open at the same time are part of one message, unless text came in between.
        A call that `request_calls` has added is there already.
        """
        if call["id"] in self._requested:
            self._requested.discard(call["id"])
            return

        if self.open_answer is not None and not self.open_answer.is_empty:
            self.end_answer([call], "tool_call")
            return

        about_call = self.open_answer.about_call if self.open_answer is not None else {}
        self.end_answer([])

        last = next((entry for entry in reversed(self._messages) if entry["role"] != "tool"), None)
        if last is not None and last.get("tool_calls") and self._unanswered:
            last["tool_calls"].append(call)
            self._unanswered[call["id"]] = call["name"]
            return

        self.begin_answer(about_call=about_call)
        self.end_answer([call], "tool_call")

    def request_calls(self, calls: list[dict[str, Any]]) -> None:
        """Complete the open answer with all of its calls, before they start."""
        if self.open_answer is None:
            self.begin_answer()
        self.end_answer(calls, "tool_call")
        self._requested = {call["id"] for call in calls}

    def open_call(
        self, call_id: str, name: str, arguments: Mapping[str, Any], at: int | None = None
    ) -> dict[str, Any]:
        """Add an entry for a tool call that starts now or started at a time; return a copy."""
        entry = {
            "tool_call_id": call_id,
            "tool_name": name,
            "tool_args": dict(arguments),
            "tool_call_error": None,
            "result": None,
        }

        self.tools.append(entry)
        self._open_calls[call_id] = entry, self.spans.start_tool_call(call_id, name, at)
        return dict(entry)

    def close_call(
        self,
        call_id: str,
        result: str,
        *,
        error: bool,
        at: int | None = None,
        files: str | None = None,
    ) -> dict[str, Any] | None:
        """Add the result of an open call, now or at a time; return a copy of its entry, if any.

        Args:
            files: JSON array of the references of its files; None without files.
        """
        opened = self._open_calls.pop(call_id, None)
        if opened is None:
            return None
        entry, span = opened
        span.end("failed" if error else "completed", at)
        entry.update(tool_call_error=error, result=result)
        created_at = times.now_in_seconds() if at is None else times.whole_seconds(at)
        self.add_result(call_id, result, created_at, files)
        return dict(entry)

    def add_result(
        self, call_id: str, result: str, created_at: int, files: str | None = None
    ) -> None:
        """Add the result of a call of `request_call`, unless it has one, to the messages."""
        name = self._unanswered.pop(call_id, None)
        if name is not None:
            message = build_tool_message(call_id, name, result, created_at)
            self._messages.append(message | build_files(files))

    def close_open_calls(self, now: int) -> None:
        """Complete everything that is open when a run is stopped, so that the session stays usable.

        Args:
            now: microseconds since the epoch.
        """
        self.end_answer([])
        self._open_calls.clear()
        for entry in self.tools:
            if entry["tool_call_error"] is None:
                entry.update(tool_call_error=True, result=CANCELLED_RESULT)
        for call_id in [*self._unanswered]:
            self.add_result(call_id, CANCELLED_RESULT, times.whole_seconds(now))


def _add_counts(totals: dict[str, int | None], counts: Mapping[str, int | None]) -> None:
    for name in totals.keys() & counts.keys():
        if (count := counts[name]) is not None:
            total = (totals[name] or 0) + count
            totals[name] = total if 0 <= total <= MAXIMUM_TOKENS else bound_count(total)


def _build_message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text, "created_at": times.now_in_seconds()}
