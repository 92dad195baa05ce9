"""What is left of a run whose worker could not write its end: its question, and what is known of
its answer. So the session goes on from there, and its history shows what was asked.
"""

from __future__ import annotations

from typing import NamedTuple

import orjson

from agentctl.records.times import seconds
from agentctl.runtime import messages
from agentctl.runtime.transcript import Transcript
from agentctl.store.runs import RunRow

__all__ = ["Remains", "remains"]


class Remains(NamedTuple):
    """The JSON texts that the run's row gets. `history` is None where none is shown."""

    history: str | None
    messages: str
    transcript: Transcript


def remains(run: RunRow, content: str) -> Remains:
    """What a run leaves that was asked and has answered this much, its usage unknown.

    Workflows have no messages of their own, and members' runs no history (contract.md 3).
    """
    transcript = Transcript()
    if run.component_type != "workflow":
        transcript.add_user(run.input)
        transcript.messages[0]["created_at"] = seconds(run.created_at)
        if content:
            transcript.add_answer(content)
    transcript.replace_content(content)
    said = transcript.messages
    shown = run.parent_run_id is None and run.component_type != "workflow"
    history = _json(messages.history(said, None)) if shown else None
    return Remains(history, _json(said), transcript)


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
