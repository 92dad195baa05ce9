"""Reads of parts of runs: events, tool calls, causes, open runs (docs/contract.md "Runs")."""

from __future__ import annotations

import contextlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from itertools import islice, takewhile
from typing import Any, Literal, NamedTuple, TypeVar

from agentctl import errors
from agentctl.interface.operations.runs import (
    ModelCallDetail,
    ModelCallRecord,
    ReferenceRecord,
    RunModelCalls,
    SentMessage,
)
from agentctl.interface.requests import (
    BEFORE_FIRST_EVENT,
    MAXIMUM_EVENT_NUMBER,
    MAXIMUM_LIMIT,
    SUMMARY_VIEW,
    Page,
    ResumeRequest,
    RunFilter,
    RunView,
    StreamEvent,
)
from agentctl.records.document import Document, build_document, parse_records, parse_stored, require
from agentctl.records.kinds import KINDS, ComponentKind, RunStatus
from agentctl.records.messages import parse_messages
from agentctl.records.routes import operation_ids
from agentctl.records.runs import RunRow, ToolCallRecord
from agentctl.runs.follow.follow import flatten
from agentctl.runtime.tracing import CALL_PREFIX
from agentctl.runtime.transcript.history import complete_history
from agentctl.runtime.transcript.requests import HISTORY, NATIVE, OWN, WORDS
from agentctl.service.documents import documents, paging
from agentctl.service.family import OperationFamily
from agentctl.store.database import Database, Steps, Work, unit
from agentctl.store.repositories import lists, run_reads
from agentctl.store.repositories.sessions import parse_counters
from agentctl.store.repositories.usage import NANODOLLARS, CostOf

_OPEN_STATUSES: tuple[RunStatus, ...] = ("PENDING", "RUNNING", "PAUSED")

_CACHED = ("cache_read_tokens", "cache_write_tokens")

T = TypeVar("T")

StreamOperation = Literal["follow", "resume"]
"""The operations whose result is the events of a run. They need different scopes of their caller;
`resume` also needs the session."""

_SOURCES: Mapping[int, Literal["history", "run", "added"]] = {
    HISTORY: "history",
    OWN: "run",
    WORDS: "added",
    NATIVE: "run",
}
"""The source of a message in a record, by its source in a request.

A native message belongs to the run, too: it was sent in the form of its provider.
"""

_MESSAGE_FIELDS = ("role", "content", "tool_calls", "tool_call_id", "tool_name", "files")


class MessagePlace(NamedTuple):
    """The place of a message."""

    source: int
    """The source of the message, a key of `_SOURCES`."""

    at: int
    """The index of the message in its source."""


