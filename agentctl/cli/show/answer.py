"""The answer of a run, put together from its stream.

A run that ended as ERROR, told once: what everybody may know, and what only the operator may.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentctl.cli.show.output import write_text
from agentctl.cli.show.terminal import note
from agentctl.cli.target import LocalTarget, Target
from agentctl.errors import AgentctlError, RunFailed, Unavailable
from agentctl.records.kinds import KINDS, ComponentKind

if TYPE_CHECKING:
    from agentctl.config.settings import Model
    from agentctl.operations import StreamEvent

__all__ = ["RunOutput", "build_run_failure", "report_run_end"]

_ENDS = {"Completed": "COMPLETED", "Cancelled": "CANCELLED", "Error": "ERROR"}


class RunOutput:
    """Takes the events of one stream, and writes the text of its own run as it arrives.

    Members and steps of the run speak in the same stream; what they say is not the answer.

    Args:
        kind: of the run's component.
        to_stdout: whether the text is written.
        run_id: the run, when it is known before its first event.
        whole: whether the stream is taken from its first event on.

    Attributes:
        run_id: of the run that the stream is of; empty before its first event.
        session_id: the session of that run; empty before its first event.
        end: how it ended, with the fields of a run record; empty before that.
    """

    def __init__(
        self, kind: ComponentKind, *, to_stdout: bool, run_id: str = "", whole: bool = True
    ) -> None:
        self.run_id = run_id
        self.session_id = ""
        self.end: Mapping[str, Any] = {}
        self._to_stdout = to_stdout
        self._text = ""
        self._prefix = KINDS[kind].event_prefix
        # What a workflow says is in its end only.
        self._whole = whole or kind == "workflow"

    @property
    def in_line(self) -> bool:
        """Whether the text that was written so far has not ended its line."""
        return bool(self._text) and not self._text.endswith("\n")

    def take(self, event: StreamEvent) -> bool:
        """Take one event. True for the first, which says what run this is."""
        import orjson

        data = orjson.loads(event.data)
        first = not self.run_id
        if first:
            self.run_id = str(data.get("run_id") or "")
            self.session_id = str(data.get("session_id") or "")
        self.hear(event.name, data)
        return first

    def hear(self, name: str, data: Mapping[str, Any]) -> None:
        """Take an event that was read, of a run that is known."""
        if data.get("run_id") != self.run_id:
            return
        name = name.removeprefix(self._prefix)
        if name == "Content":
            self._write(str(data.get("content") or ""))
        elif name in _ENDS:
            reason = data.get("reason")
            self.conclude({**data, "status": _ENDS[name], "cancel_reason": reason})

    def conclude(self, end: Mapping[str, Any]) -> None:
        """The run has ended so: a run record, or what has its fields."""
        self.end = end
        self._write_rest(str(end.get("content") or ""))

    def finish(self, hint: str) -> None:
        """Close the last line.

        Args:
            hint: what to do when the end is missing.

        Raises:
            Unavailable: the stream ended before the run did.
        """
        self.end_line()
        if not self.end:
            raise Unavailable("the stream ended before the run did", hint=hint)

    def end_line(self) -> None:
        """What is said next begins on a line of its own."""
        if self.in_line:
            self._write("\n")

    def _write_rest(self, content: str) -> None:
        """What the whole answer has beyond what was streamed: all of it for workflows."""
        if self._whole and content.startswith(self._text):
            self._write(content[len(self._text) :])

    def _write(self, text: str) -> None:
        self._text += text
        if self._to_stdout and text:
            write_text(text)


_HINTS = {
    "MODEL_UNAVAILABLE": "check base_url and the key of the model in {file}, or try again later",
    "MODEL_TIMEOUT": "try again later, or choose another model in {file}",
    "MODEL_REJECTED": "check the name of the model in {file}, and what it is asked",
    "TOOL_FAILED": "correct the tool: it is named in `tools` in {file}",
    "RUN_TIMEOUT": "allow more with timeout_seconds in [runs] of {file}",
}


def report_run_end(target: Target, run_id: str, end: Mapping[str, Any]) -> None:
    """Say how a run ended.

    Args:
        end: the run's record, or what its last event says.

    Raises:
        RunFailed: it ended as ERROR, or was cancelled.
    """
    status = end["status"]
    if status == "ERROR":
        raise build_run_failure(target, run_id, end.get("error") or {})
    if status == "CANCELLED":
        raise RunFailed(f"run {run_id} was cancelled", cause=end.get("cancel_reason"))
    tokens = (end.get("metrics") or {}).get("total_tokens")
    note(f"run {run_id} is {status}" + (f", {tokens} tokens" if tokens is not None else ""))


def build_run_failure(target: Target, run_id: str, error: Mapping[str, Any]) -> RunFailed:
    """The failure to raise for a run that ended as ERROR.

    Args:
        target: where it ran. Locally the user is the operator and is told what the log knows.
        run_id: the run.
        error: of the run record: `code` and `detail`.
    """
    public = f"{error.get('code')}: {error.get('detail')}"
    failure = RunFailed(f"run {run_id} ended as ERROR", cause=public)
    if target.local is None:
        failure.hint = "the log of the server says more"
    else:
        _explain(failure, str(error.get("code")), target.local)
    return failure


def _explain(failure: RunFailed, code: str, here: LocalTarget) -> None:
    """Say what only the operator may know, and what to do about it."""
    settings, why = here.settings, here.log.reason()
    hint = _HINTS.get(code)
    failure.hint = hint and hint.format(file=settings.path)
    if why is None:
        return
    missing = _find_missing_key(settings.models, why.text)
    if missing is not None:
        failure.hint = f"set the variable {missing.api_key_env}, which the model {missing.id} reads"
    elif isinstance(why.error, AgentctlError):
        failure.cause, failure.hint = why.error.detail, why.error.hint
    else:
        failure.cause = f"{failure.cause} ({why.text})"


def _find_missing_key(models: tuple[Model, ...], said: str) -> Model | None:
    """The model that the log speaks of, when the variable with its key is not set."""
    for model in models:
        variable = model.api_key_env
        if variable and not os.environ.get(variable) and f"model {model.id}: " in said:
            return model
    return None
