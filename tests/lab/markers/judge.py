"""Findings of the proof: markers where they must not be, and counts of all that was checked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.lab.ledger import Ledger
from tests.lab.markers.text import Marker, find_markers

__all__ = ["Note", "Outcome", "judge_ledger", "list_places"]

_EXCERPT = 300


@dataclass
class Note:
    """A run, as its client knows it.

    Attributes:
        behaviour: what the model endpoint does.
        fate: what the client does: `read`, `cancel` or `disconnect`.
        run_id: the id of the run, once a response had it.
        status: the last status that a response had; empty for none.
    """

    marker: Marker
    component: str
    face: str
    behaviour: str
    fate: str
    number: int
    run_id: str = ""
    status: str = ""


@dataclass
class Outcome:
    """The findings of one search.

    Attributes:
        violations: markers of another user, session or run, with their place.
        first: number of runs that were started until a client received the first one.
        entries: entries of the ledger by place.
        responses: bytes that clients received, by place.
        of_session: answers with the marker of another run of the same session.
    """

    notes: list[Note] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    first: int = 0
    entries: Counter[str] = field(default_factory=Counter)
    responses: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    of_session: set[str] = field(default_factory=set)
    kills: int = 0
    seconds: float = 0

    def receive(self, owner: Marker, data: bytes, place: str) -> None:
        """Check what a client received."""
        self.responses[place] += len(data)
        foreign = [each for each in find_markers(data) if not owner.may_see(each)]
        if foreign:
            text = _cut(data.decode(errors="replace"), foreign[0])
            self.report(f"{place}: {owner} received {foreign[0]}: {text}")

    def report(self, violation: str) -> None:
        self.first = self.first or len(self.notes)
        self.violations.append(f"after {len(self.notes)} runs, {violation}")

    def format(self) -> str:
        """Return the report."""
        notes = self.notes
        completed = Counter(note.component for note in notes if note.status == "COMPLETED")
        lines = [
            f"{len(notes)} runs in {self.seconds:.0f} s, {self.kills} workers killed",
            f"{sum(self.entries.values())} entries of the ledger, "
            f"{sum(self.responses.values()) / 1e6:.1f} MB received, "
            f"{len(self.violations)} violations",
            f"{len(self.of_session)} answers with text of another run of the same session",
        ]
        if self.first:
            lines.append(f"the first one after {self.first} runs")
        counts = {
            "component (completed)": Counter(
                f"{note.component} ({completed[note.component]})" for note in notes
            ),
            "face": Counter(note.face for note in notes),
            "model": Counter(note.behaviour for note in notes),
            "client": Counter(note.fate for note in notes),
            "last status": Counter(note.status or "unknown" for note in notes),
            "response": self.statuses,
            "ledger": self.entries,
        }
        for name, found in counts.items():
            lines.append(f"{name}: " + ", ".join(f"{key} {n}" for key, n in sorted(found.items())))
        return "\n".join(lines)


def judge_ledger(ledger: Ledger, outcome: Outcome) -> None:
    """Check each request of the model endpoint, and each call of a tool."""
    runs = {note.run_id: note.marker for note in outcome.notes if note.run_id}
    for entry in ledger.read():
        place = entry["place"]
        outcome.entries[place] += 1
        found = sorted(find_markers(" ".join(entry["markers"])), key=str)
        foreign = [(a, b) for a in found for b in found if not a.may_see(b)]
        if foreign:
            text = _cut(entry.get("text", ""), foreign[0][1])
            outcome.report(f"{place}: {foreign[0][0]} together with {foreign[0][1]}: {text}")
        if "argument" not in entry:
            continue

        (own,) = find_markers(entry["run"])
        caused = find_markers(" ".join(entry["argument"]))
        if caused - {own} if own.is_of_run else not all(map(own.may_see, caused)):
            outcome.report(f"{place}: the run of {own} called it for {entry['argument']}")
        started = runs.get(entry["run_id"], own)
        if own.is_of_run and started != own:
            outcome.report(f"{place}: the run of {started} has the metadata of {own}")


def list_places(ledger: Ledger) -> set[str]:
    """Return the places that have an entry in the ledger."""
    return {entry["place"] for entry in ledger.read()}


def _cut(text: str, marker: Marker) -> str:
    start = max(0, text.find(str(marker)) - _EXCERPT // 2)
    return repr(text[start : start + _EXCERPT])
