"""Where a token comes from: a file, stdin or the environment, never the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from agentctl.errors import UsageFailed

__all__ = ["VARIABLE", "given_token", "token_from_file"]

VARIABLE = "AGENTCTL_TOKEN"

_LIMIT = 1 << 16
"""Bytes that are read at most; no server takes a token that long."""


def given_token(token_file: str | None) -> str | None:
    """The token of `--token-file` (`-` is stdin), else of AGENTCTL_TOKEN, else None.

    Raises:
        UsageFailed: the file cannot be read or holds nothing.
    """
    if token_file is not None:
        return token_from_file(token_file)
    return os.environ.get(VARIABLE, "").strip() or None


def token_from_file(name: str) -> str:
    """The token in a file, or on stdin for `-`, without white space around it.

    Raises:
        UsageFailed: it cannot be read, is no text or holds nothing.
    """
    place = "stdin" if name == "-" else name
    try:
        token = _read(name).decode("ascii").strip()
    except OSError as error:
        raise _unreadable(place, (error.strerror or "it cannot be read").lower()) from None
    except UnicodeDecodeError:
        raise _unreadable(place, "it is not ASCII text") from None
    if not token:
        raise _unreadable(place, "it is empty")
    return token


def _read(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read(_LIMIT)
    with Path(name).open("rb") as file:
        return file.read(_LIMIT)


def _unreadable(place: str, cause: str) -> UsageFailed:
    return UsageFailed(f"no token can be read from {place}", cause=cause)
