"""The export of a session with all its runs: JSON, or a transcript as Markdown.

The parts are built one at a time: memory has a page of runs. The content of Markdown, which
`-o markdown` prints as well, is that of the drawn transcript, with whole ids and answers as the
component wrote them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import TYPE_CHECKING

import orjson

from agentctl.errors import NotFound
from agentctl.interface.requests import SessionLocator, SessionRunsQuery
from agentctl.records.events import describe_compacted
from agentctl.records.items import Item
from agentctl.records.kinds import Record
from agentctl.records.phase import describe_run
from agentctl.records.sessions import ExportFormat
from agentctl.records.times import format_elapsed
from agentctl.transcripts.model import (
    DrawnCall,
    DrawnMember,
    DrawnRun,
    clean_line,
    clean_text,
    count_characters,
    parse_time,
)
from agentctl.transcripts.runs import SessionRuns, list_model_calls
from agentctl.transcripts.texts import (
    SESSION_OBJECTS,
    TRACE_URL,
    Look,
    count_session_tokens,
    cut_text,
    describe_causes,
    describe_objects,
    describe_origin,
    describe_session,
    format_day,
    format_length,
    format_time,
    format_tokens,
    get_look,
)

if TYPE_CHECKING:
    from agentctl.interface.operations import Operations

_EMPTY_LINES = re.compile("\n{3,}")
_BACKTICKS = re.compile("`+")


def format_session(session: Record, shown: str) -> str:
    """Return the head of a session as Markdown; `shown` describes the runs that follow."""
    name, facts = describe_session(session)
    lines = [f"# {name}", "", " · ".join([*facts, shown, *count_session_tokens(session)]), ""]
    lines += [f"- {label}: {value}" for label, value in describe_objects(session, SESSION_OBJECTS)]
    return "\n".join(lines).rstrip() + "\n\n"


def format_run(run: DrawnRun, look: Look, number: int | None = None) -> str:
    """Return a top-level run as Markdown, with an empty line at its end."""
    record = run.record

    title = clean_line(record.get("user_id") or "user")
    if number is not None:
        title = f"{number}. {title}"
    created_at = parse_time(record.get("created_at"))
    if created_at is not None:
        title += f", {format_day(created_at, look)} {format_time(created_at, look)}"

    subtitle = f"Run `{clean_line(record.get('run_id'))}`"
    origin = describe_origin(record)
    if origin is not None:
        subtitle += f", {origin.kind} of {origin.run_id} {origin.place}"

    lines = [f"## {title}", "", subtitle, ""]
    lines += [f"> {line}".rstrip() for line in cut_text(run.input, look.full).splitlines()]
    lines += ["", f"**{run.component}** {' · '.join(_list_facts(run))}", ""]
    lines += _format_items(run.items, look, 0)
    lines += _format_end(run)
    text = "\n".join(lines).rstrip() + "\n\n"
    return _EMPTY_LINES.sub("\n\n", text)


def format_calls(run_id: str, calls: Iterable[Record]) -> str:
    """Return the model calls of a run as Markdown, with an empty line at its end."""
    lines = [f"Model calls of `{clean_line(run_id)}`:", ""]
    for call in calls:
        provider_model = call["response_model"] or call["requested_model"] or ""
        names = (clean_line(call["model"]), clean_line(provider_model))
        facts = [
            " ".join(name for name in names if name),
            clean_line(call["error_code"] or call["status"]),
        ]
        if call["message_count"] is not None:
            facts.append(f"{call['message_count']} messages, {call['characters']} characters")
        if call["omissions"]:
            facts.append(clean_line(describe_compacted(call)))
        lines.append(f"- {clean_line(call['id'])}: {' · '.join(facts)}")
    return "\n".join(lines) + "\n\n"


def _list_facts(run: DrawnRun) -> Iterator[str]:
    """Yield the state of a run, its failure, its duration and its tokens, as far as it has them."""
    phase = describe_run(run.record)
    yield f"{get_look(phase).glyph} {clean_line(phase['words'])}"

    error = run.record.get("error") or {}
    if error.get("code"):
        yield clean_line(error["code"])

    if phase["warning"]:
        yield f"! {phase['warning']}"

    seconds = run.seconds
    if seconds is not None:
        yield format_elapsed(seconds)

    tokens = format_tokens(run, split=True)
    if tokens:
        yield tokens


def _format_items(items: Iterable[Item | DrawnMember], look: Look, level: int) -> Iterator[str]:
    space = "  " * level
    for item in items:
        if isinstance(item, DrawnMember):
            yield from _format_member(item, look, level)

        elif item["type"] == "text":
            text = cut_text(clean_text(item["text"]), look.full, count_characters(item))
            yield from _indent(["", *text.rstrip().splitlines(), ""], space)

        elif item["type"] == "tool_call":
            yield from _indent(_format_tool(DrawnCall.of(item), look), space)

        elif item["type"] in ("compacted", "notice"):
            yield from _indent(["", f"*{clean_line(item['text'])}*", ""], space)

        elif item["type"] == "prompt" and item.get("message_id"):
            text = cut_text(clean_text(item["text"]), look.full, count_characters(item))
            quoted_lines = [f"> {line}" for line in text.rstrip().splitlines()]
            yield from _indent(["", *quoted_lines, ""], space)

        elif look.full and item["type"] in ("thinking", "prompt"):
            title = clean_line(item.get("role") or "Thinking")
            text = clean_text(item["text"])
            yield from _indent(["", f"{title}:", "", *_fence(text), ""], space)


def _format_tool(call: DrawnCall, look: Look) -> Iterator[str]:
    head = f"- {_format_code(f'{call.name}({call.arguments})')} {call.outcome}"
    if call.seconds is not None and call.outcome != "waiting":
        # The decision of a call that waits has the time of its wait.
        head += f" · {format_elapsed(call.seconds)}"
    if call.decision:
        head += f" · {call.decision}"

    result = call.result
    if look.full:
        yield head
        if result:
            yield from _indent(["", *_fence(result), ""], "  ")
    elif not look.shows(result):
        yield f"{head} · {format_length(result, call.characters)}"
    elif result:
        yield f"{head}: {_format_code(clean_line(result))}"
    else:
        yield head


def _format_member(member: DrawnMember, look: Look, level: int) -> Iterator[str]:
    run = member.run
    space = "  " * level
    label = f"{member.label} · " if member.label else ""
    task = f": {member.task}" if member.task else ""
    yield f"{space}- {label}**{run.component}**{task} ({' · '.join(_list_facts(run))})"

    if look.opens(run):
        yield from _format_items(run.items, look, level + 1)
        yield from _indent(_format_end(run), space + "  ")


def _format_end(run: DrawnRun) -> Iterator[str]:
    error = run.record.get("error") or {}
    if error:
        yield from ("", f"Error: {clean_line(error.get('detail') or '')}")
        for cause, place in describe_causes(run):
            yield from ("", f"Cause: {_format_code(cause)} at {_format_code(place)}")

    if run.record.get(TRACE_URL):
        yield from ("", f"Trace: <{clean_line(run.record[TRACE_URL])}>")

    # The failure has its own line.
    phase = describe_run({**run.record, "error": None})
    if phase["sentence"]:
        text = f"{clean_line(phase['sentence'])}."
        reason = run.record.get("cancel_reason")
        if reason:
            text += f' Reason: "{clean_line(reason)}"'
        yield from ("", f"*{text}*")


def _format_code(text: str) -> str:
    """Return a text as code in a line, between more backticks than it has itself."""
    delimiter = "`" * (1 + _count_backticks(text))
    space = " " if "`" in text else ""
    return f"{delimiter}{space}{text}{space}{delimiter}"


def _fence(text: str) -> list[str]:
    delimiter = "`" * max(3, 1 + _count_backticks(text))
    return [delimiter, *text.splitlines(), delimiter]


def _count_backticks(text: str) -> int:
    """Return the length of the longest sequence of backticks."""
    return max(map(len, _BACKTICKS.findall(text)), default=0)


def _indent(lines: Iterable[str], space: str) -> Iterator[str]:
    return (f"{space}{line}".rstrip() for line in lines)


def export_session(
    operations: Operations,
    session_id: str,
    where: SessionLocator,
    form: ExportFormat,
    *,
    model_calls: bool = False,
) -> AsyncGenerator[bytes]:
    """Yield the parts of a session as a file.

    `jsonl` is one line, `{"session": …, "runs": […]}`, `json` an array with the same object, and
    `markdown` the whole transcript.

    Args:
        model_calls: True to add the model calls of each run: in `model_calls`, or after the run.

    Raises:
        NotFound: the session does not exist or is not visible; before the first part.
    """
    if form == "markdown":
        return _write_markdown(operations, session_id, where, model_calls)
    return _write_json(operations, session_id, where, form, model_calls)


async def _write_json(
    operations: Operations,
    session_id: str,
    where: SessionLocator,
    form: ExportFormat,
    model_calls: bool,
) -> AsyncGenerator[bytes]:
    session = await operations.sessions.get(session_id, where)
    opening = b"[" if form == "json" else b""
    yield b'%b{"session":%b,"runs":[' % (opening, session.raw)

    after: str | None = None
    run_ids: list[str] = []
    while True:
        query = SessionRunsQuery(where, after=after)
        page = await operations.sessions.list_runs(session_id, query)
        runs = page.value

        if runs:
            # The elements of the page, without its brackets.
            comma = b"," if after else b""
            yield comma + page.raw[1:-1]

        run_ids += [run["run_id"] for run in runs]
        if len(runs) < query.limit:
            break
        after = run_ids[-1]

    yield b"]"

    if model_calls:
        yield b',"model_calls":{'
        comma = b""
        for run_id in run_ids:
            calls = await _read_calls(operations, run_id, where)
            if calls:
                yield b"%b%b:%b" % (comma, orjson.dumps(run_id), orjson.dumps(calls))
                comma = b","
        yield b"}"

    yield b"}]\n" if form == "json" else b"}\n"


async def _read_calls(operations: Operations, run_id: str, where: SessionLocator) -> list[Record]:
    try:
        return await list_model_calls(operations, run_id, where.db_id)
    except NotFound:
        # The run was deleted in the meantime.
        return []


async def _write_markdown(
    operations: Operations, session_id: str, where: SessionLocator, model_calls: bool
) -> AsyncGenerator[bytes]:
    session = (await operations.sessions.get(session_id, where, view="summary")).value
    look = Look(full=True, members=True)
    runs = SessionRuns(operations, session_id, where, look.run_view)
    run_range = await runs.find_last(None, session)
    yield _encode(format_session(session, run_range.describe()))

    async for number, run in runs.draw(run_range):
        # In a thread: a long run takes a while, and other requests are answered meanwhile.
        yield _encode(await asyncio.to_thread(format_run, run, look, number))
        if not model_calls:
            continue
        for run_or_member in _list_runs(run):
            run_id = str(run_or_member.record["run_id"])
            calls = await _read_calls(operations, run_id, where)
            if calls:
                yield _encode(format_calls(run_id, calls))


def _list_runs(run: DrawnRun) -> Iterator[DrawnRun]:
    """Yield a run and the runs below it."""
    yield run
    for item in run.items:
        if isinstance(item, DrawnMember):
            yield from _list_runs(item.run)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
