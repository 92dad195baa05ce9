"""The cancel of a run that waits until the run has stopped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from agentctl.errors import AgentctlError, NotConnected, Unavailable
from agentctl.interface.operations import cancels
from agentctl.interface.operations.cancels import cancel_until_stopped
from agentctl.interface.requests import CancelRequest
from agentctl.records.document import build_document


class Server:
    """A server that answers each cancel with the next one of its answers."""

    def __init__(self, answers: Iterable[tuple[str, str] | AgentctlError]) -> None:
        self.runs = self
        self._answers = iter(answers)

        self.waits: list[float] = []
        """The seconds that each request may wait."""

    async def cancel(self, kind: str, id: str, run_id: str, request: CancelRequest) -> Any:
        self.waits.append(request.wait)
        answer = next(self._answers)
        if isinstance(answer, AgentctlError):
            raise answer
        outcome, status = answer
        return build_document({"run_id": run_id, "cancel": outcome, "status": status})


async def cancel(server: Any, wait: float = 0, repeat: Any = None) -> str:
    request = CancelRequest(wait=wait)
    found = await cancel_until_stopped(server, ("agent", "a"), "r", request, repeat)
    return found.value["cancel"]


async def repeat_always(failure: AgentctlError, failures: int) -> None:
    pass


async def test_failed_cancel_is_raised_if_nothing_repeats_it() -> None:
    with pytest.raises(Unavailable):
        await cancel(Server([NotConnected("away")]))


async def test_repeated_cancel_that_finds_the_run_cancelled_has_stopped_it() -> None:
    away = NotConnected("away")
    final = ("already_final", "CANCELLED")
    assert await cancel(Server([away, away, final]), repeat=repeat_always) == "stopped"
    assert await cancel(Server([final]), repeat=repeat_always) == "already_final"
    completed = ("already_final", "COMPLETED")
    assert await cancel(Server([away, completed]), repeat=repeat_always) == "already_final"


async def test_cancel_is_requested_again_until_the_run_has_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cancels, "POLL_SECONDS", 0)
    requested = ("requested", "RUNNING")
    server = Server([requested, requested, ("stopped", "CANCELLED")])
    assert await cancel(server, wait=10_000) == "stopped"
    assert len(server.waits) == 3
    assert max(server.waits) == cancels.MAXIMUM_CANCEL_WAIT


async def test_cancel_returns_when_its_time_is_over() -> None:
    server = Server([("requested", "RUNNING")])
    assert await cancel(server, wait=0.05) == "requested"
    assert server.waits == [0.05]
