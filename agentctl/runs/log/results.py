"""The results of a run in its row: its final columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from agentctl.records.document import parse_stored
from agentctl.records.run_spec import RunSpec
from agentctl.records.runs import RunEnd, RunRow
from agentctl.records.text import replace_unstorable
from agentctl.runs.states import Ending
from agentctl.runtime.transcript.history import build_chat_history
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.store.repositories.quotas import Counters
from agentctl.store.repositories.sessions import NO_COST, Cost


def build_run_end(
    run: RunSpec | RunRow,
    attempt: int,
    ending: Ending,
    transcript: Transcript,
    *,
    previous_instructions: str | None = None,
    finished_at: int,
    stopped_at: int | None,
    cancel_reason: str | None = None,
    holding: str | None = None,
    cost: Cost = NO_COST,
) -> RunEnd:
    """Build the final columns of a run's row.

    Args:
        attempt: the attempt whose end it is; a row with another attempt is not changed.
        previous_instructions: system message of the session's previous run, which its history does
            not repeat.
        finished_at: time of the final status in microseconds UTC.
        stopped_at: time when all work had ended, in microseconds UTC; None if some may continue.
        cancel_reason: replaces the recorded reason of a cancel; None keeps it.
        holding: JSON array of names of the work that continues; None if no work continues, or if
            it is not known.
        cost: what the tokens of the run have cost.
    """
    messages = transcript.messages
    model_metrics = transcript.model_metrics
    metrics: dict[str, Any] = dict(transcript.metrics)
    if cost.priced_tokens:
        metrics |= cost._asdict()

    return RunEnd(
        run_id=run.run_id,
        attempt=attempt,
        status=ending.status,
        content=replace_unstorable(transcript.content),
        history=_encode_history(run, messages, previous_instructions),
        messages=to_json(messages),
        tools=to_json(transcript.tools),
        metrics=to_json(metrics),
        error_code=ending.error_code,
        error_detail=ending.error_detail,
        finished_at=finished_at,
        stopped_at=stopped_at,
        cancel_reason=cancel_reason,
        output=None if transcript.output is None else to_json(transcript.output),
        reasoning_content=transcript.reasoning_content,
        native_kind=transcript.native_kind,
        native_history=transcript.native_history,
        holding=holding,
        spans=to_json(transcript.spans.records()),
        causes=to_json(transcript.causes) if transcript.causes else None,
        model=transcript.spans.first_model,
        model_metrics=None if model_metrics is None else to_json(model_metrics),
        model_calls=transcript.spans.model_calls,
        first_token_at=transcript.spans.first_token_at,
        requests=encode_requests(transcript),
    )


def _encode_history(
    run: RunSpec | RunRow,
    messages: Sequence[Mapping[str, Any]],
    previous_instructions: str | None = None,
) -> str | None:
    """Return the JSON array that a run adds to `chat_history`.

    Return None for workflows and for the runs of members, which have no history
    (docs/contract.md "Session records").
    """
    if run.parent_run_id is not None or run.component_type == "workflow":
        return None
    return to_json(build_chat_history(messages, previous_instructions))


def encode_requests(transcript: Transcript) -> str | None:
    """Return the requests to the models of a run as JSON; None without a call of a model."""
    requests = transcript.requests.since()
    return to_json(requests) if "calls" in requests else None


def to_json(value: object) -> str:
    """Return a value as JSON text."""
    return orjson.dumps(value).decode()


def encode_counters(transcript: Transcript) -> Counters:
    """Return the tokens and the other counters of a run so far."""
    return Counters(to_json(transcript.metrics), to_json(count_by_model(transcript)))


def take_counters(transcript: Transcript, stored: Counters) -> None:
    """Add to a transcript the use that a lost process has reported and that it does not have yet.

    Safe to repeat: a counter never falls, and the same use is not added twice.
    """
    if stored.metrics is None:
        return

    known_counters = count_by_model(transcript)
    reported_counters = parse_stored(stored.model_metrics or "", dict)
    if reported_counters is None:
        # Stored at a pause, by a version that stored no counters by model.
        known_counters = {"": transcript.metrics}
        reported_counters = {"": parse_stored(stored.metrics, dict) or {}}

    for model, counters in reported_counters.items():
        known_counts = known_counters.get(model, {})
        additions: dict[str, int] = {}
        for name, count in counters.items():
            # A counter that the model did not report counts as 0.
            additions[name] = max(0, (count or 0) - (known_counts.get(name) or 0))
        transcript.add_usage(additions, model)


def count_by_model(transcript: Transcript) -> Mapping[str, Mapping[str, int | None]]:
    """Return the counters by model; a run whose calls are not known by model has one entry."""
    model_metrics = transcript.model_metrics
    if model_metrics:
        return model_metrics
    return {transcript.spans.first_model or "": transcript.metrics}


@dataclass(frozen=True, slots=True)
class StoredSummary:
    """The summary of a session."""

    text: str = ""
    """The summary; empty if the session has none."""

    covered: int = 0
    """Number of the last run that the summary covers."""

    damaged_bytes: int = 0
    """Size of a stored summary that is no JSON; 0 otherwise."""


def parse_summary(stored: str | None) -> StoredSummary:
    """Parse the column `summary` of a session, which may come from another program."""
    if stored is None:
        return StoredSummary()

    value = parse_stored(stored, dict)
    if value is None:
        return StoredSummary(damaged_bytes=len(stored.encode()))
    if not isinstance(value.get("summary"), str):
        return StoredSummary()

    covered_runs = value.get("covered_runs")
    covered = covered_runs if isinstance(covered_runs, int) else 0
    return StoredSummary(value["summary"], covered)
