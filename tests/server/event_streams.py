"""Helpers that read streams of runs over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import orjson

from tests.kit.threaded_server import ThreadedServer
from tests.server.seeds import as_caller

__all__ = ["Event", "parse_events", "record", "start_and_disconnect"]

Event = tuple[str, dict[str, Any], int]
"""Name, data and number."""


def parse_events(lines: Iterator[str]) -> Iterator[Event]:
    """Return name, data and number of each event."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if name and value:
            fields[name] = value
        elif fields:
            yield fields["event"], orjson.loads(fields["data"]), int(fields["id"])
            fields = {}


def record(host: ThreadedServer, run_id: str) -> dict[str, Any]:
    answer = host.client.get(f"/runs/{run_id}", headers=as_caller(host, "admin"))
    found: dict[str, Any] = answer.json()
    return found


def start_and_disconnect(host: ThreadedServer, body: dict[str, Any]) -> str:
    """Start a stream, read its first event, disconnect and return the id of the run."""
    headers = as_caller(host, "me")
    with httpx2.stream(
        "POST", f"{host.url}/agents/hang/runs", json=body, headers=headers
    ) as answer:
        _, first, _ = next(parse_events(answer.iter_lines()))
        return str(first["run_id"])
