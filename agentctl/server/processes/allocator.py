"""The allocator of the C library in a process of a server."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

_ARENA_MAX = -8
"""The parameter `M_ARENA_MAX` of `mallopt`."""

ARENAS = 2
"""Arenas that all threads share."""

_VARIABLES = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")


def limit_arenas() -> None:
    """Let the threads of this process share a few arenas, where glibc is the C library.

    It gives each thread an arena of its own, up to eight for each core. An arena keeps up to twice
    the largest block that was freed, so one large document in each of ten threads would stay for
    the life of the process. A variable of the operator for the arenas is left alone; other C
    libraries have none.

    It has an effect on threads that start later.
    """
    if not sys.platform.startswith("linux") or any(map(os.environ.get, _VARIABLES)):
        return
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, ARENAS)
