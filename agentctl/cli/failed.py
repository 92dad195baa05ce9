"""A run that ended as ERROR, told once: what everybody may know, and what only the operator may."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentctl.cli.door import Door, Here
from agentctl.cli.terminal import note
from agentctl.errors import AgentctlError, RunFailed

if TYPE_CHECKING:
    from agentctl.config.settings import Model

__all__ = ["judge", "run_failed"]

_HINTS = {
    "MODEL_UNAVAILABLE": "check base_url and the key of the model in {file}, or try again later",
    "MODEL_TIMEOUT": "try again later, or choose another model in {file}",
    "MODEL_REJECTED": "check the name of the model in {file}, and what it is asked",
    "TOOL_FAILED": "correct the tool: it is named in `tools` in {file}",
    "RUN_TIMEOUT": "allow more with timeout_seconds in [runs] of {file}",
}


def judge(door: Door, run_id: str, end: Mapping[str, Any]) -> None:
    """Say how a run ended.

    Args:
        end: the run's record, or what its last event says.

    Raises:
        RunFailed: it ended as ERROR, or was cancelled.
    """
    status = end["status"]
    if status == "ERROR":
        raise run_failed(door, run_id, end.get("error") or {})
    if status == "CANCELLED":
        raise RunFailed(f"run {run_id} was cancelled", cause=end.get("cancel_reason"))
    tokens = (end.get("metrics") or {}).get("total_tokens")
    note(f"run {run_id} is {status}" + (f", {tokens} tokens" if tokens is not None else ""))


def run_failed(door: Door, run_id: str, error: Mapping[str, Any]) -> RunFailed:
    """The failure to raise for a run that ended as ERROR.

    Args:
        door: where it ran. Locally the user is the operator and is told what the log knows.
        run_id: the run.
        error: of the run record: `code` and `detail`.
    """
    public = f"{error.get('code')}: {error.get('detail')}"
    failure = RunFailed(f"run {run_id} ended as ERROR", cause=public)
    if door.local is None:
        failure.hint = "the log of the server says more"
    else:
        _explain(failure, str(error.get("code")), door.local)
    return failure


def _explain(failure: RunFailed, code: str, here: Here) -> None:
    """Say what only the operator may know, and what to do about it."""
    settings, why = here.settings, here.log.reason()
    hint = _HINTS.get(code)
    failure.hint = hint and hint.format(file=settings.path)
    if why is None:
        return
    missing = _key_that_is_missing(settings.models, why.text)
    if missing is not None:
        failure.hint = f"set the variable {missing.api_key_env}, which the model {missing.id} reads"
    elif isinstance(why.error, AgentctlError):
        failure.cause, failure.hint = why.error.detail, why.error.hint
    else:
        failure.cause = f"{failure.cause} ({why.text})"


def _key_that_is_missing(models: tuple[Model, ...], said: str) -> Model | None:
    """The model that the log speaks of, when the variable with its key is not set."""
    for model in models:
        variable = model.api_key_env
        if variable and not os.environ.get(variable) and f"model {model.id}: " in said:
            return model
    return None
