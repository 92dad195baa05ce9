"""The rows of the list of runs: filtered, sorted, members below the runs that started them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from agentctl.light_dataclass import dataclass
from agentctl.records.kinds import find_component
from agentctl.records.phase import describe_run
from agentctl.top.feed import Run, is_live
from agentctl.transcripts.model import clean_line, find_tokens

FILTER_KEYS = ("agent", "team", "workflow", "user", "session", "status")

MAXIMUM_LEVELS = 32
"""Levels of members; a server could return runs that are their own parents."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run of the list.

    Attributes:
        level: the number of its parents in the list.
        is_last: no run with the same parent follows.
    """

    run: Run
    level: int = 0
    is_last: bool = True

    @property
    def run_id(self) -> str:
        return str(self.run["run_id"])


def _created(run: Run) -> str:
    return str(run.get("created_at"))


SORTS: dict[str, tuple[Callable[[Run], Any], bool]] = {
    "newest": (_created, True),
    "oldest": (_created, False),
    "tokens": (lambda run: find_tokens(run) or 0, True),
    "component": (lambda run: find_component(run) or ("", ""), False),
    "user": (lambda run: str(run.get("user_id") or ""), False),
}
"""The orders of the list: key, and True for the largest first."""


def arrange_runs(runs: Iterable[Run], words: str = "", sort: str = "newest") -> list[Row]:
    """Return the rows of the runs that match a filter: live runs first, then those that ended.

    A member is below its parent, at any depth, and is shown with its parent if that matches.

    Args:
        words: see `matches`.
        sort: a name of `SORTS`; it orders the runs of each level.
    """
    key, largest_first = SORTS[sort]
    ordered = sorted(sorted(runs, key=_created, reverse=True), key=key, reverse=largest_first)
    known = {str(run["run_id"]) for run in ordered}
    children: dict[str, list[Run]] = {}
    tops: list[Run] = []
    for run in ordered:
        parent = str(run.get("parent_run_id") or "")
        if parent in known and parent != run["run_id"]:
            children.setdefault(parent, []).append(run)
        else:
            tops.append(run)
    tops.sort(key=lambda run: not is_live(run))
    for group in children.values():
        group.sort(key=_created)
    return [row for top in tops for row in _walk(top, children, words, shown=False)]


def _walk(
    run: Run,
    children: Mapping[str, list[Run]],
    words: str,
    *,
    shown: bool,
    level: int = 0,
    is_last: bool = True,
) -> Iterator[Row]:
    shown = shown or matches(run, words)
    if shown:
        yield Row(run, level, is_last)
        level += 1
    below = children.get(str(run["run_id"]), []) if level < MAXIMUM_LEVELS else []
    for child in below:
        yield from _walk(
            child, children, words, shown=shown, level=level, is_last=child is below[-1]
        )


def list_descendants(runs: Iterable[Run], run_ids: Iterable[str]) -> list[Run]:
    """Return the runs below some runs, at any depth, without these."""
    found, parents = [], set(run_ids)
    rest = [run for run in runs if str(run["run_id"]) not in parents]
    while below := [run for run in rest if str(run.get("parent_run_id")) in parents]:
        found += below
        parents = {str(run["run_id"]) for run in below}
        rest = [run for run in rest if str(run["run_id"]) not in parents]
    return found


def matches(run: Mapping[str, Any], words: str) -> bool:
    """Return True if a run matches every word of a filter.

    A word is `agent:ID`, `team:ID`, `workflow:ID`, `user:ID`, `session:ID`, `status:WORD`, or a
    text that one of these contains.
    """
    if not words.strip():
        return True
    kind, component = find_component(run) or ("", "")
    values = {
        "user": str(run.get("user_id") or ""),
        "session": str(run.get("session_id") or ""),
        "status": describe_run(run)["words"],
        kind: component,
    }
    texts = [clean_line(text).lower() for text in (*values.values(), str(run.get("run_id")))]
    for word in words.lower().split():
        key, colon, value = word.partition(":")
        if colon and key in FILTER_KEYS:
            if value not in values.get(key, "").lower() or not values.get(key):
                return False
        elif not any(word in text for text in texts):
            return False
    return True
