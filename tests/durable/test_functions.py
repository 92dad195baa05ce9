"""A durable function: its finished steps are not made again when another server goes on."""

from __future__ import annotations

from functools import partial
from typing import Any

from agentctl.requests import RunRequest
from tests.durable.test_kills import is_called
from tests.gated.site import Site, kill
from tests.loops import wait_until


async def test_finished_steps_are_not_made_again(site: Site) -> None:
    hold = site.deployment.folder / "hold"
    hold.touch()
    messages = ["careful False", "careless True"]
    with site.serve("first") as server, site.serve("second") as other:
        async with site.connect(server) as operations:
            runs: list[dict[str, Any]] = [
                dict((await operations.create_run("agent", "function", request)).value)
                for request in (RunRequest(message, background=True) for message in messages)
            ]
        for run, message in zip(runs, messages, strict=True):
            await wait_until(partial(is_called, site, run, message.split()[0]))
        kill(server)
        hold.unlink()
        await site.wait_for_end(other, runs[0]["run_id"], "PAUSED")
        (asked,) = await site.pending(runs[0]["run_id"])
        assert (asked.kind, asked.tool_name) == ("outcome", "hold")
        assert asked.arguments == '{"arguments":["careful"]}'
        await site.decide(other, runs[0]["run_id"], "complete", result="seen")
        careful, careless = [await site.wait_for_end(other, run["run_id"]) for run in runs]
    assert careful["content"] == "made firstseenmade last"
    assert careless["content"] == "made firstheld carelessmade last"
    assert site.tools_called(runs[0]) == ["careful", "first", "last"]
    assert site.tools_called(runs[1]) == ["careless", "careless", "first", "last"]
    ids = [entry["call_id"] for entry in site.ledger(runs[1]) if entry["tool"] == "careless"]
    assert ids[0] == ids[1]
