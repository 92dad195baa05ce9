"""Agents in code that take an object; the tests write this file to a folder."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, NotRequired
from typing import TypedDict as PlainTypedDict

from pydantic import BaseModel, field_validator
from typing_extensions import TypedDict

from agentctl import RunContext


@dataclass
class Order:
    number: str
    pieces: int = 1


class Place(TypedDict):
    city: str
    country: NotRequired[str]


class Stop(PlainTypedDict, total=False):
    place: Place


class Route(PlainTypedDict):
    stops: list[Stop] | None
    name: NotRequired[str]


class Ticket(BaseModel):
    title: str
    tags: list[str] = []

    @field_validator("title")
    @classmethod
    def check_title(cls, title: str) -> str:
        if title == "broken":
            raise RuntimeError("secret-of-the-code")
        if not title.istitle():
            raise ValueError(f"secret-of-the-code {title}")
        return title


def describe(value: object, context: RunContext) -> str:
    return f"{type(value).__name__} {value} {json.dumps(context.input)}"


async def take_order(order: Order, context: RunContext) -> str:
    return describe(order, context)


def take_place(place: Place, context: RunContext) -> str:
    return describe(place, context)


async def take_route(route: Route, context: RunContext) -> str:
    return describe(route, context)


async def take_ticket(ticket: Ticket, context: RunContext) -> AsyncIterator[str]:
    for part in describe(ticket, context):
        yield part


async def take_numbers(numbers: dict[str, int], context: RunContext) -> str:
    numbers["sum"] = sum(numbers.values())
    return describe(numbers, context)


async def take_any(value: Mapping[str, Any]) -> str:
    return json.dumps(value)


async def take_either(given: Order | str, context: RunContext) -> str:
    return describe(given, context)


async def take_message(message: str, context: RunContext) -> str:
    return describe(message, context)


async def take_history(message: str, context: RunContext) -> str:
    return json.dumps([each["content"] for each in context.history])


async def make_order_agent() -> Any:
    return take_order
