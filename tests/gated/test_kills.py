"""A server that is killed while it makes the calls of a later leg."""

from __future__ import annotations

from tests.kit.conditions import wait_until
from tests.kit.site import Site, answer, call, kill

PAY = call("refund", amount=10, to="bob")


async def test_no_call_of_a_killed_leg_is_repeated_unless_it_is_idempotent(own_site: Site) -> None:
    plans = {
        "slow": [answer(call("slow", text="x"))],
        "book": [answer(call("book", place="inn"))],
        "linger": [answer(PAY), answer(call("linger", text="y"))],
    }
    hold = own_site.deployment.folder / "hold"
    hold.touch()
    with own_site.serve("first") as server:
        runs = {name: await own_site.run(server, "clerk", plan) for name, plan in plans.items()}
        for run in runs.values():
            await own_site.decide(server, run["run_id"], "approve")
        for name, run in runs.items():
            await wait_until(lambda name=name, run=run: name in own_site.tools_called(run))
        kill(server)
    hold.unlink()
    with own_site.serve_in_thread() as other:
        booked = await own_site.wait_for_end(other, runs["book"]["run_id"])
        lost = await own_site.wait_for_end(other, runs["linger"]["run_id"])
        slow = runs["slow"]
        await own_site.wait_for_end(other, slow["run_id"], "PAUSED")
        rule, asked = await own_site.approvals(slow["run_id"])
        assert (rule.execution, asked.kind, asked.status) == ("unknown", "outcome", "pending")
        await own_site.decide(other, slow["run_id"], "complete", result="seen by a person")
        settled = await own_site.wait_for_end(other, slow["run_id"])
    # An idempotent call is made again, with the same id.
    assert booked["content"] == "booked inn"
    first, second = own_site.ledger(runs["book"])
    assert first["call_id"] == second["call_id"]
    # A call that no one approves ends the run, and nothing of the leg is repeated.
    assert lost["error"]["code"] == "WORKER_LOST"
    assert own_site.tools_called(lost) == ["linger", "refund"]
    # A person reports the result of the other one.
    assert (settled["status"], settled["content"]) == ("COMPLETED", "seen by a person")
    assert own_site.tools_called(slow) == ["slow"]
