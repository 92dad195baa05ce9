"""Tools that the agents of these tests are given."""

from __future__ import annotations

import asyncio
import enum
import itertools
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator

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


async def leaves_too() -> None:
    """Ends the program, it thinks."""
    raise SystemExit(3)


async def interrupts() -> None:
    """Raises what Ctrl-C does."""
    raise KeyboardInterrupt


def interrupts_its_thread() -> None:
    """Raises what Ctrl-C does."""
    raise KeyboardInterrupt


class Uncommon(BaseException):
    """No Exception at all."""


async def uncommon() -> None:
    """Raises what no `except Exception` catches."""
    raise Uncommon


def cancels_itself() -> None:
    """Raises a cancellation where there is none."""
    raise asyncio.CancelledError


def closes() -> None:
    """Raises what ends generators."""
    raise GeneratorExit


class Odd(BaseModel):
    """Its check fails with what is no answer of a check."""

    text: str

    @field_validator("text")
    @classmethod
    def refuse(cls, text: str) -> str:
        raise KeyError(SECRET)


def odd(value: Odd) -> str:
    """Takes an odd value."""
    return value.text


async def gives_up() -> None:
    """Raises a cancellation of its own."""
    raise asyncio.CancelledError


def nothing() -> None:
    """Returns nothing."""


def unprintable() -> Any:
    """Returns what has no JSON form."""
    return object()


def counts() -> Iterator[int]:
    """Returns three numbers, one by one."""
    yield from (1, 2, 3)


def never_ends() -> Iterator[str]:
    """Returns numbers, and never all."""
    for number in itertools.count():
        yield str(number)


async def streams() -> AsyncIterator[int]:
    """Is no function that returns."""
    yield 1


def promises() -> Any:
    """Returns something to await, and nobody knows."""
    return whisper("x")


def cyclic() -> Any:
    """Returns a list within itself."""
    items: list[Any] = []
    items.append(items)
    return items


def deep() -> Any:
    """Returns lists within each other."""
    items: list[Any] = []
    for _ in range(100_000):
        items = [items]
    return items


def undecodable() -> bytes:
    """Returns bytes that are no text."""
    return b"\xff"


class Colour(enum.StrEnum):
    """A string that is more than that."""

    RED = "red"


def colour() -> Colour:
    """Returns a string of another class."""
    return Colour.RED


def ambiguous() -> float:
    """Returns no number."""
    return float("nan")


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
