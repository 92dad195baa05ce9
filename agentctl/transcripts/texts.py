"""The choices of a reader of a transcript, and looks and texts that all forms of it share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import orjson

from agentctl.interface.requests import RunView
from agentctl.records.kinds import Record, find_component
from agentctl.records.phase import PhaseRecord
from agentctl.records.runs import MODEL_FAILURE
from agentctl.transcripts.model import DrawnRun, clean_line, find_tokens

SHORT_RESULT = 200
"""Characters of a result of a tool that is shown without `full`; of a longer one its size is."""

SESSION_OBJECTS = ("session_summary", "output", "metadata", "session_state")
"""The objects of a session that its head shows."""

TRACE_URL = "trace_url"
"""The member of a run with the page about its trace, which only commands add."""

CUT_ANSWER = 20_000
"""Characters of an answer that are shown, and requested from a server, without `full`."""


class PhaseLook(NamedTuple):
    """The look of a state.

    Attributes:
        glyph: one character, shown together with the words only.
        ascii: the glyph for terminals without UTF-8.
    """

    glyph: str
    ascii: str
    color: Literal["blue", "dim", "green", "grey", "red", "yellow"]

    @property
    def style(self) -> str:
        """The color as a style of rich."""
        # The gray of the 16 colors is that of the background in some themes of terminals.
        return "dim" if self.color == "grey" else self.color


PHASE_LOOKS: dict[str, PhaseLook] = {
    "queued": PhaseLook("◌", ".", "dim"),
    "running": PhaseLook("●", "*", "blue"),
    "paused": PhaseLook("‖", "=", "yellow"),
    "stopping": PhaseLook("◐", "~", "yellow"),
    "stopped": PhaseLook("■", "#", "grey"),
    "completed": PhaseLook("✓", "+", "green"),
    "failed": PhaseLook("✗", "x", "red"),
    "unknown": PhaseLook("?", "?", "dim"),
}
"""By the name of the state. A warning is shown in yellow, with the glyph `!`."""


def get_look(phase: PhaseRecord) -> PhaseLook:
    """Return the look of a state."""
    return PHASE_LOOKS[phase["name"]]


@dataclass(frozen=True, slots=True)
class Look:
    """The choices of a reader.

    Attributes:
        full: show whole tools, prompts and reasoning.
        members: open every member; else only those that failed or work.
        raw: show answers as sent, not as Markdown.
        local_time: show times in the time zone of this machine instead of UTC.
        short_ids: cut run ids, for a terminal.
    """

    full: bool = False
    members: bool = False
    raw: bool = False
    local_time: bool = False
    short_ids: bool = False

    def opens(self, member: DrawnRun) -> bool:
        """Return True if the items of a member are shown."""
        return self.members or member.is_live or member.record.get("status") == "ERROR"

    def shows(self, result: str) -> bool:
        """Return True if the result of a tool is shown instead of its size."""
        return self.full or len(result) <= SHORT_RESULT

    @property
    def run_view(self) -> RunView:
        """The form in which runs are read: without `full` long texts are cut by the server."""
        return RunView("items", None if self.full else CUT_ANSWER)

    def place(self, moment: datetime) -> datetime:
        """Return a time in the time zone of the reader."""
        return moment.astimezone(None if self.local_time else UTC)


def format_time(moment: datetime, look: Look) -> str:
    """Return the time of day: `13:47:47`."""
    return look.place(moment).strftime("%H:%M:%S")


def format_day(moment: datetime, look: Look) -> str:
    """Return the day: `21 Nov 2026, UTC`."""
    placed = look.place(moment)
    zone = clean_line(placed.strftime("%Z")) if look.local_time else "UTC"
    return f"{placed.day} {placed.strftime('%b %Y')}, {zone}"


def format_tokens(run: DrawnRun, *, split: bool = False) -> str:
    """Return the tokens of a run with its members: `464 tokens (318 in, 146 out)`, or ''."""
    total = find_tokens(run.record) or run.count_tokens("total_tokens")
    if not total:
        return ""
    text = f"{total:,} token{'' if total == 1 else 's'}{' so far' if run.is_live else ''}"
    if split:
        inward, outward = (run.count_tokens(f"{side}_tokens") for side in ("input", "output"))
        text += f" ({inward:,} in, {outward:,} out)"
    return text + _format_cost(run.record)


def _format_cost(record: Record) -> str:
    """Return the cost of a run or a session: `, $0.0048`; "" for a cost of 0 or without a price."""
    cost = record.get("cost")
    if not cost:
        return ""
    amount = f"${cost:,.2f}" if cost >= 1 else f"${cost:.4f}"
    return f", at least {amount}" if record.get("unpriced_tokens") else f", {amount}"


def format_size(text: str) -> str:
    """Return the size of a text in bytes: `36 KB`."""
    size: float = len(text.encode("utf-8", "surrogatepass"))
    for unit in ("B", "KB", "MB"):
        if size < 1_000 or unit == "MB":
            break
        size /= 1_000
    return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"


def format_length(text: str, characters: int = 0) -> str:
    """Return the size of a result, or the length of one that the server has cut.

    Args:
        characters: the length of a cut text, else 0.
    """
    return f"{characters:,} characters, --full" if characters else format_size(text)


def cut_text(text: str, full: bool, characters: int = 0) -> str:
    """Return a text, a long one without its end, which is replaced by the size.

    Args:
        characters: the length of a text that the server has cut, else 0.
    """
    if characters or not (full or len(text) <= CUT_ANSWER):
        size = f"{characters:,} characters" if characters else format_size(text)
        return f"{text[:CUT_ANSWER]}\n… {size} in all: --full"
    return text


def describe_session(session: Record) -> tuple[str, list[str]]:
    """Return the name of a session, and its id, component, user and hold."""
    session_id = clean_line(session.get("session_id"))
    named = find_component(session)
    facts = [f"session {session_id}"]
    if named is not None:
        facts.append(f"{named[0]} {clean_line(named[1])}")
    if session.get("user_id"):
        facts.append(clean_line(session["user_id"]))
    if (hold := session.get("hold")) is not None:
        facts.append(f"held {describe_hold(hold)}")
    return clean_line(session.get("session_name") or session_id), facts


def describe_hold(hold: Record) -> str:
    """Return the hold of a session: `since 2026-11-23 by ann: case 17`."""
    day, who, why = (clean_line(hold.get(name)) for name in ("held_at", "held_by", "reason"))
    return f"since {day[:10]} by {who}: {why}"


def count_session_tokens(session: Record) -> Iterator[str]:
    """Yield the tokens of a session, if they are known: `464 tokens (318 in, 146 out)`."""
    metrics = session.get("metrics") or {}
    total = metrics.get("total_tokens", session.get("total_tokens"))
    if not isinstance(total, int) or not total:
        return
    inward = metrics.get("input_tokens")
    outward = metrics.get("output_tokens")
    both = isinstance(inward, int) and isinstance(outward, int)
    text = f"{total:,} tokens" + (f" ({inward:,} in, {outward:,} out)" if both else "")
    yield text + _format_cost(session)


def describe_objects(record: Record, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the label and the text of the objects of a record that are not empty."""
    for name in names:
        value = record.get(name)
        if name == "session_summary" and isinstance(value, dict):
            value = value.get("summary")
        if value:
            text = value if isinstance(value, str) else orjson.dumps(value).decode()
            yield name.removeprefix("session_"), clean_line(text)


