"""Values of the classes that agents declare for their deps or context, made without arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentctl.agents import RunContext


def find_default(declared: Any) -> Callable[[RunContext], Any] | None:
    """Return a function that creates a value for each run; None if the class needs values.

    Args:
        declared: a dataclass, a pydantic model, a typed dictionary or another class.
    """
    if getattr(declared, "__required_keys__", None) or not _can_make(declared):
        return None
    return lambda _: declared()


def _can_make(declared: Any) -> bool:
    if getattr(declared, "__module__", "builtins") == "builtins" and declared is not dict:
        # Such as `str`, whose value without arguments has no meaning.
        return False
    try:
        declared()
    except Exception:
        return False
    return True
