"""A model may ask the library of an agent for thousands of calls at once."""

from __future__ import annotations

import pytest

from agentctl.runtime.transcript.transcript import Transcript
from tests.runtime.test_frameworks import frameworks, models, run_once

__all__ = ["models"]


@pytest.mark.parametrize("name", ["with_deps", "graph_with_tool", "counting"])
async def test_report_of_a_call_does_not_list_the_open_ones(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To list them for each takes quadratic time.
    listed: list[Transcript] = []
    open_calls = Transcript.open_calls.fget
    assert open_calls is not None

    def count(transcript: Transcript) -> dict[str, str]:
        listed.append(transcript)
        return open_calls(transcript)

    monkeypatch.setattr(Transcript, "open_calls", property(count))
    await run_once(name, deps="build_deps" if name == "with_deps" else "")
    # The end of a graph lists them once.
    assert len(listed) == (name == "graph_with_tool")


async def test_calls_of_one_tool_of_agno_share_its_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    from agno.models.response import ToolExecution
    from agno.tools import Function

    from agentctl.runtime.runners import agno_pauses

    read: list[Function] = []
    process = Function.process_entrypoint

    def count(function: Function) -> None:
        read.append(function)
        process(function)

    agent = frameworks().paying()
    monkeypatch.setattr(Function, "process_entrypoint", count)
    call = ToolExecution(tool_name="pay", tool_args={"amount": 1}, requires_confirmation=True)
    waiting = [agno_pauses.AgnoCall("run", agent.id, str(number), call) for number in range(3)]
    asks = agno_pauses.list_asks(waiting, [agent])
    assert [[*(ask.schema or {})["properties"]] for ask in asks] == [["amount"]] * 3
    assert len(read) == 1
