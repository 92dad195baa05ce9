"""A pause keeps all that the next leg starts from, in any process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentctl.config.settings import Approvals
from agentctl.runs.desk.waiting import release_if_decided
from agentctl.runs.life.admission import admit_child_run, admit_once
from agentctl.runs.life.finish import store_pause
from agentctl.runs.life.legs import (
    ClaimedLeg,
    build_approval,
    build_leg_input,
    claim_leg,
    claim_member,
    is_revoked,
    read_waiting_member,
)
from agentctl.runs.life.live import LiveRun
from agentctl.runs.states import Ending, Pause
from agentctl.runtime.context import EarlierRun, MemberResult
from agentctl.runtime.pauses import Ask
from agentctl.store.database import Sql
from agentctl.store.repositories import accounts
from tests.kit.deployment import Deployment
from tests.kit.rows import START, an_approval
from tests.kit.run_specs import a_spec
from tests.runs.bench import OWNER, Bench, open_bench
from tests.store.test_accounts import an_account

PAY = Ask("approval", "call-1", "pay", {"amount": 10})
ASK = Ask("input", "call-2", "ask", question="Which one?", schema={"type": "string"})

SET_VERSION = Sql("UPDATE runs SET version = :version WHERE run_id = 'root'")


async def pause(run: LiveRun, *asks: Ask) -> None:
    paused = await store_pause(run, Pause([*asks], {"step": 1}), Approvals(), lambda: None)
    assert isinstance(paused, Pause)


async def decide_all(bench: Bench) -> None:
    edited = (
        "UPDATE approvals SET status = 'approved', decided_at = 5, decided_by = 'ann',"
        " approved_arguments = '{\"amount\":5}' WHERE tool_call_id = 'call-1'"
    )
    answered = (
        "UPDATE approvals SET status = 'answered', decided_at = 6, answer = '\"red\"'"
        " WHERE tool_call_id = 'call-2'"
    )
    for sql in (edited, answered):
        await bench.database.write(Sql(sql).execute())
    assert await bench.database.write(release_if_decided("root"))


async def claim(bench: Bench, version: str | None = None) -> ClaimedLeg:
    claimed = await bench.database.write(claim_leg("root", "w2", version))
    assert claimed is not None
    return claimed


async def test_next_leg_starts_from_what_the_pause_has_stored(deployment: Deployment) -> None:
    async with open_bench(deployment, durable=False) as bench:
        root = bench.root
        root.is_first = True
        root.summary = "They met."
        root.previous_instructions = "Be short."
        root.earlier_runs = [
            EarlierRun([{"role": "user", "content": "before"}], "[]", True),
            EarlierRun([], run_id="r0", omitted_bytes=7, seq=3),
        ]
        root.transcript.add_user("hello")
        await pause(root, PAY, ASK)
        await decide_all(bench)

        claimed = await claim(bench)
        assert (claimed.state.status, claimed.state.owner) == ("RUNNING", "w2")
        assert not claimed.lets_begin
        spec, start = build_leg_input(claimed)
        # Its events are stored from now on: nobody waits in the process that has begun it.
        assert (spec.recorded, spec.background) == (True, False)
        assert (start.attempt, start.first_event) == (2, 2)
        assert [message["content"] for message in start.transcript.messages] == ["hello"]
        assert start.earlier_runs == root.earlier_runs
        assert (start.summary, start.previous_instructions) == ("They met.", "Be short.")
        assert start.is_first
        assert start.leg is not None
        assert start.leg.state["step"] == 1
        paid = start.leg.find("call-1")
        assert paid is not None
        assert (paid.is_approved, paid.arguments, paid.is_edited) == (True, {"amount": 5}, True)
        answered = start.leg.find("call-2")
        assert answered is not None
        assert (answered.answer, answered.is_edited) == ("red", False)


async def test_next_leg_knows_that_its_component_has_changed(deployment: Deployment) -> None:
    async with open_bench(deployment, durable=False) as bench:
        await bench.database.write(SET_VERSION.execute(version="v1"))
        await pause(bench.root, PAY)
        await decide_all(bench)
        spec, start = build_leg_input(await claim(bench, "v2"))
        assert spec.version == "v2"
        assert start.leg is not None
        assert start.leg.has_new_version
        change = json.loads(start.version_change or "")
        assert (change["before"], change["after"]) == ("v1", "v2")


@pytest.mark.parametrize("version", ["v1", None])
async def test_leg_with_the_same_version_has_no_change(
    deployment: Deployment, version: str | None
) -> None:
    async with open_bench(deployment, durable=False) as bench:
        await bench.database.write(SET_VERSION.execute(version="v1"))
        await pause(bench.root, PAY)
        await decide_all(bench)
        _, start = build_leg_input(await claim(bench, version))
        assert start.version_change is None


async def test_only_the_repetition_of_a_claim_gets_a_leg_again(deployment: Deployment) -> None:
    """A worker that looks for legs twice must not execute one twice."""
    async with open_bench(deployment, durable=False) as bench:
        await pause(bench.root, PAY)
        await decide_all(bench)
        await claim(bench)
        write = bench.database.write
        assert await write(claim_leg("root", "w2", None)) is None
        assert await write(claim_leg("root", "w3", None, is_repeated=True)) is None
        assert await write(claim_leg("root", "w2", None, is_repeated=True)) is not None


async def test_pause_stores_what_the_models_were_shown(deployment: Deployment) -> None:
    async with open_bench(deployment, durable=False) as bench:
        bench.root.transcript.requests.extend({"calls": {"1": {"model": "m"}}})
        await pause(bench.root, PAY)
        shown = await bench.database.read(Sql("SELECT requests FROM runs").value())
        assert json.loads(shown)["calls"] == {"1": {"model": "m"}}


async def test_claimed_member_has_no_effects_and_lets_no_run_begin(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        member = await bench.start_member()
        await pause(member, PAY)
        decide = Sql("UPDATE approvals SET status = 'approved', decided_at = 5")
        await bench.database.write(decide.execute())
        claimed = await bench.database.write(claim_member("member", OWNER, "v2", None))
        assert claimed is not None
        assert (claimed.has_effects, claimed.lets_begin) == (False, False)
        assert claimed.new_version.version == "v2"


CLIENT_TOOLS = '[{"name": "browse"}]'


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        (Ask("external", "c", "browse"), 60),
        (Ask("external", "c", "fax"), 3_600),
        (Ask("approval", "c", "browse"), 3_600),
    ],
)
async def test_caller_has_its_own_time_for_its_tools(
    deployment: Deployment, asked: Ask, seconds: int
) -> None:
    settings = Approvals(expire_seconds=3_600, client_seconds=60)
    async with open_bench(deployment) as bench:
        bench.root.spec = a_spec("root", client_tools=CLIENT_TOOLS)
        row = build_approval(bench.root, asked, START, settings)
        assert row.expires_at == START + seconds * 1_000_000
        never = build_approval(bench.root, asked, START, Approvals(client_seconds=0))
        assert never.expires_at is None


async def test_approval_says_how_it_may_be_answered_and_repeated(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        row = build_approval(bench.root, ASK, START, Approvals())
        assert (row.question, row.schema) == ("Which one?", '{"type":"string"}')
        plain = build_approval(bench.root, PAY, START, Approvals())
        assert (plain.schema, plain.idempotent) == (None, 0)
        repeatable = Ask("approval", "c", "pay", idempotent=True)
        assert build_approval(bench.root, repeatable, START, Approvals()).idempotent == 1


async def test_questions_of_a_pause_are_listed_in_their_order(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        await pause(bench.root, PAY, ASK)
        asked = Sql("SELECT tool_call_id FROM approvals ORDER BY created_at").column()
        assert await bench.database.read(asked) == ["call-1", "call-2"]


@pytest.mark.parametrize(
    ("status", "tool_name", "has_expired"),
    [("expired", "browse", True), ("expired", "fax", False), ("approved", "browse", False)],
)
def test_only_an_expired_tool_of_the_request_has_no_result(
    status: Any, tool_name: str, has_expired: bool
) -> None:
    any_value: Any = None
    row = an_approval("root", kind="external", tool_name=tool_name, status=status)
    claimed = ClaimedLeg(any_value, any_value, [row], None, 0)
    assert claimed.has_expired_call(a_spec(client_tools=CLIENT_TOOLS)) is has_expired


async def test_parent_reads_the_result_of_a_member_that_has_settled(deployment: Deployment) -> None:
    async with open_bench(deployment) as bench:
        read = bench.database.read
        member = await bench.start_member()
        assert await read(read_waiting_member("absent")) is None
        assert await read(read_waiting_member("member")) is None, "it is RUNNING"
        await pause(member, PAY)
        assert await read(read_waiting_member("member")) == MemberResult(
            "PAUSED", "", run_id="member"
        )
        failed = await bench.start_member("failed")
        failed.transcript.add_content("so far")
        await bench.end(failed, Ending.failed("MODEL_UNAVAILABLE", "no answer"))
        assert await read(read_waiting_member("failed")) == MemberResult(
            "ERROR", "so far", "no answer", "MODEL_UNAVAILABLE", "failed"
        )


@pytest.mark.parametrize(
    ("actor", "revoked"),
    [(None, False), ("ann", False), ("sa:a1", False), ("sa:a2", True), ("sa:none", True)],
)
async def test_run_of_a_revoked_account_is_known(
    deployment: Deployment, actor: str | None, revoked: bool
) -> None:
    async with open_bench(deployment) as bench:
        await bench.database.write(accounts.create(an_account()))
        await bench.database.write(accounts.create(an_account("a2", name="old")))
        assert await bench.database.write(accounts.revoke("a2", START + 1))
        assert await bench.database.read(is_revoked(actor, START + 2)) is revoked


async def test_repeated_commit_of_a_run_belongs_to_the_worker_in_its_row(
    deployment: Deployment,
) -> None:
    # The worker was declared dead after a commit with an unknown outcome, and has another id.
    async with open_bench(deployment, durable=False) as bench:
        spec = bench.root.spec
        admission = await bench.database.write(admit_once(spec, admit_child_run(spec, "w2")))
        assert (admission.owner, admission.run_id, admission.is_repeated) == (OWNER, "root", False)
