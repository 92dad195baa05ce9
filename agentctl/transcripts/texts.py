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
from agentctl.records.text import format_count
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
    """The look of a state."""

    glyph: str
    """One character, shown together with the words only."""

    ascii: str
    """The glyph for terminals without UTF-8."""

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
    """The choices of a reader."""

    full: bool = False
    """True to show whole tools, prompts and reasoning."""

    members: bool = False
    """True to open every member; else only members that failed or work are open."""

    raw: bool = False
    """True to show answers as they were sent, not as Markdown."""

    local_time: bool = False
    """True to show times in the time zone of this machine instead of UTC."""

    short_ids: bool = False
    """True to cut the ids of runs, for a terminal."""

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

    def to_reader_zone(self, moment: datetime) -> datetime:
        """Return a time in the time zone of the reader."""
        return moment.astimezone(None if self.local_time else UTC)


def format_time(moment: datetime, look: Look) -> str:
    """Return the time of day: `13:47:47`."""
    return look.to_reader_zone(moment).strftime("%H:%M:%S")


def format_day(moment: datetime, look: Look) -> str:
    """Return the day: `21 Nov 2026, UTC`."""
    local_moment = look.to_reader_zone(moment)
    zone = clean_line(local_moment.strftime("%Z")) if look.local_time else "UTC"
    return f"{local_moment.day} {local_moment.strftime('%b %Y')}, {zone}"


def format_tokens(run: DrawnRun, *, split: bool = False) -> str:
    """Return the tokens of a run with its members and their cost; "" if it has none.

    Args:
        split: True to add the input and the output: `464 tokens (318 in, 146 out)`.
    """
    total = find_tokens(run.record) or run.count_tokens("total_tokens")
    if not total:
        return ""

    text = format_count(total, "token")
    if run.is_live:
        text += " so far"
    if split:
        input_tokens = run.count_tokens("input_tokens")
        output_tokens = run.count_tokens("output_tokens")
        text += f" ({input_tokens:,} in, {output_tokens:,} out)"
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

    if size >= 10 or unit == "B":
        return f"{size:.0f} {unit}"
    return f"{size:.1f} {unit}"


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
    if not characters and (full or len(text) <= CUT_ANSWER):
        return text
    size = f"{characters:,} characters" if characters else format_size(text)
    return f"{text[:CUT_ANSWER]}\n… {size} in all: --full"


def describe_session(session: Record) -> tuple[str, list[str]]:
    """Return the name of a session, and its id, component, user and hold."""
    session_id = clean_line(session.get("session_id"))
    facts = [f"session {session_id}"]

    component = find_component(session)
    if component is not None:
        kind, component_id = component
        facts.append(f"{kind} {clean_line(component_id)}")

    if session.get("user_id"):
        facts.append(clean_line(session["user_id"]))

    hold = session.get("hold")
    if hold is not None:
        facts.append(f"held {describe_hold(hold)}")
    return clean_line(session.get("session_name") or session_id), facts


def describe_hold(hold: Record) -> str:
    """Return the hold of a session: `since 2026-11-23 by ann: case 17`."""
    day = clean_line(hold.get("held_at"))[:10]
    return f"since {day} by {clean_line(hold.get('held_by'))}: {clean_line(hold.get('reason'))}"


def count_session_tokens(session: Record) -> Iterator[str]:
    """Yield the tokens of a session, if they are known: `464 tokens (318 in, 146 out)`."""
    metrics = session.get("metrics") or {}
    total = metrics.get("total_tokens", session.get("total_tokens"))
    if not isinstance(total, int) or not total:
        return

    text = f"{total:,} tokens"
    input_tokens = metrics.get("input_tokens")
    output_tokens = metrics.get("output_tokens")
    if isinstance(input_tokens, int) and isinstance(output_tokens, int):
        text += f" ({input_tokens:,} in, {output_tokens:,} out)"
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
    """The origin of a run that repeats another run, in words."""

    kind: str
    """`retry` or `fork`."""

    run_id: str

    place: str
    """The place in the origin: `after its message 4`, `from the beginning`."""


def describe_origin(run: Record) -> OriginText | None:
    """Return the origin of a run; None for a run that repeats none."""
    run_id = run.get("origin_run_id")
    if not run_id:
        return None

    place = "from the beginning"
    at = run.get("origin_at")
    if at:
        component = find_component(run)
        is_workflow = component is not None and component[0] == "workflow"
        place = f"after its {'step' if is_workflow else 'message'} {at}"

    kind = clean_line(run.get("origin_kind") or "repeat")
    return OriginText(kind, clean_line(run_id), place)


def describe_causes(run: DrawnRun) -> Iterator[tuple[str, str]]:
    """Yield the causes of the failures of a run: the exception, and its place.

    A cause of a member or of a tool names it.
    """
    for cause in run.causes:
        text = clean_line(cause["type"])
        message = clean_line(cause["message"])
        if message:
            text += f": {message}"

        place = cause["place"]
        if not place and cause["type"] == MODEL_FAILURE:
            place = "the response of the model provider"
        elif not place:
            place = "the place is not known"
        parts = [clean_line(place)]

        run_id = cause["run_id"]
        if run_id != run.record.get("run_id"):
            parts.append(f"{clean_line(cause['component_id'])}, run {clean_line(run_id)}")
        if cause["tool_name"]:
            parts.append(f"tool {clean_line(cause['tool_name'])}")
        yield text, " · ".join(parts)


def describe_details(run: Record) -> Iterator[tuple[str, str]]:
    """Yield label and text of the place of a run among other runs, and of its objects."""
    yield "session", clean_line(run.get("session_id"))
    if run.get("parent_run_id"):
        yield "parent run", clean_line(run["parent_run_id"])
    origin = describe_origin(run)
    if origin is not None:
        yield f"{origin.kind} of", f"{origin.run_id}, {origin.place}"
    if run.get("member_runs"):
        yield "member runs", clean_line(", ".join(map(str, run["member_runs"])))
    if run.get("version"):
        yield "version", clean_line(run["version"])
    if run.get("trace_id"):
        yield "trace", clean_line(run.get(TRACE_URL) or run["trace_id"])
    yield from describe_objects(run, SESSION_OBJECTS[1:])
