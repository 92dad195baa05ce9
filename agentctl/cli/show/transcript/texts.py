"""The choices of a reader of a transcript, and texts that all forms of it share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from agentctl.cli.show.transcript.model import RunView, clean_line
from agentctl.records.kinds import Record
from agentctl.records.phase import Phase, describe_phase
from agentctl.records.times import now, parse_rfc3339
from agentctl.requests import RunView as RunForm

SHORT_RESULT = 200
"""Characters of a result of a tool that is shown without `full`; of a longer one its size is."""

CUT_ANSWER = 20_000
"""Characters of an answer that are shown, and requested from a server, without `full`."""


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

    def opens(self, member: RunView) -> bool:
        """Return True if the items of a member are shown."""
        return self.members or member.is_live or member.record.get("status") == "ERROR"

    def shows(self, result: str) -> bool:
        """Return True if the result of a tool is shown instead of its size."""
        return self.full or len(result) <= SHORT_RESULT

    @property
    def run_view(self) -> RunForm:
        """The form in which runs are read: without `full` long texts are cut by the server."""
        return RunForm() if self.full else RunForm(cut=CUT_ANSWER)

    def place(self, moment: datetime) -> datetime:
        """Return a time in the time zone of the reader."""
        return moment.astimezone(None if self.local_time else UTC)


def describe_run(record: Record) -> Phase:
    """Return the state of a run; the facts of one that has stopped are as of its end."""
    phase = describe_phase(record, now())
    if phase.warning or not record.get("finished_at"):
        return phase
    try:
        return describe_phase(record, parse_rfc3339(str(record["finished_at"])))
    except ValueError:
        return phase


def format_time(moment: datetime, look: Look) -> str:
    """Return the time of day: `13:47:47`."""
    return look.place(moment).strftime("%H:%M:%S")


def format_day(moment: datetime, look: Look) -> str:
    """Return the day: `21 Nov 2026, UTC`."""
    placed = look.place(moment)
    zone = clean_line(placed.strftime("%Z")) if look.local_time else "UTC"
    return f"{placed.day} {placed.strftime('%b %Y')}, {zone}"


def format_tokens(view: RunView, *, split: bool = False) -> str:
    """Return the tokens of a run with its members: `464 tokens (318 in, 146 out)`, or ''."""
    total = view.count_tokens("total_tokens")
    if not total:
        return ""
    text = f"{total:,} token{'' if total == 1 else 's'}{' so far' if view.is_live else ''}"
    if not split:
        return text
    inward, outward = (view.count_tokens(f"{side}_tokens") for side in ("input", "output"))
    return f"{text} ({inward:,} in, {outward:,} out)"


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
