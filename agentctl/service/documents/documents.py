"""Documents of runs, and pages, built from rows.

Long stored JSON is part of the JSON texts and is not parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from math import ceil
from operator import attrgetter
from typing import Any, NamedTuple

import orjson

from agentctl.errors import Unavailable
from agentctl.interface.requests import Page
from agentctl.records.approvals import ApprovalRecord, ApprovalRow
from agentctl.records.document import build_damage, parse_records, parse_stored, require
from agentctl.records.kinds import KINDS
from agentctl.records.logs import parse_run_trace
from agentctl.records.messages import parse_messages
from agentctl.records.runs import LastRunState, RunRecord, RunRow, RunSummary
from agentctl.records.sessions import TOKEN_COUNTERS
from agentctl.records.text import cut_text
from agentctl.records.times import Timestamp, format_rfc3339
from agentctl.records.value_types import field_types
from agentctl.runs.states import is_final
from agentctl.service.documents.paging import encode_cursor
from agentctl.store.listing import RowPage
from agentctl.store.repositories.sessions import (
    NO_COST,
    NO_USAGE,
    Cost,
    parse_counters,
    parse_usage,
    read_cost,
)

CHECKED_BYTES = 1_048_576
"""Size of a stored text that is parsed before it is sent, in some milliseconds."""


def join_array(items: Iterable[bytes]) -> bytes:
    """Join documents into a JSON array."""
    return b"[" + b",".join(items) + b"]"


def stored_json(text: str | None, opening: str = "") -> bytes:
    """Return a stored JSON text; `null` for None.

    A text of up to `CHECKED_BYTES` is parsed. Of a longer text only its two ends are checked: the
    time of a parse grows with the text.

    Args:
        opening: the bracket with which the text begins; `""` for any value.

    Raises:
        Unavailable: the text is not JSON.
    """
    if text is None:
        return b"null"

    raw = text.encode()
    try:
        if not text.startswith(opening):
            raise build_damage()
        if len(raw) <= CHECKED_BYTES:
            orjson.loads(raw)
            return raw
    except orjson.JSONDecodeError:
        pass
    else:
        if raw[:1] + raw[-1:] in (b"{}", b"[]", b'""'):
            return raw

    raise build_damage()


def embed_stored(text: str | None, opening: str = "") -> orjson.Fragment:
    """Return a stored JSON text as a part of a document. Raises Unavailable, see `stored_json`."""
    return orjson.Fragment(stored_json(text, opening))


def embed_array(text: str | None, opening: str = "[") -> orjson.Fragment:
    """Return a stored JSON array as a part of a document; `[]` if none is stored."""
    return embed_stored(text, opening) if text else _EMPTY


_EMPTY = orjson.Fragment(b"[]")


def check_array(pieces: Iterable[bytes]) -> None:
    """Check the inner texts of stored JSON arrays; each text belongs to one run.

    Raises:
        Unavailable: one of them is not the inside of a JSON array.
    """
    try:
        for piece in pieces:
            # One by one: orjson takes 12 bytes for each byte of text, and glibc never gives the
            # memory back once it has freed a block of that size. One parse of a joined history of
            # 1.2 MB cost a server 100 MB for the rest of its life.
            orjson.loads(b"[%b]" % piece)
    except orjson.JSONDecodeError:
        raise build_damage() from None


def join_arrays(inner: Sequence[bytes]) -> list[bytes]:
    """Return the pieces of one JSON array from the inner texts of arrays, without a copy."""
    pieces = [b"["]
    for text in inner:
        if not text:
            continue
        if len(pieces) > 1:
            pieces.append(b",")
        pieces.append(text)
    pieces.append(b"]")
    return pieces


def dump_in_pieces(record: Mapping[str, Any], name: str, pieces: Sequence[bytes]) -> bytes:
    """Serialize a record with one long member from pieces, which are copied only once.

    Args:
        name: the member; it is neither the first nor the last member.
    """
    names = list(record)
    at = names.index(name)
    head = orjson.dumps({member: record[member] for member in names[:at]})
    tail = orjson.dumps({member: record[member] for member in names[at + 1 :]})
    return b"".join([head[:-1], b',"%b":' % name.encode(), *pieces, b",", tail[1:]])


class RecordWriter:
    """Writes the JSON texts of a record from rows of a class, by the types of the fields.

    A time is stored in microseconds; objects, arrays and values of any type are stored as JSON.

        _DELIVERY = RecordWriter(DeliveryRecord, DeliveryRow)
        raw = _DELIVERY.write(row, {})

    Args:
        record, row: the class of the record, a typed dictionary, and of the rows.
        columns: the columns of the fields that have another name.
        computed: the fields that `write` takes, although the row has such a column.
        last: the fields that come last; other fields have the order of the record.
    """

    def __init__(
        self,
        record: type,
        row: type,
        columns: Mapping[str, str] | None = None,
        *,
        computed: Collection[str] = (),
        last: Sequence[str] = (),
    ) -> None:
        row_columns = getattr(row, "_fields", None) or [field.name for field in fields(row)]
        column_of = dict(zip(row_columns, row_columns, strict=True)) | dict(columns or {})
        first = [name for name in record.__annotations__ if name not in last]
        order = [*first, *last]

        self._record = record
        self._stored = [name for name in order if name in column_of and name not in computed]
        self._read = attrgetter(*(column_of[name] for name in self._stored))
        self._template: dict[str, Any] = dict.fromkeys(order)
        self._not_stored = frozenset(order).difference(self._stored)

    @cached_property
    def _converters(self) -> list[tuple[str, Callable[[Any], Any]]]:
        """The functions for the columns that are not stored as they are sent."""
        types = field_types(self._record)
        kinds: dict[object, Callable[[Any], Any]] = {
            Timestamp: format_rfc3339,
            dict: partial(embed_stored, opening="{"),
            list: partial(embed_stored, opening="["),
        }
        return [
            (name, kinds.get(types[name].kind, embed_stored))
            for name in self._stored
            if types[name].kind is Timestamp or not types[name].classes
        ]

    def build(self, row: Any, computed: Mapping[str, Any]) -> Any:
        """Build a record; a field that is neither a column nor computed is left out.

        Raises:
            Unavailable: see `stored_json`.
        """
        record = self._template | dict(zip(self._stored, self._read(row), strict=True))
        for name, convert in self._converters:
            value = record[name]
            if value is not None:
                record[name] = convert(value)

        record.update(computed)

        for name in self._not_stored.difference(computed):
            del record[name]
        return record

    def write(self, row: Any, computed: Mapping[str, Any]) -> bytes:
        """Return the text of what `build` returns."""
        return orjson.dumps(self.build(row, computed))


def dump_holding(run: LastRunState) -> bytes:
    """Return the names of the work that continues after the end of a run; `null` if not known."""
    if run.stopped_at is not None or not is_final(run.status):
        return b"[]"
    return stored_json(run.holding)


INPUT_LENGTH = 200
"""Characters of the input in the summary of a run."""

MAXIMUM_DEPTH = 8
"""Levels of members whose tokens are added in the summary of a run."""

UNKNOWN_USAGE: str = orjson.dumps(dict.fromkeys(TOKEN_COUNTERS)).decode()
"""The counters of a live run that another process executes: a JSON object."""

_PARSERS: dict[str, Callable[[str], object]] = {
    "messages": parse_messages,
    **dict.fromkeys(("tools", "spans", "files"), parse_records),
    **dict.fromkeys(
        ("metrics", "metadata", "session_state", "input_object"),
        lambda text: parse_stored(text, dict),
    ),
    **dict.fromkeys(("version_changes", "holding"), lambda text: parse_stored(text, list)),
    "output": lambda text: parse_stored(text, object),
}
"""The columns of a run with JSON texts, and functions that return None for a damaged text."""

_COMPUTED = (
    "metrics", "late_result", "holding", "messages", "tools", "spans", "version_changes",
    "files",
)  # fmt: skip
_RUN = RecordWriter(
    RunRecord, RunRow, computed=_COMPUTED, last=("trace_id", "spans", "member_runs")
)
_SUMMARY = RecordWriter(RunSummary, RunRow, computed=(*_COMPUTED, "input"))
_APPROVAL = RecordWriter(ApprovalRecord, ApprovalRow, {"approved_arguments_hash": "approved_hash"})


def build_page_document(noun: str, items: Iterable[bytes], page: Page, rows: RowPage[Any]) -> bytes:
    """Build a page of a list (docs/contract.md "Lists").

    Args:
        noun: name of the list, part of the cursor.
        rows: the rows, the total and the position of the next page.
    """
    meta = {
        "page": page.page,
        "limit": page.limit,
        "total_count": rows.total,
        "total_pages": ceil(rows.total / page.limit),
        "total_is_capped": rows.capped,
        "next_cursor": encode_cursor(noun, page, rows),
    }
    if rows.searched_until is not None:
        meta["searched_until"] = format_rfc3339(rows.searched_until)
    return b'{"data":%b,"meta":%b}' % (join_array(items), orjson.dumps(meta))


class RelatedFacts(NamedTuple):
    """The facts about a run that come from other rows."""

    metrics: str
    """Its token counters as JSON."""

    total_tokens: int | None
    """Its tokens and the tokens of the runs below it.

    None if no counter is known: for a live run that another process executes, and for an agent in
    code that reports none.
    """

    member_count: int
    """Number of the runs that it started."""

    cost: Cost = NO_COST
    """The cost of its tokens and of the tokens of the runs below it."""

    approvals: Sequence[Mapping[str, Any]] = ()
    """Its approvals, decided or not."""

    queue_position: int | None = None
    """Its place in the queue of its session; None if it does not wait there."""


def build_run_document(
    row: RunRow,
    facts: RelatedFacts,
    member_runs: Sequence[str],
    cut: int | None = None,
    spans: list[dict[str, Any]] | None = None,
) -> bytes:
    """Build a run record (docs/contract.md "Run record").

    Args:
        facts: its tokens and approvals.
        member_runs: the ids of the runs that it started.
        cut: number of characters after which messages and results of tools are cut; None not to
            cut them.
        spans: the spans of a live run; the spans of an ended run are in its row.
    """
    trace = parse_run_trace(row.trace)

    def build_own(row: RunRow) -> dict[str, Any]:
        return {
            "messages": _cut_entries(row.messages, "content", cut),
            "files": embed_array(row.files),
            "tools": _cut_entries(row.tools, "result", cut),
            "trace_id": trace.own.trace_id if trace is not None else None,
            "spans": embed_array(row.spans) if spans is None else spans,
            "member_runs": list(member_runs),
        }

    return _write_intact(_RUN, row, facts, build_own)


def _write_intact(
    writer: RecordWriter,
    row: RunRow,
    facts: RelatedFacts,
    build_own: Callable[[RunRow], Mapping[str, Any]],
) -> bytes:
    """Write the record of a run. Damaged values are left out, and their fields named.

    Args:
        build_own: builds the members that only this form of the record has.
    """
    try:
        return writer.write(row, {**_build_members(row, facts), **build_own(row)})
    except Unavailable:
        intact_row, damaged_fields = leave_out_damage(row)
        if not damaged_fields:
            raise

        if "metrics" in damaged_fields:
            facts = facts._replace(metrics=UNKNOWN_USAGE)
        members = {**_build_members(intact_row, facts), **build_own(intact_row)}
        return writer.write(intact_row, {**members, "damaged": damaged_fields})


def leave_out_damage(row: RunRow) -> tuple[RunRow, list[str]]:
    """Return a row without its damaged JSON texts, and their names."""
    damaged_fields = list[str]()
    for name, parse in _PARSERS.items():
        text = getattr(row, name)
        if text not in (None, "null") and parse(text) is None:
            damaged_fields.append(name)

    left_out: dict[str, Any] = dict.fromkeys(damaged_fields)
    return replace(row, **left_out), damaged_fields


def build_run_summary(row: RunRow, facts: RelatedFacts) -> bytes:
    """Build the summary of a run, read with `SUMMARY_COLUMNS` (docs/contract.md "Run summary")."""
    # Damaged spans count as no spans: they must not fail a whole list.
    spans = None if row.spans is None else parse_stored(row.spans, list)
    known_spans = [span for span in spans or () if isinstance(span, dict)]
    kinds = [span.get("kind") for span in known_spans]
    first_tokens = [span["first_token_at"] for span in known_spans if span.get("first_token_at")]
    own_members = {
        "input": cut_text(row.input, INPUT_LENGTH),
        "tool_calls": None if spans is None else kinds.count("tool"),
        "member_count": facts.member_count,
        "first_token_at": min(first_tokens, default=None),
    }
    return _write_intact(_SUMMARY, row, facts, lambda _: own_members)


def _build_members(row: RunRow, facts: RelatedFacts) -> dict[str, Any]:
    """Build the members that the record and the summary of a run share."""
    return {
        KINDS[row.component_type].id_field: row.component_id,
        "metrics": embed_metrics(facts.metrics),
        "total_tokens": facts.total_tokens,
        **describe_cost(facts.cost, facts.total_tokens),
        "error": {"code": row.error_code, "detail": row.error_detail} if row.error_code else None,
        "queue_position": facts.queue_position,
        "version_changes": embed_array(row.version_changes, ""),
        "late_result": "dropped" if row.late_result else None,
        "holding": orjson.Fragment(dump_holding(row)),
        "approvals": facts.approvals,
    }


def _cut_entries(stored: str | None, field: str, cut: int | None) -> Any:
    """Return a stored JSON array with the texts in a field of its entries cut.

    A cut entry has `truncated`: `{"characters": N}` with the whole length.
    """
    if stored is None or cut is None:
        return embed_array(stored)
    entries = require(parse_records(stored))
    cut_entries(entries, field, cut)
    return entries


def cut_entries(entries: Iterable[Any], field: str, cut: int | None) -> None:
    """Cut the texts in a field of some objects, in place.

    Args:
        cut: the number of characters that are left; None not to cut them.
    """
    if cut is None:
        return
    for entry in entries:
        text = entry.get(field)
        if isinstance(text, str) and len(text) > cut:
            entry[field] = text[:cut]
            entry["truncated"] = {"characters": len(text)}


def build_document_alone(row: RunRow, cut: int | None) -> bytes:
    """Build the document of a run that no other row concerns (`run_reads.get_alone`)."""
    metrics = row.metrics or NO_USAGE
    counters, cost = parse_usage(metrics)
    total = counters["total_tokens"]
    known_total = total if is_counted(metrics, total) else None
    facts = RelatedFacts(metrics, known_total, 0, cost)
    return build_run_document(row, facts, (), cut)


def embed_metrics(metrics: str) -> Any:
    """Return stored counters for a document, without the cost, which is a member of its own.

    Raises:
        Unavailable: see `stored_json`.
    """
    counters, _ = embed_usage(metrics)
    return counters


def embed_usage(metrics: str) -> tuple[Any, Cost]:
    """Return stored counters for a document (`embed_metrics`), and their cost."""
    if '"priced_tokens"' not in metrics:
        return embed_stored(metrics), NO_COST

    stored = require(parse_stored(metrics, dict))
    counters = {name: count for name, count in stored.items() if name not in Cost._fields}
    return counters, read_cost(stored)


def describe_cost(cost: Cost, total_tokens: int | None) -> dict[str, Any]:
    """Return the members `cost` and `unpriced_tokens` of a run or a session.

    Args:
        total_tokens: the tokens of the same runs; None if they are not known.
    """
    if total_tokens is None:
        return {"cost": None, "unpriced_tokens": None}
    unpriced_tokens = max(total_tokens - cost.priced_tokens, 0)
    is_unknown = not cost.priced_tokens and unpriced_tokens > 0
    return {"cost": None if is_unknown else cost.cost, "unpriced_tokens": unpriced_tokens}


def is_counted(metrics: str, total: int) -> bool:
    """Return True if the tokens of a run are known: 0 tokens differ from unknown ones.

    Args:
        metrics: its token counters as JSON; the object `UNKNOWN_USAGE` if it has none yet.
        total: its tokens and the tokens of the runs below it.
    """
    if metrics is UNKNOWN_USAGE:
        return False
    if total:
        return True
    return (parse_stored(metrics, dict) or {}).get("total_tokens") is not None


def total_tokens(metrics: str | None) -> int:
    """Return the tokens in stored counters; 0 if they do not have this counter."""
    return parse_counters(metrics)["total_tokens"]


def build_approval_document(row: ApprovalRow) -> bytes:
    """Build the record of an approval."""
    return _APPROVAL.write(row, {})


def build_approval_record(row: ApprovalRow) -> ApprovalRecord:
    """Build the record of an approval as an object."""
    record: ApprovalRecord = orjson.loads(build_approval_document(row))
    return record
