"""The end of a run is written by one statement only if nothing else belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from agentctl.runs.life.finish import _is_plain
from agentctl.runs.states import Ending

COMPLETED = Ending.completed()
QUIET = SimpleNamespace(has_asked=False)
ASKING = SimpleNamespace(has_asked=True)

PLAIN: Mapping[str, Any] = {
    "leg": None,
    "has_checkpoint": False,
    "has_asked": False,
    "state_changes": None,
    "spec": SimpleNamespace(purpose=None),
    "children": [],
    "parent": None,
    "database": SimpleNamespace(outbox=SimpleNamespace(is_used=False)),
}
USED_OUTBOX = SimpleNamespace(outbox=SimpleNamespace(is_used=True))


def build_run(**given: Any) -> Any:
    return SimpleNamespace(**{**PLAIN, **given})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"children": [QUIET, QUIET]},
        {"parent": SimpleNamespace()},
        # Only the ends of root runs are announced to receivers of webhooks.
        {"parent": SimpleNamespace(), "database": USED_OUTBOX},
    ],
)
def test_usual_end_is_plain(given: dict[str, Any]) -> None:
    assert _is_plain(build_run(**given), COMPLETED)
    assert _is_plain(build_run(**given), Ending.failed("INTERNAL", "it failed"))


@pytest.mark.parametrize(
    "given",
    [
        {"leg": SimpleNamespace()},
        {"has_checkpoint": True},
        {"has_asked": True},
        {"state_changes": SimpleNamespace()},
        {"spec": SimpleNamespace(purpose="summary")},
        {"children": [ASKING]},
        {"children": [QUIET, ASKING]},
        {"database": USED_OUTBOX},
    ],
)
def test_end_with_more_to_write_is_not_plain(given: dict[str, Any]) -> None:
    assert not _is_plain(build_run(**given), COMPLETED)


def test_cancel_is_not_plain() -> None:
    assert not _is_plain(build_run(), Ending.cancelled("boss", None))
