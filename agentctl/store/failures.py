"""Failures that both engines report, as errors for callers."""

from __future__ import annotations

from agentctl import errors


def build_moved() -> errors.DatabaseMoved:
    """Build the error of a write to a database that was copied to another place."""
    return errors.DatabaseMoved(
        "The database has moved: the server must be started with the new one",
        hint="db status names the new place",
    )


def build_moving() -> errors.DatabaseMoved:
    """Build the error of a start while a copy waits for the end of the live runs."""
    return errors.DatabaseMoved("The database moves to another place: no run starts until then")
