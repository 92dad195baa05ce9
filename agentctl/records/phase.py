"""The name of the state of a run for people: status, cancel request and stop in one word.

"Cancel requested" and "stopped" are two facts (docs/cancellation.md): after the end of a run its
work may continue. Every view takes its words from here, and the server offers them (`view=phase`,
`view=items`). Glyphs and colors belong to what draws a run (`agentctl.transcripts.texts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from typing_extensions import TypedDict

from agentctl.records.times import format_rfc3339, format_span, now, parse_rfc3339

PhaseName = Literal[
    "queued", "running", "paused", "stopping", "stopped", "completed", "failed", "unknown"
]

_NAMES: dict[str, PhaseName] = {
    "PENDING": "queued",
    "RUNNING": "running",
    "PAUSED": "paused",
    "CANCELLED": "stopped",
    "COMPLETED": "completed",
    "ERROR": "failed",
}

_STARTED = ("task ", "thread ", "process ")
"""Beginnings of the names of work that the code of an agent has started."""

_WAITS = {
    "approval": "approval of {}",
    "input": "an answer to {}",
    "external": "the result of {}",
    "outcome": "the outcome of {}",
}
"""Texts about the wait of a run, by kind of approval; each takes the name of the tool."""


class PhaseRecord(TypedDict):
    """The state of a run for people, as `view=phase` and `view=items` return it.

    `warning` is `work goes on` if the run has ended and its work has not, else empty. `sentence`
    has the facts about the wait, the cancel, the stop and the failure; empty if there are none.
    """

    name: PhaseName
    words: str
    warning: str
    sentence: str


def describe_phase(run: Mapping[str, Any], at: int) -> PhaseRecord:
    """Return the state of a run at a time.

    Args:
        run: a run record, a summary, or the result of a cancel. Missing fields are null.
        at: the time of the reading, microseconds UTC, from which ages are counted.
    """
    status = str(run.get("status") or "")
    name = _NAMES.get(status, "unknown")
    if name in ("queued", "running") and run.get("cancel_requested_at") is not None:
        name = "stopping"

    has_ended = name in ("stopped", "completed", "failed") and run.get("finished_at") is not None
    warning = ""
    if has_ended and run.get("stopped_at") is None:
        warning = "work goes on"

    words: str = name
    if name == "unknown" and status:
        # A status of a later version.
        words = status.lower()

    sentence = "; ".join(fact for fact in _find_facts(run, name, warning, at) if fact)
    return {"name": name, "words": words, "warning": warning, "sentence": sentence}


def describe_run(run: Mapping[str, Any]) -> PhaseRecord:
    """Return the present state of a run; the facts of a run that has stopped are as of its end."""
    phase = describe_phase(run, now())
    if phase["warning"] or not phase["sentence"]:
        # Work that continues, or no fact with a time: most runs of a list.
        return phase

    ended_at = _parse(run.get("finished_at"))
    return phase if ended_at is None else describe_phase(run, ended_at)


def describe_holding(holding: list[str] | None) -> str:
    """Return a clause about the work of an ended run: `tool nap has not returned`.

    Args:
        holding: names of tools, `task NAME`, `thread NAME` and `process NAME`, and `runner` for
            other code of the agent; None if not known.
    """
    if not holding:
        return "its work may still run"

    started = [name for name in holding if name.startswith(_STARTED)]
    tools = [name for name in holding if name != "runner" and name not in started]

    parts: list[str] = []
    if tools:
        noun = "tool" if len(tools) == 1 else "tools"
        parts.append(f"{noun} {', '.join(tools)}")
    parts += started
    if "runner" in holding:
        parts.append("the code of the agent")

    verb = "has" if len(holding) == 1 else "have"
    text = parts[-1]
    if len(parts) > 1:
        text = f"{', '.join(parts[:-1])} and {text}"
    return f"{text} {verb} not returned"


def describe_wait(approvals: Iterable[Mapping[str, Any]]) -> str:
    """Return what a paused run waits for: `approval of pay and an answer to ask`.

    Args:
        approvals: of its record, or of the event of its pause.
    """
    tools: dict[str, list[str]] = {}
    for approval in approvals:
        if approval.get("status") in (None, "pending"):
            tools.setdefault(str(approval.get("kind")), []).append(str(approval.get("tool_name")))

    parts = [
        _WAITS.get(kind, "approval of {}").format(", ".join(dict.fromkeys(names)))
        for kind, names in tools.items()
    ]
    return " and ".join(parts) or "a decision"


def _describe_pause(run: Mapping[str, Any], at: int) -> str:
    wait = describe_wait(run.get("approvals") or ())
    paused_at = _parse(run.get("paused_at"))
    if paused_at is None:
        return f"waits for {wait}"
    return f"waits {_format_seconds(at - paused_at)} for {wait}, since{_format_time(paused_at, at)}"


def _find_facts(run: Mapping[str, Any], name: str, warning: str, at: int) -> list[str]:
    facts = []
    if name == "queued" and run.get("queue_position") is not None:
        fact = f"place {run['queue_position']} in the queue of its session"
        queued_at = _parse(run.get("queued_at"))
        if queued_at is not None:
            fact += f", since{_format_time(queued_at, at)}"
        facts.append(fact)

    if name == "paused":
        facts.append(_describe_pause(run, at))

    error = run.get("error") or {}
    if name == "failed" and error.get("code"):
        facts.append(": ".join(str(error[key]) for key in ("code", "detail") if error.get(key)))

    if run.get("cancel_requested_at") is not None:
        requested_at = _parse(run["cancel_requested_at"])
        when = _format_time(requested_at, at)
        if name == "stopping" and requested_at is not None:
            when = f" {_format_seconds(at - requested_at)} ago"
        elif name in ("completed", "failed"):
            facts.append(f"{name} before the cancel took effect")

        fact = f"cancel requested{when}"
        if run.get("cancel_requested_by"):
            fact += f" by {run['cancel_requested_by']}"
        facts.append(fact)

    return [*facts, *_find_end_facts(run, name, warning, at)]


def _find_end_facts(run: Mapping[str, Any], name: str, warning: str, at: int) -> list[str]:
    """Return the time of the end of a run, and what happened after it."""
    if not warning and name != "stopped" and run.get("late_result") != "dropped":
        return []

    ended_at = _parse(run.get("finished_at"))
    stopped_at = _parse(run.get("stopped_at"))

    if warning:
        fact = describe_holding(run.get("holding"))
        if ended_at is not None:
            fact += f" ({_format_seconds(at - ended_at)})"
    elif run.get("late_result") == "dropped":
        fact = "a late result was dropped"
        if stopped_at is not None and ended_at is not None:
            fact += f" after {_format_seconds(stopped_at - ended_at)}"
    elif name == "stopped" and stopped_at is not None:
        return [f"stopped{_format_time(stopped_at, at)}"]
    else:
        return []

    return [f"the run ended{_format_time(ended_at, at)}", fact]


def _parse(moment: object) -> int | None:
    try:
        return parse_rfc3339(str(moment))
    except ValueError:
        return None


def _format_time(moment: int | None, at: int) -> str:
    if moment is None:
        return ""
    date, _, time = format_rfc3339(moment).partition("T")
    today = format_rfc3339(at).partition("T")[0]
    return f" {time[:11]}" if date == today else f" {date} {time[:11]}"


def _format_seconds(microseconds: int) -> str:
    """Return a span in whole units, rounded down, so that no language rounds differently."""
    seconds = max(microseconds, 0) // 1_000_000
    if seconds < 60:
        return format_span(seconds)

    unit = 60 if seconds < 86_400 else 3_600
    return format_span(seconds - seconds % unit)
