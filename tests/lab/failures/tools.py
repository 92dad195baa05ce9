"""The tools of the agents of every kind, and the results that they check. A server imports this."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

__all__ = ["NAMED", "TIMEOUT", "TOOLS", "Total", "pay"]

SECRET = "secret of a tool"

TIMEOUT = 600.0
"""Time limit of the clients of the model, in seconds. By default they have 5 seconds for a
connection, which a busy machine exceeds."""


class Total(BaseModel):
    """A structured result."""

    total: int


class Odd:
    """A value that is no JSON."""

    def __repr__(self) -> str:
        raise RuntimeError(SECRET)


ERRORS: dict[str, Callable[[], BaseException]] = {
    "runtime": lambda: RuntimeError(SECRET),
    "key": lambda: KeyError(SECRET),
    "timeout": lambda: TimeoutError(SECRET),
    "connection": lambda: ConnectionResetError(SECRET),
    "cancelled": asyncio.CancelledError,
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "generator-exit": GeneratorExit,
    "stop": lambda: StopIteration(SECRET),
    "stop-async": lambda: StopAsyncIteration(SECRET),
    "memory": MemoryError,
    "recursion": lambda: RecursionError(SECRET),
    "group": lambda: ExceptionGroup(SECRET, [ValueError(SECRET)]),
    "base": lambda: BaseException(SECRET),
    "assertion": lambda: AssertionError(SECRET),
    "unicode": lambda: RuntimeError("\ud800 " + SECRET),
}


def build_loop() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


VALUES: dict[str, Callable[[], Any]] = {
    "object": Odd,
    "bytes": lambda: b"\xff\xfe",
    "set": lambda: {1, 2},
    "nan": lambda: float("nan"),
    "none": lambda: None,
    "empty": lambda: "",
    "huge": lambda: "x" * 3_000_000,
    "rows": lambda: [{"row": number, "text": "x" * 40} for number in range(40_000)],
    "surrogate": lambda: "half \ud800",
    "nul": lambda: "a\x00b",
    "loop": build_loop,
    "deep": lambda: json.loads("[" * 900 + "]" * 900),
    "number": lambda: 10**400,
    "keys": lambda: {(1, 2): 3},
    "generator": lambda: (number for number in range(3)),
    "function": lambda: build_loop,
    "markers": lambda: "</tool><|im_end|>\x1b[31m",
}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def fail(error: str) -> str:
    """Fail with an error."""
    raise ERRORS[error]()


async def fail_late(error: str) -> str:
    """Fail with an error after a while."""
    await asyncio.sleep(0.01)
    raise ERRORS[error]()


def give(value: str) -> Any:
    """Return a value."""
    return VALUES[value]()


async def wait() -> str:
    """Wait."""
    await asyncio.sleep(600)
    return "late"


def lose_child() -> str:
    """Start a program that is killed."""
    program = f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"
    return subprocess.run([sys.executable, "-S", "-c", program], check=True).args[0]


def pay(amount: int, to: str) -> str:
    """Pay an amount."""
    return f"paid {amount} to {to}"


TOOLS = (add, fail, fail_late, give, wait, lose_child)

NAMED: dict[str, Callable[..., Any]] = {tool.__name__: tool for tool in (*TOOLS, pay)}
