"""The cost of a log line: agentctl's formatter next to those of the standard library.

`python -m tests.benchmarks.reasons.log_lines 2> /dev/null` writes the line of a finished request
many times to stderr and prints the CPU microseconds of one, and whether a line feed in a value
ends the line.
"""

from __future__ import annotations

import json
import logging
import statistics
import time
from collections.abc import Callable

from agentctl.config.observability import Log
from agentctl.server.observability.log import FIELDS_ATTRIBUTE, log_to_stderr

LINES = 20_000
ROUNDS = 7
FORGED = "a\n2026-01-01T00:00:00.000Z ERROR agentctl.server: forged"
VALUES = {
    "request_id": "01a1f9b9-a779-74d5-a5d9-1075b3a26fef",
    "principal": "user-4711",
    "operation": "get_agents",
    "method": "GET",
    "status": 200,
    "duration_ms": 1.23,
}


class JsonFormatter(logging.Formatter):
    """JSON with the standard library."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS_ATTRIBUTE, {}),
        }
        return json.dumps(line)


class TextFormatter(logging.Formatter):
    """Text with the standard library: the fields after the message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, FIELDS_ATTRIBUTE, {})
        return super().format(record) + "".join(f" {name}={fields[name]}" for name in fields)


def ours(form: str) -> logging.Handler:
    """Return the handler that a server installs."""
    root = logging.getLogger()
    root.handlers.clear()
    log_to_stderr(Log(form, "info"))  # type: ignore[arg-type]
    return root.handlers[0]


def standard(formatter: logging.Formatter) -> logging.Handler:
    """Return a stream handler of the standard library."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    return handler


WAYS: dict[str, Callable[[], logging.Handler]] = {
    "agentctl, readable": lambda: ours("readable"),
    "agentctl, json": lambda: ours("json"),
    "logging, text": lambda: standard(TextFormatter()),
    "logging, json": lambda: standard(JsonFormatter()),
}


def cost(handler: logging.Handler) -> float:
    """Return the CPU microseconds of one line."""
    logger = logging.Logger("agentctl.access", logging.INFO)
    logger.addHandler(handler)
    began = time.process_time()
    for _ in range(LINES):
        logger.info("request finished", extra={FIELDS_ATTRIBUTE: VALUES})
    return (time.process_time() - began) / LINES * 1_000_000


def forged(handler: logging.Handler) -> bool:
    """Return True if a value with a line feed begins a second line."""
    record = logging.makeLogRecord(
        {"name": "agentctl.runs", "levelno": logging.INFO, "levelname": "INFO", "msg": "%s"}
        | {"args": (FORGED,), FIELDS_ATTRIBUTE: {"session_id": FORGED}}
    )
    return "\n" in handler.format(record)


def main() -> None:
    """Print the table."""
    rounds: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(ROUNDS):
        for name, build in WAYS.items():
            rounds[name].append(cost(build()))
    print("| formatter | us a line | a value can forge a line |\n| --- | --- | --- |")
    for name, took in rounds.items():
        answer = "yes" if forged(WAYS[name]()) else "no"
        span = f"{min(took):.1f} to {max(took):.1f}"
        print(f"| {name} | {statistics.median(took):.1f} ({span}) | {answer} |")


if __name__ == "__main__":
    main()
