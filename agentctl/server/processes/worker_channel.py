"""The messages between the supervisor and a worker: lines over a pair of sockets.

The supervisor sends the settings, once, and later `DRAIN`, `LEAVE`, `GIVE_WAY`, `PROCEED` and
`END`. A worker sends JSON objects: `{"ready": true}` when it accepts requests, `{"stopping": runs}`
when it starts to drain, `{"waiting": true}` at the end of a step of the shutdown that all workers
do together, and `{"failed": {...}}` with the error that ends it. Both sides detect the end of the
other process by the end of the channel (docs/decisions/0018).
"""

from __future__ import annotations

from typing import Any

from agentctl import errors

DRAIN = b"drain"
"""Accept no new runs, wait for live runs, then end."""

LEAVE = b"leave"
"""Accept no new connections, serve the clients of open ones, then as `DRAIN`."""

GIVE_WAY = b"give way"
"""Accept no new connections, then as `DRAIN`: another process has taken the place of this one."""

PROCEED = b"proceed"
"""All workers that stop have done this step."""

END = b"end"
"""Cancel live runs, and end."""

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
"""Errors that prevent a start; any other one is a bug of agentctl."""


def error_to_message(error: Exception) -> dict[str, Any]:
    """Return the message of an error; of an unexpected exception only the name of its class."""
    if not isinstance(error, errors.AgentctlError):
        name = type(error).__name__
        hint = "this is a bug in agentctl: please report it with the command that you ran"
        error = errors.InternalError(f"internal failure ({name})", hint=hint)
    return {
        "kind": type(error).__name__,
        "detail": error.detail,
        "cause": error.cause,
        "hint": error.hint,
    }


def error_from_message(message: dict[str, Any]) -> errors.AgentctlError:
    """Return the error that a worker sent, for the supervisor to raise."""
    kind = _ERROR_CLASSES.get(message["kind"], errors.AgentctlError)
    return kind(message["detail"], cause=message["cause"], hint=message["hint"])
