"""The ledger of the tools of public agents: each call with its arguments and its end.

The modules of the agents import it from the folder of the server. `LEDGER` names the file; while
the file `LEDGER.hold` exists, calls of the tool that it names wait.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LEDGER = Path(os.environ.get("LEDGER", "ledger.jsonl"))
HOLD = LEDGER.with_suffix(".hold")

_numbers = itertools.count()


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a tool that writes each call into the ledger."""
    name = function.__name__
    signature = inspect.signature(function)

    def begin(arguments: Any, named: Any) -> int:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        number = next(_numbers)
        _write(number, name, "begin", arguments=_select_json(bound.arguments))
        return number

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def asynchronous(*arguments: Any, **named: Any) -> Any:
            number = begin(arguments, named)
            try:
                while _is_held(name):
                    await asyncio.sleep(0.01)
                result = await function(*arguments, **named)
            except BaseException as error:
                _write(number, name, "failed", error=type(error).__name__)
                raise
            _write(number, name, "end", result=result)
            return result

        return asynchronous

    @functools.wraps(function)
    def synchronous(*arguments: Any, **named: Any) -> Any:
        number = begin(arguments, named)
        try:
            while _is_held(name):
                time.sleep(0.01)
            result = function(*arguments, **named)
        except BaseException as error:
            _write(number, name, "failed", error=type(error).__name__)
            raise
        _write(number, name, "end", result=result)
        return result

    return synchronous


def _is_held(name: str) -> bool:
    try:
        return HOLD.read_text() == name
    except FileNotFoundError:
        return False


def _select_json(arguments: dict[str, Any]) -> dict[str, Any]:
    """Leave out the arguments that the library adds: contexts, states, ids of calls."""
    plain = (str, int, float, bool, list, dict, type(None))
    return {
        name: value
        for name, value in arguments.items()
        if isinstance(value, plain) and name not in ("self", "state", "tool_call_id")
    }


def _write(number: int, tool: str, event: str, **fields: Any) -> None:
    line = json.dumps({"call": number, "tool": tool, "event": event, **fields}, default=str)
    with LEDGER.open("a") as file:
        file.write(line + "\n")