class RunPartOperations(OperationFamily):
    """Operations that read parts of a run."""

    def follow(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ResumeRequest
    ) -> AsyncIterator[StreamEvent]:
        return self._stream("follow", kind, component_id, run_id, request)

    def resume(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ResumeRequest
    ) -> AsyncIterator[StreamEvent]:
        return self._stream("resume", kind, component_id, run_id, request)

    async def _stream(
        self,
        operation: StreamOperation,
        kind: ComponentKind,
        component_id: str,
        run_id: str,
        request: ResumeRequest,
    ) -> AsyncIterator[StreamEvent]:
        portions = await self.open_stream(operation, kind, component_id, run_id, request)
        async with contextlib.aclosing(flatten(portions)) as events:
            async for event in events:
                yield event

    async def open_stream(
        self,
        operation: StreamOperation,
        kind: ComponentKind,
        component_id: str,
        run_id: str,
        request: ResumeRequest,
    ) -> AsyncGenerator[list[StreamEvent]]:
        """Return the events of a run after `request.after`, stored and future events, in portions.

        Errors are raised at the call, so that the server sends them before an event exists.

        Raises:
            BadRequest: `resume` without a session, and the caller is not an administrator.
        """
        ids = operation_ids(kind)
        operation_id = ids.resume_run if operation == "resume" else ids.follow_run
        path = {KINDS[kind].id_field: component_id, "run_id": run_id}
        place = (kind, component_id, run_id, request.session_id)

        async with self.audit(operation_id, **path):
            if operation == "resume":
                database, _ = await self.lookups.find_named_run(*place, "resume")
            else:
                database, _ = await self.lookups.find_run(*place)
            check_event_number(request.after)
            return self.follow_events(database, run_id, request.after)

    async def get_tool_call(
        self,
        kind: ComponentKind,
        component_id: str,
        run_id: str,
        tool_call_id: str,
        *,
        session_id: str | None = None,
    ) -> Document[ToolCallRecord]:
        path = {KINDS[kind].id_field: component_id, "run_id": run_id, "tool_call_id": tool_call_id}
        async with self.audit(operation_ids(kind).get_tool_call, **path):
            database, _ = await self.lookups.find_run(kind, component_id, run_id, session_id)
            row = await database.read(run_reads.get(run_id, self.lookups.visibility), size="run")
            calls: Any = require(parse_records((row and row.tools) or "[]"))
            for call in calls:
                if call.get("tool_call_id") == tool_call_id:
                    return build_document(call)
            raise errors.NotFound("Tool call not found")

    async def list_model_calls(
        self,
        run_id: str,
        *,
        db_id: str | None = None,
        after: str | None = None,
        limit: int = MAXIMUM_LIMIT,
    ) -> Document[RunModelCalls]:
        async with self.audit("get_run_model_calls", run_id=run_id):
            database = self.lookups.database(db_id)
            paging.check_limit(limit)

            row = await self._read_ended(database, run_id)
            stored = await self._price(lambda cost_of: read_model_calls(row, cost_of), database)
            calls = stored.list_records()

            ids = [call["id"] for call in calls]
            if after is not None and after not in ids:
                raise errors.NotFound("Model call not found")
            first = 0 if after is None else ids.index(after) + 1

            page = calls[first : first + limit]
            return build_document({"run_id": run_id, "model_calls": page, "total": len(calls)})

    async def get_model_call(
        self, run_id: str, call_id: str, *, db_id: str | None = None, cut: int | None = None
    ) -> Document[ModelCallDetail]:
        async with self.audit("get_run_model_call", run_id=run_id, call_id=call_id):
            database = self.lookups.database(db_id)
            paging.check_run_view(RunView(cut=cut))
            row = await self._read_ended(database, run_id)
            call = await self._price(
                lambda cost_of: read_model_call(row, call_id, cost_of), database
            )
            if call is None:
                raise errors.NotFound("Model call not found")
            documents.cut_entries(call["messages"], "content", cut)
            return build_document(call)

    async def _price(self, read: Callable[[CostOf], Work[T]], database: Database) -> T:
        return await self.hosting.prices.run(read, partial(database.read, size="large"))

    async def _read_ended(self, database: Database, run_id: str) -> RunRow:
        row = await database.read(run_reads.get(run_id, self.lookups.visibility), size="run")
        if row is None:
            raise errors.NotFound("Run not found")
        return row

    async def find_open_runs(self, prefix: str) -> list[RunRow]:
        """Return the visible runs without a final status whose ids begin with a text.

        At most 100 runs of each database and status are returned.
        """
        open_runs = list[RunRow]()
        for database in self.hosting.databases.values():
            for status in _OPEN_STATUSES:
                open_filter = RunFilter(status=status, id_prefix=prefix, form=SUMMARY_VIEW)
                part = paging.build_slice("runs", Page(MAXIMUM_LIMIT))
                work = lists.list_runs(open_filter, self.lookups.visibility, part, database.totals)
                open_runs += (await database.read(work)).rows
        return open_runs


def check_event_number(number: int) -> None:
    """Check the number of an event."""
    if not BEFORE_FIRST_EVENT <= number <= MAXIMUM_EVENT_NUMBER:
        raise errors.ValidationFailed(
            f"last_event_index must be a number from {BEFORE_FIRST_EVENT} to {MAXIMUM_EVENT_NUMBER}"
        )


