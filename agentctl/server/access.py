"""Finished requests: what is told of each, and the line of the log that it gets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from agentctl.server.log import FIELDS

__all__ = ["Finished", "Watcher", "log_access"]

_log = logging.getLogger("agentctl.access")


class Finished(NamedTuple):
    """A request that was answered, or whose client is gone.

    Attributes:
        operation: its operation id; None: it asked for none that there is.
        method: as it was sent, which may be no method at all.
        status: of the answer; None: the client went away before it.
        seconds: from its head to the end of the answer, which of a stream is the end of the run.
        principal: who really called; None: nobody was identified.
        via: the door.
    """

    operation: str | None
    method: str
    status: int | None
    seconds: float
    principal: str | None
    via: str = "http"


Watcher = Callable[[Finished], None]


def log_access(request: Finished) -> None:
    """Write a line, at the level `info`. What the request was about is on it as on every line.

    The path is not told, since it has what callers put there; the operation has its own name.
    """
    if not _log.isEnabledFor(logging.INFO):
        return
    # Made by hand: finding out where in the code this is takes longer than all the rest.
    record = logging.LogRecord(_log.name, logging.INFO, "", 0, "request finished", None, None)
    fields = {
        "operation": request.operation,
        "method": request.method,
        "status": request.status,
        "duration_ms": round(request.seconds * 1_000, 3),
        "via": request.via,
    }
    setattr(record, FIELDS, fields)
    _log.handle(record)
