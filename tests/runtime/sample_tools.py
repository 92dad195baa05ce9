"""Tools for the agents of these tests."""

from __future__ import annotations

import asyncio
import enum
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator

TOOLS = "tests.runtime.sample_tools"

release = threading.Event()
"""Releases `stuck`."""

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
    """A place."""

    city: str
    country: Literal["de", "fr"] = "de"


@dataclass
class Weather:
    """A weather report."""

    place: str
    degrees: float
    on: date


def weather(place: Place, days: list[Place] | None = None) -> Weather:
    """Reports the weather."""
    return Weather(place.city, 21.5, date(2026, 1, 2))


def fails(text: str = "") -> str:
    """Fails, with a secret in its exception."""
    raise ValueError(f"wrong password {SECRET}")


def leaves() -> None:
    """Tries to end the program."""
    raise SystemExit(3)


async def leaves_too() -> None:
    """Tries to end the program."""
    raise SystemExit(3)


async def interrupts() -> None:
    """Raises KeyboardInterrupt, like Ctrl-C."""
    raise KeyboardInterrupt


def interrupts_its_thread() -> None:
    """Raises KeyboardInterrupt, like Ctrl-C."""
    raise KeyboardInterrupt


class Uncommon(BaseException):
    """Not a subclass of Exception."""


async def uncommon() -> None:
    """Raises an exception that `except Exception` does not catch."""
    raise Uncommon


def cancels_itself() -> None:
    """Raises a CancelledError without a cancel."""
    raise asyncio.CancelledError


def closes() -> None:
    """Raises GeneratorExit."""
    raise GeneratorExit


class Odd(BaseModel):
    """A type whose validator raises an unexpected exception."""

    text: str

    @field_validator("text")
    @classmethod
    def refuse(cls, text: str) -> str:
        raise KeyError(SECRET)


def odd(value: Odd) -> str:
    """Takes an odd value."""
    return value.text


async def gives_up() -> None:
    """Raises its own CancelledError."""
    raise asyncio.CancelledError


def nothing() -> None:
    """Returns nothing."""


def unprintable() -> Any:
    """Returns a value without a JSON form."""
    return object()


def counts() -> Iterator[int]:
    """Returns three numbers, one by one."""
    yield from (1, 2, 3)


def never_ends() -> Iterator[str]:
    """Returns numbers without an end."""
    for number in itertools.count():
        yield str(number)


async def streams() -> AsyncIterator[int]:
    """An asynchronous generator."""
    yield 1


def promises() -> Any:
    """Returns a coroutine from a plain function."""
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
    """Returns bytes that are not text."""
    return b"\xff"


class Colour(enum.StrEnum):
    """A subclass of str."""

    RED = "red"


def colour() -> Colour:
    """Returns a string of another class."""
    return Colour.RED


def ambiguous() -> float:
    """Returns NaN."""
    return float("nan")


def long_text(size: int) -> str:
    """Returns many two-byte characters."""
    return "é" * size


def dirty() -> str:
    """Returns text that cannot be stored."""
    return "a\x00b\ud800c"


def dirty_record() -> dict[str, str]:
    """Returns a record with text that cannot be stored."""
    return {"text": "a\ud800c"}


def stuck() -> str:
    """Blocks its thread until `release` is set."""
    release.wait(600)
    return "late"


async def stuck_elsewhere() -> str:
    """Blocks a thread that it starts through a library."""
    return await asyncio.to_thread(stuck)


async def sleepy() -> str:
    """Waits for a long time and can be cancelled."""
    await asyncio.sleep(600)
    return "late"


async def stubborn() -> str:
    """Ignores its cancellation. The end of the event loop cancels it again."""
    for _ in range(2):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
    return "late"


def delegate_task_to_member(member_id: str) -> str:
    """Has the name of a delegation tool."""
    return member_id


def untyped(text) -> str:  # type: ignore[no-untyped-def]
    return str(text)


def variable(*texts: str) -> str:
    return "".join(texts)


def opaque(lock: threading.Lock) -> None:
    """Takes a value without a JSON form."""


def unknown(value: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Has an undefined type."""


def größe() -> int:
    return 1


class NotAFunction:
    """A class."""


def long_list() -> list[Any]:
    """Returns a million numbers, and then a value without a JSON form."""
    return [*[7] * 1_000_000, object()]


def long_object() -> dict[str, Any]:
    """Returns an object with a list that does not end."""
    return {"place": "Bonn", "numbers": itertools.count()}


async def long_rows() -> list[Any]:
    """Returns many rows, and then a value without a JSON form."""
    return [*[{"id": 7, "name": "x" * 10_000_000}] * 1_000, object()]


@dataclass
class Rows:
    """A dataclass with a long field."""

    name: str
    rows: tuple[Any, ...]


def long_record() -> Rows:
    """Returns a dataclass with many rows, and then a value without a JSON form."""
    return Rows("é", (*[1.5] * 1_000_000, object()))