class StoredCalls:
    """The model calls of one run.

    Args:
        spans: the spans of the run, as its record has them.
        own: its messages.
        requests: the record of its requests, empty if there is none.
        counters: its tokens.
        cost_of: the prices.
    """

    def __init__(
        self,
        spans: Sequence[Mapping[str, Any]],
        own: Sequence[Mapping[str, Any]],
        requests: Mapping[str, Any],
        counters: Mapping[str, int],
        cost_of: CostOf,
    ) -> None:
        self._own = own
        self._system = (OWN, 0) if own and own[0]["role"] == "system" else None
        self._spans = {span["id"]: span for span in spans if span.get("kind") == "model"}
        self._models: Mapping[str, Sequence[str]] = requests.get("models", {})
        calls: Mapping[str, Mapping[str, Any]] = requests.get("calls", {})
        self._calls = {f"{CALL_PREFIX}{number}": call for number, call in calls.items()}
        self._words: Sequence[Mapping[str, Any]] = requests.get("words", ())
        self.runs: Sequence[int] = requests.get("runs", ())
        self._costs = dict(self._price(cost_of, counters))
        self._empty = {at for at, word in enumerate(self._words) if _is_empty(word)}

    def list_records(self) -> list[ModelCallRecord]:
        """Return the records of all calls, oldest first."""
        sent: dict[str, Mapping[str, Any]] = {}
        now: dict[str, Any] = {"tools": None, "omitted": []}
        for call_id, places in self._replay():
            call = self._calls[call_id]
            now = {name: call.get(name, before) for name, before in now.items()}
            empty = sum(source == WORDS and at in self._empty for source, at in places)
            sent[call_id] = {**now, "count": len(places) - empty, "places": _group(places)}

        ids = sorted(self._spans.keys() | self._calls.keys(), key=_get_number)
        return [self._build(call_id, sent.get(call_id, {})) for call_id in ids]

    def _price(self, cost_of: CostOf, counters: Mapping[str, int]) -> Iterator[tuple[str, float]]:
        """Yield the cost of each call in US dollars, if its tokens and their price are known.

        A span has no tokens of a cache. The tokens of a cache are taken from the answer with the
        same tokens; without such an answer the run must not have used a cache.
        """
        answers = [
            message["metrics"] for message in self._own if isinstance(message.get("metrics"), dict)
        ]
        is_cached = any(counters[name] for name in _CACHED)
        for call_id, span in self._spans.items():
            used = {name: span.get(name) for name in ("input_tokens", "output_tokens")}
            if None in used.values():
                continue

            matching_answers = (
                answer for answer in answers if used == {name: answer.get(name) for name in used}
            )
            answer = next(matching_answers, None)
            if answer is not None:
                answers.remove(answer)
                used |= {name: answer.get(name) for name in _CACHED}
            elif is_cached:
                continue

            counts = {name: _as_count(used.get(name)) for name in counters}
            cost = cost_of(span.get("name") or "", counts)
            if cost is not None:
                yield call_id, cost / NANODOLLARS

    def rebuild(
        self, call_id: str, history: Sequence[Mapping[str, Any]]
    ) -> list[SentMessage] | None:
        """Return the messages of a call in their order; None if they are not recorded.

        Args:
            history: the completed messages of the earlier runs, up to the first deleted run.
        """
        places = next((places for name, places in self._replay() if name == call_id), None)
        if places is None:
            return None

        sources = history, self._own, self._words, self._own
        messages = [_build_message(sources, source, at) for source, at in places]
        return [message for message in messages if not _is_empty(message)]

    def _build(self, call_id: str, sent: Mapping[str, Any]) -> ModelCallRecord:
        span = self._spans.get(call_id, {})
        call = self._calls.get(call_id, {})
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
            "cost": self._costs.get(call_id),
            "message_count": sent.get("count"),
            "characters": call.get("size"),
            "tools": sent.get("tools"),
            "omissions": sent.get("omitted", []),
            "references": sent.get("places", []),
        }

    def _replay(self) -> Iterator[tuple[str, list[MessagePlace]]]:
        places: list[MessagePlace] = []
        for call_id, call in self._calls.items():
            sent = call.get("sent")
            if sent is None:
                continue

            numbers = iter(sent[1:])
            places = places[: sent[0]]
            for source, first, end in zip(numbers, numbers, numbers, strict=True):
                places += [MessagePlace(source, index) for index in range(first, end)]

            system = call.get("system", self._system)
            before = [] if system is None else [MessagePlace(system[0], system[1])]
            yield call_id, [*before, *places]


