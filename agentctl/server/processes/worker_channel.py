"""What the processes of one server say to each other: lines over a pair of sockets.

The parent sends the settings, once, and later `DRAIN`, `GO_ON` and `END`. A worker answers with
JSON objects: `{"ready": true}` once it serves, `{"stopping": runs}` when it begins to drain,
`{"waiting": true}` at the end of a step that all are to take together, and `{"failed": {...}}` with
what ends it. The line closes with either process, however that ends.
"""

from __future__ import annotations

from typing import Any

from agentctl import errors

__all__ = ["DRAIN", "END", "PROCEED", "error_from_message", "error_to_message"]

DRAIN = b"drain"
"""Take no new runs, let those under way end, then end."""

PROCEED = b"go on"
"""All who stop have come as far as you."""

END = b"end"
"""Cancel what is worked on, and end."""

_ERROR_CLASSES: dict[str, type[errors.AgentctlError]] = {
    kind.__name__: kind
    for kind in (
        errors.InvalidConfiguration,
        errors.InvalidKey,
        errors.SchemaMismatch,
        errors.Unavailable,
        errors.UsageError,
    )
}
"""What a start is refused with; everything else is a fault of ours."""


def error_to_message(failure: Exception) -> dict[str, Any]:
    """What a worker sends of its failure; of one that is no error of ours the name only."""
    if not isinstance(failure, errors.AgentctlError):
        name = type(failure).__name__
        hint = "this is a fault of agentctl: please report it with the command that you ran"
        failure = errors.InternalError(f"internal failure ({name})", hint=hint)
    return {
        "kind": type(failure).__name__,
        "detail": failure.detail,
        "cause": failure.cause,
        "hint": failure.hint,
    }


def error_from_message(sent: dict[str, Any]) -> errors.AgentctlError:
    """The failure that a worker sent, for the parent to raise as its own."""
    kind = _ERROR_CLASSES.get(sent["kind"], errors.AgentctlError)
    return kind(sent["detail"], cause=sent["cause"], hint=sent["hint"])
