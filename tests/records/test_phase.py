"""The names of the states of runs.

`phases.json` has the cases. It is an array of objects:

    case: what the case shows
    run: a run record, with the fields that matter here
    at: the time of the reading, an RFC 3339 text
    phase: the expected result, with the fields of `PhaseRecord` and of `PhaseLook`
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentctl.records.phase import describe_phase
from agentctl.records.times import parse_rfc3339
from agentctl.transcripts.texts import get_look

CASES = json.loads(Path(__file__).with_name("phases.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_state_has_one_name(case: dict[str, Any]) -> None:
    phase = describe_phase(case["run"], parse_rfc3339(case["at"]))
    assert {**phase, **get_look(phase)._asdict()} == case["phase"]


def test_cases_cover_every_state() -> None:
    names = {(case["phase"]["name"], bool(case["phase"]["warning"])) for case in CASES}
    ended = {(name, goes_on) for name in ("stopped", "completed", "failed") for goes_on in (0, 1)}
    others = ("queued", "running", "paused", "stopping", "unknown")
    assert names == ended | {(each, False) for each in others}