def _group(places: Iterable[MessagePlace]) -> list[ReferenceRecord]:
    ranges = list[ReferenceRecord]()
    for source, at in places:
        name = _SOURCES[source]
        if ranges and (ranges[-1]["source"], ranges[-1]["end"]) == (name, at):
            ranges[-1]["end"] = at + 1
        else:
            ranges.append({"source": name, "first": at, "end": at + 1})
    return ranges


def _as_count(value: object) -> int:
    """Return a counter; 0 if the model did not report it."""
    return value if isinstance(value, int) else 0


def _get_number(call_id: str) -> int:
    return int(call_id.removeprefix(CALL_PREFIX))


def _is_empty(message: Mapping[str, Any]) -> bool:
    """Return True for an answer without text and calls, which no provider is sent."""
    is_answer = message["role"] == "assistant" and message["content"] == ""
    return is_answer and not message.get("tool_calls")


def _build_message(sources: Sequence[Sequence[Mapping[str, Any]]], source: int, at: int) -> Any:
    stored_message = next(islice(sources[source], at, None), None)
    if stored_message is None:
        return {"role": "user", "content": None, "source": _SOURCES[source], "missing": "deleted"}

    message = {name: stored_message[name] for name in _MESSAGE_FIELDS if name in stored_message}
    if "after" in stored_message and stored_message["content"] is not None:
        message["content"] = (
            sources[1][stored_message["after"]]["content"] + stored_message["content"]
        )
    if message["content"] is None:
        message["missing"] = "too_large"

    record = {**message, "source": _SOURCES[source]}
    if source == NATIVE:
        record["native"] = True
    return record


@unit
def read_model_calls(row: RunRow, cost_of: CostOf) -> Steps[StoredCalls]:
    """Read the model calls of a run that has ended or is paused."""
    stored = yield from run_reads.get_requests(row.run_id)
    # Damaged parts are left out, the rest is shown.
    return StoredCalls(
        parse_records(row.spans or "[]") or [],
        parse_messages(row.messages or "[]") or [],
        parse_stored(stored or "{}", dict) or {},
        parse_counters(row.metrics),
        cost_of,
    )


@unit
def read_model_call(row: RunRow, call_id: str, cost_of: CostOf) -> Steps[ModelCallDetail | None]:
    """Read a model call with its messages; None if the run has none with the id."""
    calls = yield from read_model_calls(row, cost_of)
    record = next((call for call in calls.list_records() if call["id"] == call_id), None)
    if record is None:
        return None

    history = yield from _read_history(row, calls.runs)
    messages = calls.rebuild(call_id, history)
    if messages is None:
        return {**record, "run_id": row.run_id, "state": "unknown", "messages": []}

    size = sum(len(message["content"] or "") for message in messages)
    is_whole = not any("missing" in message for message in messages)
    is_complete = is_whole and size == record["characters"]
    return {
        **record,
        "run_id": row.run_id,
        "state": "complete" if is_complete else "incomplete",
        "messages": messages,
    }


@unit
def _read_history(row: RunRow, numbers: Sequence[int]) -> Steps[list[Mapping[str, Any]]]:
    """Read the messages of earlier runs of a session, up to the first run that is deleted."""
    if not numbers:
        return []

    first = numbers[0]
    last = numbers[-1]
    rows = yield from run_reads.list_messages(row.session_id, first, last)
    messages_of = {number: parse_messages(text) for number, text in rows}
    existing = takewhile(lambda messages: messages is not None, map(messages_of.get, numbers))

    return [message for messages in existing for message in complete_history(messages or ())]
