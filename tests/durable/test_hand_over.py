"""A server that stops hands its durable runs over: another server goes on with them."""

from __future__ import annotations

import json
import signal
from functools import partial

from agentctl.interface.requests import RunRequest, StreamEvent
from agentctl.remote.client import RemoteOperations
from tests.durable.forwarding import forward
from tests.durable.moves import set_drain_seconds
from tests.durable.test_kills import NOTES, delegate, is_called, start
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.site import SCOPES, Site, answer, call


async def test_call_that_outlasts_the_drain_is_in_doubt(site: Site) -> None:
    plans = [[answer(call("linger", text="x"))], [answer(call("visit", place="inn"))]]
    hold = site.deployment.folder / "hold"
    hold.touch()
    with site.serve_in_thread() as server:
        runs = [await start(site, server, plan) for plan in plans]
        member = [answer(delegate(plans[0], "d1")), answer(text="done")]
        runs.append(await start(site, server, member, "team", "pair"))
        await wait_until(lambda: all(site.tools_called(run) for run in runs))
        server.stop()
    hold.unlink()
    with site.serve_in_thread() as other:
        for run in (runs[0], runs[2]):
            await site.wait_for_end(other, run["run_id"], "PAUSED")
            asked = await site.pending(run["run_id"])
            assert [(row.kind, row.tool_name) for row in asked] == [("outcome", "linger")]
            await site.decide(other, run["run_id"], "complete", result="done by hand")
        records = [await site.wait_for_end(other, run["run_id"]) for run in runs]
    contents = [record["content"] for record in records]
    assert contents == ["done by hand", "visited inn", "done"]
    assert records[2]["tools"][0]["result"] == "done by hand"
    assert [site.tools_called(run) for run in runs] == [["linger"], ["visit", "visit"], ["linger"]]


async def test_stream_goes_on_through_another_server(site: Site) -> None:
    set_drain_seconds(site, 300)
    plan = [*NOTES[:1], answer(call("linger", text="x")), *NOTES[1:], answer(text="done")]
    hold = site.deployment.folder / "hold"
    hold.touch()
    seen: list[StreamEvent] = []
    with site.serve("first") as server, site.serve_in_thread() as other:
        # The address of both, as a proxy in front of them has it.
        token = site.deployment.token("ann", *SCOPES)
        async with (
            forward([server.url, other.url]) as url,
            RemoteOperations(url, token) as operations,
        ):
            request = RunRequest(json.dumps(plan))
            async for event in operations.runs.stream("agent", "lasting", request):
                seen.append(event)
                run = json.loads(seen[0].data)
                if event.name == "ToolCallStarted" and b"linger" in event.data:
                    await wait_until(partial(is_called, site, run, "linger"))
                    server.process.send_signal(signal.SIGTERM)
                    await wait_until(lambda: "stopping" in log(site, "first"))
                    hold.unlink()
        assert server.process.wait(PATIENCE) == 0
    assert [event.seq for event in seen] == list(range(len(seen)))
    names = [event.name for event in seen]
    assert names.count("RunStarted") == names.count("RunContinued") == 1
    completed = [json.loads(event.data) for event in seen if event.name == "ToolCallCompleted"]
    assert {event["tool"]["tool_call_id"] for event in completed} == {
        "note-0", "linger-call", "note-1", "note-2",
    }  # fmt: skip
    assert names[-1] == "RunCompleted"
    assert json.loads(seen[-1].data)["content"] == "done"


def log(site: Site, name: str) -> str:
    return (site.deployment.folder / f"{name}.log").read_text()