class OriginText(NamedTuple):
    """The origin of a run that repeats another one, in words.

    Attributes:
        kind: `retry` or `fork`.
        place: what the run begins with: `after its message 4`, `from the beginning`.
    """

    kind: str
    run_id: str
    place: str


def describe_origin(run: Record) -> OriginText | None:
    """Return the origin of a run; None for a run that repeats none."""
    run_id = run.get("origin_run_id")
    at = run.get("origin_at")
    if not run_id:
        return None
    named = find_component(run)
    part = "step" if named is not None and named[0] == "workflow" else "message"
    place = f"after its {part} {at}" if at else "from the beginning"
    return OriginText(clean_line(run.get("origin_kind") or "repeat"), clean_line(run_id), place)


def describe_causes(run: DrawnRun) -> Iterator[tuple[str, str]]:
    """Yield the causes of the failures of a run: the exception, and its place.

    A cause of a member or of a tool names it.
    """
    for cause in run.causes:
        message = clean_line(cause["message"])
        text = clean_line(cause["type"]) + (f": {message}" if message else "")
        tool = cause["tool_name"]
        run_id = cause["run_id"]
        own = run_id == run.record.get("run_id")
        source = [
            *([] if own else [f"{clean_line(cause['component_id'])}, run {clean_line(run_id)}"]),
            *([f"tool {clean_line(tool)}"] if tool else []),
        ]
        unknown = "the place is not known"
        if cause["type"] == MODEL_FAILURE:
            unknown = "the response of the model provider"
        place = clean_line(cause["place"] or unknown)
        yield text, " · ".join([place, *source])


def describe_details(run: Record) -> Iterator[tuple[str, str]]:
    """Yield label and text of the place of a run among other runs, and of its objects."""
    yield "session", clean_line(run.get("session_id"))
    if run.get("parent_run_id"):
        yield "parent run", clean_line(run["parent_run_id"])
    if (origin := describe_origin(run)) is not None:
        yield f"{origin.kind} of", f"{origin.run_id}, {origin.place}"
    if run.get("member_runs"):
        yield "member runs", clean_line(", ".join(map(str, run["member_runs"])))
    if run.get("version"):
        yield "version", clean_line(run["version"])
    if run.get("trace_id"):
        yield "trace", clean_line(run.get(TRACE_URL) or run["trace_id"])
    yield from describe_objects(run, SESSION_OBJECTS[1:])
