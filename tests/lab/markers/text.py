"""Markers: random words in the texts of a user, which name the user, the session and the run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.lab import ledger

__all__ = ["Marker", "find_markers", "write_entry"]

_MARKER = re.compile(r"mk([ab])([0-9a-f]{8})x([0-9a-f]{8})")

_ALL = "00000000"


@dataclass(frozen=True)
class Marker:
    """A marker.

    Attributes:
        user: letter of the user.
        session: eight digits of the session; zeros for what all sessions of the user share.
        run: eight digits of the run; zeros for what all runs of the session share.
    """

    user: str
    session: str = _ALL
    run: str = _ALL

    def __str__(self) -> str:
        return f"mk{self.user}{self.session}x{self.run}"

    @property
    def is_of_run(self) -> bool:
        return self.run != _ALL

    def new_session(self, chance: Random) -> Marker:
        return Marker(self.user, f"{chance.randrange(1, 1 << 32):08x}")

    def new_run(self, chance: Random) -> Marker:
        return Marker(self.user, self.session, f"{chance.randrange(1, 1 << 32):08x}")

    def may_see(self, other: Marker) -> bool:
        """Return True if the other one is of the same user, and of no other session."""
        shared = _ALL in (self.session, other.session)
        return self.user == other.user and (shared or self.session == other.session)


def find_markers(text: str | bytes) -> set[Marker]:
    """Return the markers in a text."""
    decoded = text.decode("latin-1") if isinstance(text, bytes) else text
    return {Marker(*found) for found in _MARKER.findall(decoded)}


def write_entry(place: str, found: Iterable[Marker], **more: Any) -> None:
    """Add an entry to the ledger."""
    ledger.write(place=place, markers=sorted(map(str, found)), **more)
