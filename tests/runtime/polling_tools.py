"""Tools that a model calls again and again; `made` has the calls."""

from __future__ import annotations

made: list[str] = []
"""The places of the calls of `poll`, in their order; the tests empty it."""


async def poll(place: str) -> str:
    """Look at a place."""
    made.append(place)
    return f"nothing at {place}"


def poll_in_thread(place: str) -> str:
    """Look at a place."""
    made.append(place)
    return f"nothing at {place}"
