"""Tools that the agents of these tests are given."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

TOOLS = "tests.runtime.toolbox"

release = threading.Event()
"""Lets `stuck` go."""

SECRET = "hunter2"


def add(a: int, b: int = 2) -> int:
    """Adds two numbers.

    The second is 2 unless given.
    """
    return a + b


def shout(text: str) -> str:
    return text.upper()


async def whisper(
    text: str, times: Annotated[int, Field(ge=1, description="how often")] = 1
) -> str:
    """Lowers a text."""
    await asyncio.sleep(0)
    return text.lower() * times


class Place(BaseModel):
    """Where."""

    city: str
    country: Literal["de", "fr"] = "de"


@dataclass
class Weather:
    """How."""

    place: str
    degrees: float
    on: date


def weather(place: Place, days: list[Place] | None = None) -> Weather:
    """Tells the weather."""
    return Weather(place.city, 21.5, date(2026, 1, 2))


def fails(text: str = "") -> str:
    """Fails, with a secret in its exception."""
    raise ValueError(f"wrong password {SECRET}")


def leaves() -> None:
    """Ends the program, it thinks."""
    raise SystemExit(3)


async def gives_up() -> None:
    """Raises a cancellation of its own."""
    raise asyncio.CancelledError


def nothing() -> None:
    """Returns nothing."""


def unprintable() -> Any:
    """Returns what has no JSON form."""
    return object()


def long_text(size: int) -> str:
    """Returns many two-byte characters."""
    return "é" * size


def dirty() -> str:
    """Returns what cannot be stored."""
    return "a\x00b\ud800c"


def dirty_record() -> dict[str, str]:
    """Returns a record with what cannot be stored."""
    return {"text": "a\ud800c"}


def stuck() -> str:
    """Blocks its thread until `release` is set."""
    release.wait(30)
    return "late"


async def sleepy() -> str:
    """Waits for long, and can be cancelled."""
    await asyncio.sleep(30)
    return "late"


async def stubborn() -> str:
    """Swallows its cancellation for a while."""
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        try:
            await asyncio.sleep(0.5)
        except asyncio.CancelledError:
            continue
    return "late"


def delegate_task_to_member(member_id: str) -> str:
    """Named like a tool of ours."""
    return member_id


def untyped(text) -> str:  # type: ignore[no-untyped-def]
    return str(text)


def variable(*texts: str) -> str:
    return "".join(texts)


def opaque(lock: threading.Lock) -> None:
    """Takes what has no JSON form."""


def unknown(value: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Names a type that is not there."""


def größe() -> int:
    return 1


class NotAFunction:
    """A class."""
