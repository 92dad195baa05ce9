"""Transcripts as Markdown, for other programs: `-o markdown`.

The content is that of the drawn transcript, with whole ids and answers as the component wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from agentctl.cli.durations import format_elapsed
from agentctl.cli.show.transcript.model import (
    Answer,
    Item,
    Member,
    Prompt,
    RunView,
    Thinking,
    ToolCall,
    clean_line,
    parse_time,
)
from agentctl.cli.show.transcript.texts import (
    Look,
    cut_text,
    describe_run,
    format_day,
    format_length,
    format_time,
    format_tokens,
)

_EMPTY_LINES = re.compile("\n{3,}")
_BACKTICKS = re.compile("`+")


def format_run(view: RunView, look: Look, number: int | None = None) -> str:
    """Return a top-level run as Markdown, with an empty line at its end."""
    record = view.record
    moment = parse_time(record.get("created_at"))
    when = f", {format_day(moment, look)} {format_time(moment, look)}" if moment else ""
    prefix = "" if number is None else f"{number}. "
    user = clean_line(record.get("user_id") or "user")
    lines = [f"## {prefix}{user}{when}", "", f"Run `{clean_line(record.get('run_id'))}`", ""]
    lines += [f"> {line}".rstrip() for line in cut_text(view.input, look.full).splitlines()]
    lines += ["", f"**{view.component}** {' · '.join(_facts(view))}", ""]
    lines += _format_items(view.items, look, 0)
    lines += _format_end(view)
    text = "\n".join(lines).rstrip() + "\n\n"
    return _EMPTY_LINES.sub("\n\n", text)


def _facts(view: RunView) -> Iterator[str]:
    phase = describe_run(view.record)
    yield f"{phase.glyph} {clean_line(phase.words)}"
    error = view.record.get("error") or {}
    if error.get("code"):
        yield clean_line(error["code"])
    if phase.warning:
        yield f"! {phase.warning}"
    if (seconds := view.seconds) is not None:
        yield format_elapsed(seconds)
    if tokens := format_tokens(view, split=True):
        yield tokens


def _format_items(items: Iterable[Item], look: Look, level: int) -> Iterator[str]:
    space = "  " * level
    for item in items:
        match item:
            case Answer(text=text, characters=characters):
                shown = cut_text(text, look.full, characters)
                yield from _indent(["", *shown.rstrip().splitlines(), ""], space)
            case Thinking(text=text):
                if look.full:
                    yield from _indent(["", "Thinking:", "", *_fence(text), ""], space)
            case Prompt(role=role, text=text):
                if look.full:
                    yield from _indent(["", f"{clean_line(role)}:", "", *_fence(text), ""], space)
            case ToolCall():
                yield from _indent(_format_tool(item, look), space)
            case Member():
                yield from _format_member(item, look, level)


def _format_tool(call: ToolCall, look: Look) -> Iterator[str]:
    duration = "" if call.seconds is None else f" · {format_elapsed(call.seconds)}"
    head = f"- {_code(f'{call.name}({call.arguments})')} {call.outcome}{duration}"
    result = call.result or ""
    if look.full:
        yield head
        yield from _indent(["", *_fence(result), ""] if result else [], "  ")
    elif not look.shows(result):
        yield f"{head} · {format_length(result, call.characters)}"
    else:
        yield f"{head}: {_code(clean_line(result))}" if result else head


def _format_member(member: Member, look: Look, level: int) -> Iterator[str]:
    view = member.run
    label = f"{member.label} · " if member.label else ""
    task = f": {member.task}" if member.task else ""
    space = "  " * level
    yield f"{space}- {label}**{view.component}**{task} ({' · '.join(_facts(view))})"
    if look.opens(view):
        yield from _format_items(view.items, look, level + 1)
        yield from _indent(_format_end(view), space + "  ")


def _format_end(view: RunView) -> Iterator[str]:
    error = view.record.get("error") or {}
    if error:
        yield from ("", f"Error: {clean_line(error.get('detail') or '')}")
    phase = describe_run({**view.record, "error": None})
    if phase.sentence:
        reason = view.record.get("cancel_reason")
        said = f' Reason: "{clean_line(reason)}"' if reason else ""
        yield from ("", f"*{clean_line(phase.sentence)}.{said}*")


def _code(text: str) -> str:
    delimiter = "`" * (1 + max(map(len, _BACKTICKS.findall(text)), default=0))
    space = " " if "`" in text else ""
    return f"{delimiter}{space}{text}{space}{delimiter}"


def _fence(text: str) -> list[str]:
    delimiter = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(text)), default=0))
    return [delimiter, *text.splitlines(), delimiter]


def _indent(lines: Iterable[str], space: str) -> Iterator[str]:
    return (f"{space}{line}".rstrip() for line in lines)
