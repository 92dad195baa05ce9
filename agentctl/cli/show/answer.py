"""The text of a run from its event stream, and the error or note at its end."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target
from agentctl.errors import AgentctlError, RunFailed
from agentctl.interface.requests import SUMMARY_VIEW
from agentctl.records.events import Event, EventKind
from agentctl.records.kinds import ComponentKind, ComponentRef
from agentctl.records.text import format_count
from agentctl.records.times import format_elapsed
from agentctl.transcripts.model import count_seconds, find_tokens

_HINTS = {
    "MODEL_UNAVAILABLE": "check base_url and the key of the model in {file}, or try again later",
    "MODEL_TIMEOUT": "try again later, or choose another model in {file}",
    "MODEL_ANSWER_INVALID": "try again, or choose another model in {file}",
    "MODEL_CALLS_EXCEEDED": "increase model_calls of the agent in {file}, or ask for less at once",
    "MODEL_KEY_REJECTED": "replace the key where this command reads it; a server needs a restart",
    "MODEL_NOT_FOUND": "correct the name of the model in {file}",
    "MODEL_REJECTED": "check the message, its files and the settings of the model in {file}",
    "CONTEXT_EXCEEDED": "send a shorter message: the next run has no earlier messages",
    "OUTPUT_INVALID": "describe the answer in the instructions of the agent in {file}",
    "LOOP": "tell the model when to stop, or set repeat_calls_by_tool of the agent in {file}",
    "TOOL_FAILED": "fix the tool: it is listed in `tools` in {file}",
    "RUN_TIMEOUT": "increase timeout_seconds in [runs] of {file}",
}


class RunOutput:
    """Reads the events of one stream, and writes the text of its run as it arrives.

    The stream also has events of members and steps; their text is not written.

    Args:
        write: receives the text; None drops it.
        run_id: the run, if it is known before its first event.
        whole: True if the stream starts with the first event of the run.

    Attributes:
        run_id: the run of the stream; empty before its first event.
        session_id: the session of the run; empty before its first event.
        end: fields of the run record at the end of the run; empty before that.
        has_members: True if the stream had events of members or steps.
        asked: what the run and its members wait for while it is paused; else None.
        in_line: True if the text so far does not end with a line feed.
    """

    def __init__(
        self,
        kind: ComponentKind,
        *,
        write: Callable[[str], object] | None,
        run_id: str = "",
        whole: bool = True,
    ) -> None:
        self.run_id = run_id
        self.session_id = ""
        self.end: Mapping[str, Any] = {}
        self.asked: list[Mapping[str, Any]] | None = None
        self._asked: list[Mapping[str, Any]] = []
        self._started_at: str | None = None
        self._write_out = write
        self.has_members = False
        # The text can be long, and is needed only to find out how much of it was written.
        self._length = 0
        self._digest = hashlib.sha256()
        self.in_line = False
        # Only the last event of a workflow has its text.
        self._whole = whole or kind == "workflow"

    @property
    def seconds(self) -> float | None:
        """Seconds from the first to the last event of the run; None if these have no times.

        The work before the run is not included: a local run first loads the code of its agent.
        """
        ended_at = self.end.get("at")
        return None if ended_at is None else count_seconds(self._started_at, ended_at)

    def take(self, event: Event) -> None:
        """Read one event; the first one names the run."""
        if not self.run_id:
            self.run_id = event.run_id
            self.session_id = str(event.data.get("session_id") or "")

        is_own = event.run_id == self.run_id
        self.has_members = self.has_members or not is_own
        # The run waits for what its members ask, too.
        if event.kind is EventKind.PAUSED:
            self._asked += event.data.get("approvals") or ()
        if not is_own:
            return

        if event.kind is EventKind.STARTED:
            self._started_at = event.at
        elif event.kind is EventKind.CONTENT:
            self._write(event.text)
        elif event.kind is EventKind.PAUSED:
            self.asked = self._asked
        elif event.kind is EventKind.CONTINUED:
            self.asked = None
            self._asked = []
            self._start_leg(str(event.data.get("content") or ""))
        elif event.end_status is not None:
            reason = event.data.get("reason")
            self.conclude({**event.data, "status": event.end_status, "cancel_reason": reason})

    def conclude(self, end: Mapping[str, Any]) -> None:
        """Set the end of the run, from its record or the fields of its last event."""
        self.end = end
        self.asked = None
        self._write_rest(str(end.get("content") or ""))

    def _write_rest(self, content: str) -> None:
        begin = hashlib.sha256(_encode(content[: self._length]))
        if self._whole and begin.digest() == self._digest.digest():
            self._write(content[self._length :])

    def _start_leg(self, content: str) -> None:
        """Write the rest of the earlier legs, or forget the text of a leg that is repeated."""
        if len(content) < self._length:
            self.end_line()
            self._length = len(content)
            self._digest = hashlib.sha256(_encode(content))
        else:
            self._write_rest(content)

    def end_line(self) -> None:
        """Write a line feed if the text does not end with one. It is not part of the text."""
        if self.in_line:
            self.in_line = False
            if self._write_out is not None:
                self._write_out("\n")

    def _write(self, text: str) -> None:
        if not text:
            return
        self._length += len(text)
        self._digest.update(_encode(text))
        self.in_line = not text.endswith("\n")
        if self._write_out is not None:
            self._write_out(text)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


async def read_run_end(
    target: Target, component: ComponentRef, output: RunOutput
) -> Mapping[str, Any]:
    """Return the end of a streamed run with the tokens of its members.

    The events have the tokens of each run alone. Without the right to read the run they are null.
    A run that failed on a server has its `request_id`, too, to be found in the log there.
    """
    has_failed_there = output.end["status"] == "ERROR" and target.local is None
    has_tokens = not output.has_members or "total_tokens" in output.end
    if has_tokens and not has_failed_there:
        return output.end

    read = target.operations.runs.get_of_component
    session_id = output.session_id or None
    try:
        document = await read(*component, output.run_id, session_id=session_id, form=SUMMARY_VIEW)
    except AgentctlError:
        # The run has ended, and its answer was shown: the missing total is no failure.
        return {**output.end, "total_tokens": None}

    run: Mapping[str, Any] = document.value
    return {
        **output.end,
        "total_tokens": run.get("total_tokens"),
        "request_id": run.get("request_id"),
    }


def report_run_end(
    target: Target, run_id: str, end: Mapping[str, Any], seconds: float | None = None
) -> None:
    """Note the successful end of a run, with the tokens of the run and its members.

    Args:
        end: the record of the run, or the fields of its last event.

    Raises:
        RunFailed: the run ended as ERROR or CANCELLED.
    """
    status = end["status"]
    if status == "ERROR":
        raise _build_failure(target, run_id, end)
    if status == "CANCELLED":
        raise RunFailed(f"run {run_id} was cancelled", cause=end.get("cancel_reason"))

    text = f"run {run_id} {str(status).lower()}"
    if seconds is not None:
        text += f" in {format_elapsed(seconds)}"

    total = find_tokens(end)
    if total is not None:
        text += f", {format_count(total, 'token')}"
        # `metrics` has the tokens of the run alone; the total includes its members.
        metrics = end.get("metrics") or {}
        input_tokens = metrics.get("input_tokens") or 0
        output_tokens = metrics.get("output_tokens") or 0
        if total == input_tokens + output_tokens != 0:
            text += f" ({input_tokens:,} in, {output_tokens:,} out)"
    note(text)


def _build_failure(target: Target, run_id: str, end: Mapping[str, Any]) -> RunFailed:
    """Return the error of a command whose run has failed, with what the user can do about it."""
    error = end.get("error") or {}
    code = str(error.get("code"))
    failure = RunFailed(f"run {run_id} failed", cause=f"{code}: {error.get('detail')}")
    if target.local is None:
        request = f", request {end['request_id']}" if end.get("request_id") else ""
        failure.hint = f"the server log has the details of run {run_id}{request}"
        return failure

    # The local user is the operator and sees the log.
    settings = target.local.settings
    entry = target.local.log.take_last()
    hint = _HINTS.get(code)
    failure.hint = hint and hint.format(file=settings.path)
    if entry is None:
        return failure

    for model in settings.models:
        variable = model.api_key_env
        if variable and not os.environ.get(variable) and f"model {model.id}: " in entry.text:
            failure.hint = f"set the variable {variable}, which the model {model.id} reads"
            return failure

    if isinstance(entry.error, AgentctlError):
        failure.cause = entry.error.detail
        failure.hint = entry.error.hint
    else:
        failure.cause = f"{failure.cause} ({entry.text})"
    return failure
