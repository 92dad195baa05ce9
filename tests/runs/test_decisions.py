"""Rulings about approvals: their checks, their transaction, their effects and their expiry."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from agentctl import errors
from agentctl.config.settings import Limits
from agentctl.interface.requests.approvals import Ruling
from agentctl.records.approvals import VERBS, ApprovalKind, ApprovalRow, Verb, hash_call
from agentctl.records.runs import RunPause
from agentctl.runs.desk import decisions
from agentctl.runs.desk.decisions import (
    CHANGE_TOOL,
    EXPIRY,
    OUTCOME_QUESTION,
    append_pause_event,
    ask_about_lost_calls,
    ask_about_lost_steps,
    build_outcome_question,
    build_question,
    build_row,
    check_approver,
    check_pending,
    close_question,
    expire_approvals,
    find_answer,
    is_version_question,
    rule,
    write_decisions,
)
from agentctl.runs.log.event_rows import LOST_SEQ_STEP, decode_events
from agentctl.runtime.pauses import CallOutcome, JournaledCall, load_outcome
from agentctl.store.database import Database, Steps, unit
from agentctl.store.databases import open_sqlite
from agentctl.store.outbox import Outbox
from agentctl.store.repositories import approvals, events, run_reads, runs, sessions
from agentctl.store.repositories.approvals import Checkpoint, DecisionChange
from agentctl.store.visibility import EVERYONE
from tests.kit.deployment import Deployment
from tests.kit.rows import ARGUMENTS, START, a_run, a_session, an_approval
from tests.kit.run_specs import a_spec
from tests.runs.bench import open_bench

AT = START + 1_000_000
"""The present time of a test (microseconds UTC)."""

HASH = hash_call("r1", "c1", "pay", ARGUMENTS)


def a_decision(status: str = "approved", **given: Any) -> DecisionChange:
    """Return the new values of an approval that boss decides."""
    return DecisionChange(status, AT, "boss", **given)


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> int:
    """Set the time of decisions."""
    monkeypatch.setattr(decisions, "now", lambda: AT)
    return AT


@asynccontextmanager
async def open_paused_run(
    folder: Path, rows: Sequence[ApprovalRow], *, members: Sequence[str] = ()
) -> AsyncIterator[Database]:
    """Open a database with the root run `r1`, which waits for approvals, and with its members."""
    database = open_sqlite("main", folder / "main.db", create=True)

    @unit
    def store() -> Steps[None]:
        yield from sessions.create(a_session())
        for run_id in ("r1", *members):
            parent = None if run_id == "r1" else "r1"
            run = a_run(run_id, owner="w", parent_run_id=parent, background=False)
            yield from runs.create(run)
            pause = RunPause(run_id, 1, "PAUSED", START + 1, "", "[]", "[]", "{}", "[]")
            assert (yield from runs.pause(pause))
        yield from approvals.create(rows)

    try:
        await database.write(store())
        yield database
    finally:
        await database.close()


async def read(database: Database, approval_id: str = "a1") -> ApprovalRow:
    row = await database.read(approvals.get(approval_id, EVERYONE))
    assert row is not None
    return row


async def read_status(database: Database, run_id: str = "r1") -> str:
    state = await database.read(run_reads.get_state(run_id))
    assert state is not None
    return state.status


async def decide(
    database: Database, *changes: tuple[str, DecisionChange], extra: Any = None
) -> tuple[list[ApprovalRow], bool]:
    return await database.write(write_decisions(database.outbox, "r1", changes, extra))


async def judge(
    row: ApprovalRow,
    ruling: Ruling,
    *,
    limits: Limits | None = None,
    can_call: Callable[..., bool] = lambda *_: True,
) -> DecisionChange:
    return await rule(row, ruling, "boss", limits or Limits(), can_call)


# Who decides about what: the four eyes, the state of the approval, the kinds and their verbs.


@pytest.mark.parametrize("name", ["ann", "key:ci"])
def test_own_run_needs_another_person(name: str) -> None:
    row = an_approval(policy="other", user_id="ann", started_by="key:ci")
    with pytest.raises(errors.FourEyes, match="needs another person"):
        check_approver(row, {name, "group"}, own=False)
    check_approver(row, {"boss"}, own=False)


def test_own_run_may_be_decided_if_configured_or_if_the_policy_is_user() -> None:
    check_approver(an_approval(policy="other"), {"ann"}, own=True)
    check_approver(an_approval(policy="user"), {"ann"}, own=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"status": "approved", "decided_by": "boss"}, "is approved by boss already"),
        ({"status": "cancelled"}, "is cancelled already"),
        ({"expires_at": AT}, "has expired"),
    ],
)
async def test_decided_or_expired_approval_cannot_be_decided(
    moment: int, given: dict[str, Any], message: str
) -> None:
    row = an_approval(**given, note="a secret note")
    with pytest.raises(errors.Conflict, match=message) as raised:
        check_pending(row)
    assert "secret" not in str(raised.value)

    # Whatever else is wrong with the decision.
    for ruling in (Ruling("reject"), Ruling("approve"), Ruling("answer")):
        with pytest.raises(errors.Conflict, match=message):
            await judge(row, ruling)


def test_approval_can_be_decided_until_it_expires(moment: int) -> None:
    check_pending(an_approval())
    check_pending(an_approval(expires_at=AT + 1))


@pytest.mark.parametrize("verb", get_args(Verb))
@pytest.mark.parametrize("kind", get_args(ApprovalKind))
async def test_each_kind_takes_its_decisions_only(
    moment: int, kind: ApprovalKind, verb: Verb
) -> None:
    statuses = {
        "approve": ("approved", None),
        "retry": ("approved", None),
        "reject": ("rejected", None),
        "answer": ("answered", None),
        "complete": ("answered", "done"),
        "fail": ("answered", "failed"),
    }
    decided = judge(an_approval(kind=kind), Ruling(verb, HASH))
    if verb in VERBS[kind]:
        change = await decided
        assert (change.status, change.execution) == statuses[verb]
        assert (change.decided_at, change.decided_by) == (AT, "boss")
    else:
        with pytest.raises(errors.ValidationFailed, match=f"is of the kind {kind}"):
            await decided


# The values of a ruling.


@pytest.mark.parametrize(("kind", "verb"), [("approval", "approve"), ("outcome", "retry")])
async def test_call_that_may_be_made_is_bound_to_the_shown_one(kind: Any, verb: Verb) -> None:
    with pytest.raises(errors.ValidationFailed, match="arguments_hash is required"):
        await judge(an_approval(kind=kind), Ruling(verb))
    with pytest.raises(errors.Conflict, match="belongs to a different call"):
        await judge(an_approval(kind=kind), Ruling(verb, "sha256:0"))


async def test_hash_of_another_call_is_a_conflict_for_every_decision() -> None:
    with pytest.raises(errors.Conflict, match="belongs to a different call"):
        await judge(an_approval(), Ruling("reject", "sha256:0"))
    assert (await judge(an_approval(), Ruling("reject", HASH))).status == "rejected"


@pytest.mark.parametrize(
    ("kind", "verb", "name"),
    [
        ("approval", "reject", "arguments"),
        ("approval", "approve", "answer"),
        ("input", "answer", "result"),
        ("external", "fail", "result"),
        ("outcome", "retry", "arguments"),
    ],
)
async def test_value_of_another_decision_is_rejected(kind: Any, verb: Verb, name: str) -> None:
    ruling = Ruling(verb, HASH, **{name: {}})
    with pytest.raises(errors.ValidationFailed, match=f"{name} is only for the decision"):
        await judge(an_approval(kind=kind), ruling)


async def test_note_is_kept_and_has_a_greatest_length() -> None:
    change = await judge(an_approval(), Ruling("reject", note="n" * 500))
    assert change.note == "n" * 500
    with pytest.raises(errors.ValidationFailed, match="note must be at most 500 characters"):
        await judge(an_approval(), Ruling("reject", note="n" * 501))
    with pytest.raises(errors.ValidationFailed, match="note"):
        await judge(an_approval(), Ruling("reject", note="a\x00b"))


async def test_edited_arguments_are_stored_with_their_hash() -> None:
    edited = {"amount": 10}
    change = await judge(an_approval(), Ruling("approve", HASH, arguments=edited))
    assert change.status == "approved"
    assert json.loads(change.approved_arguments or "") == edited
    assert change.approved_hash == hash_call("r1", "c1", "pay", edited)


async def test_arguments_that_are_not_changed_are_no_edit() -> None:
    change = await judge(an_approval(), Ruling("approve", HASH, arguments=dict(ARGUMENTS)))
    assert (change.approved_arguments, change.approved_hash) == (None, None)


async def test_values_match_the_schema_of_the_approval() -> None:
    schema = json.dumps({"type": "object", "properties": {"amount": {"type": "integer"}}})
    wrong = {"amount": "much"}
    with pytest.raises(errors.ValidationFailed, match=r"arguments.*does not match its schema"):
        await judge(an_approval(schema=schema), Ruling("approve", HASH, arguments=wrong))
    question = an_approval(kind="input", schema=schema)
    with pytest.raises(errors.ValidationFailed, match=r"answer.*does not match its schema"):
        await judge(question, Ruling("answer", answer=wrong))
    change = await judge(question, Ruling("answer", answer={"amount": 1}))
    assert json.loads(change.answer or "") == {"amount": 1}


@pytest.mark.parametrize(
    ("kind", "ruling", "name", "stored"),
    [
        ("input", Ruling("answer"), "answer", None),
        ("input", Ruling("answer", answer="tea"), "answer", "tea"),
        ("external", Ruling("complete"), "result", None),
        ("external", Ruling("complete", result=[1]), "result", [1]),
        ("external", Ruling("fail"), "result", "The call failed"),
        ("external", Ruling("fail", note="no stock"), "result", "no stock"),
    ],
)
async def test_value_is_stored_as_json(
    kind: Any, ruling: Ruling, name: str, stored: object
) -> None:
    change = await judge(an_approval(kind=kind), ruling)
    text = getattr(change, name)
    assert text is not None
    assert json.loads(text) == stored
    others = {"answer", "result", "approved_arguments"} - {name}
    assert [getattr(change, other) for other in others] == [None, None]


@pytest.mark.parametrize(
    ("kind", "verb", "name", "limit"),
    [
        ("approval", "approve", "arguments", "state_bytes"),
        ("input", "answer", "answer", "state_bytes"),
        ("external", "complete", "result", "tool_result_bytes"),
    ],
)
async def test_value_has_a_greatest_size(kind: Any, verb: Verb, name: str, limit: str) -> None:
    ruling = Ruling(verb, HASH, **{name: {"text": "x" * 2_000}})
    row = an_approval(kind=kind)
    with pytest.raises(errors.TooLarge, match=name):
        await judge(row, ruling, limits=Limits(**{limit: 1_024}))
    other = "state_bytes" if limit == "tool_result_bytes" else "tool_result_bytes"
    await judge(row, ruling, limits=Limits(**{other: 1_024}))


@pytest.mark.parametrize(
    ("kind", "verb", "asks"),
    [
        ("approval", "approve", True),
        ("outcome", "retry", True),
        ("approval", "reject", False),
        ("outcome", "complete", False),
    ],
)
async def test_call_of_a_tool_that_is_gone_cannot_be_approved(
    kind: Any, verb: Verb, asks: bool
) -> None:
    asked = list[tuple[Any, ...]]()

    def can_call(*call: Any) -> bool:
        asked.append(call)
        return False

    decided = judge(an_approval(kind=kind), Ruling(verb, HASH), can_call=can_call)
    if asks:
        with pytest.raises(errors.Conflict, match="The tool pay does not exist any more"):
            await decided
        assert asked == [("agent", "echo", "pay")]
    else:
        await decided
        assert asked == []


async def test_question_about_a_version_needs_no_tool() -> None:
    row = an_approval(tool_name=CHANGE_TOOL, tool_call_id="version:v1:v2:1")
    ruling = Ruling("approve", row.arguments_hash)
    change = await judge(row, ruling, can_call=lambda *_: False)
    assert change.status == "approved"


# The transaction.


async def test_last_decision_lets_the_run_go_on(tmp_path: Path) -> None:
    rows = [an_approval(), an_approval("m1", "c2", approval_id="a2", root_run_id="r1")]
    async with open_paused_run(tmp_path, rows, members=["m1"]) as database:
        stored, continues = await decide(database, ("a1", a_decision(note="fine")))
        assert [(row.status, row.decided_by, row.note) for row in stored] == [
            ("approved", "boss", "fine")
        ]
        assert not continues
        assert await read_status(database) == "PAUSED"
        stored, continues = await decide(database, ("a2", a_decision("rejected")))
        assert [(row.approval_id, row.status) for row in stored] == [("a2", "rejected")]
        assert continues
        assert await read_status(database) == "PENDING"


async def test_decisions_are_stored_all_or_none(tmp_path: Path) -> None:
    rows = [an_approval(), an_approval(approval_id="a2", tool_call_id="c2")]
    async with open_paused_run(tmp_path, rows) as database:
        await decide(database, ("a2", a_decision("rejected")))
        both = [("a1", a_decision()), ("a2", a_decision())]
        with pytest.raises(errors.Conflict, match="is rejected by boss already"):
            await decide(database, *both)
        assert (await read(database)).status == "pending"
        with pytest.raises(errors.NotFound, match="Approval not found"):
            await decide(database, ("a1", a_decision()), ("a3", a_decision()))
        assert (await read(database)).status == "pending"
        assert await read_status(database) == "PAUSED"


async def test_further_writes_are_part_of_the_transaction(tmp_path: Path) -> None:
    seen = list[str]()

    @unit
    def fail() -> Steps[None]:
        row = yield from approvals.get("a1", EVERYONE)
        assert row is not None
        seen.append(row.status)
        raise errors.Conflict("The entry cannot be written")

    async with open_paused_run(tmp_path, [an_approval()]) as database:
        with pytest.raises(errors.Conflict, match="entry"):
            await decide(database, ("a1", a_decision()), extra=fail)
        assert seen == ["approved"]
        assert (await read(database)).status == "pending"


async def test_published_decisions_are_those_of_the_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = list[tuple[object, str, str]]()

    @unit
    def publish(outbox: object, row: ApprovalRow) -> Steps[None]:
        published.append((outbox, row.approval_id, row.status))
        yield from ()

    monkeypatch.setattr(decisions, "publish_decision", publish)
    async with open_paused_run(tmp_path, [an_approval()]) as database:
        await decide(database, ("a1", a_decision("rejected")))
        assert published == [(database.outbox, "a1", "rejected")]


# Calls that were executing when their server died.


async def test_lost_calls_become_questions_unless_they_are_idempotent(tmp_path: Path) -> None:
    approved: dict[str, Any] = {"status": "approved", "decided_at": START}
    begun: dict[str, Any] = {**approved, "execution": "executing", "executing_at": START}
    rows = [
        an_approval(**begun),
        an_approval("m1", "c2", approval_id="a2", root_run_id="r1", idempotent=1, **begun),
        an_approval(approval_id="a3", tool_call_id="c3", **approved),
    ]
    async with open_paused_run(tmp_path, rows, members=["m1"]) as database:
        (asked,) = await database.write(ask_about_lost_calls(rows))
        assert (asked.kind, asked.tool_call_id, asked.status) == ("outcome", "c1", "pending")
        assert asked.question == OUTCOME_QUESTION
        assert await read(database, asked.approval_id) == asked
        stored = [await read(database, name) for name in ("a1", "a2", "a3")]
        assert [(row.execution, row.executing_at) for row in stored] == [
            ("unknown", START), (None, None), (None, None),
        ]  # fmt: skip


async def test_call_whose_end_was_stored_meanwhile_is_no_question(tmp_path: Path) -> None:
    begun = an_approval(
        status="approved", decided_at=START, execution="executing", executing_at=START
    )
    other = replace(begun, approval_id="a2", tool_call_id="c2")
    async with open_paused_run(tmp_path, [begun, other]) as database:
        await database.write(approvals.end_execution("a1", "r1", "done", '"paid"', AT))
        asked = await database.write(ask_about_lost_calls([begun, other]))
        assert [row.tool_call_id for row in asked] == ["c2"]
        assert (await read(database)).execution == "done"


@pytest.mark.parametrize(
    ("verb", "fields", "execution", "result"),
    [
        ("complete", {"result": {"paid": 1}}, "done", {"paid": 1}),
        ("fail", {"note": "not sent"}, "failed", "not sent"),
        ("retry", {"arguments_hash": HASH}, None, None),
    ],
)
async def test_outcome_is_stored_in_the_approval_of_the_lost_call(
    tmp_path: Path, verb: Verb, fields: dict[str, Any], execution: str | None, result: object
) -> None:
    lost = an_approval(
        status="approved", decided_at=START, execution="executing", executing_at=START
    )
    async with open_paused_run(tmp_path, [lost]) as database:
        (asked,) = await database.write(ask_about_lost_calls([lost]))
        change = await judge(asked, Ruling(verb, **fields))
        (decided,), continues = await decide(database, (asked.approval_id, change))
        assert continues
        settled = await read(database)
        assert settled.execution == execution
        assert settled.executed_at == decided.decided_at
        assert (None if settled.result is None else json.loads(settled.result)) == result


async def test_outcome_of_a_call_without_a_record_is_stored_as_decided(tmp_path: Path) -> None:
    """The step of the call is gone, as after a repair of the run."""
    question = an_approval(kind="outcome")
    async with open_paused_run(tmp_path, [question]) as database:
        change = await judge(question, Ruling("complete", result="sent"))
        (decided,), continues = await decide(database, ("a1", change))
        assert (decided.result, continues) == ('"sent"', True)


def test_root_run_is_locked_before_its_approvals_are_decided() -> None:
    """Its end locks it first, too: PostgreSQL would report a deadlock."""
    work = write_decisions(Outbox(), "root", [("a1", a_decision())])
    first = next(iter(work))
    assert "FROM runs" in first.sql
    assert first.sql.endswith("FOR UPDATE")
    assert first.parameters == {"run_id": "root"}


async def test_approval_of_another_kind_settles_no_lost_call(tmp_path: Path) -> None:
    lost = an_approval(status="approved", decided_at=START, execution="unknown", executing_at=START)
    external = an_approval(approval_id="a2", kind="external")
    async with open_paused_run(tmp_path, [lost, external]) as database:
        change = await judge(external, Ruling("complete", result="sent"))
        await decide(database, ("a2", change))
        assert (await read(database)).execution == "unknown"


def test_question_about_an_outcome_shows_the_call_that_was_approved() -> None:
    row = an_approval("m1", root_run_id="r1", policy="other", idempotent=1)
    question = build_outcome_question(row, "What happened?", AT)
    names = (
        "policy", "run_id", "root_run_id", "session_id", "component_type", "component_id",
        "user_id", "started_by", "tool_call_id", "tool_name", "idempotent", "request_id",
        "arguments", "arguments_hash",
    )  # fmt: skip
    assert [getattr(question, name) for name in names] == [getattr(row, name) for name in names]
    assert (question.kind, question.question) == ("outcome", "What happened?")
    assert (question.created_at, question.status) == (AT, "pending")
    assert question.approval_id != row.approval_id
    edited = replace(row, approved_arguments='{"amount": 1}', approved_hash="sha256:1")
    question = build_outcome_question(edited, "What happened?", AT)
    assert (question.arguments, question.arguments_hash) == ('{"amount": 1}', "sha256:1")


async def test_lost_steps_of_a_durable_run_are_asked_about_in_their_order(
    deployment: Deployment, moment: int
) -> None:
    names = ("c1", "c2", "c3", "c4")
    first, second, third, fourth = (JournaledCall(each, "note", {"text": each}) for each in names)
    async with open_bench(deployment) as bench:
        assert await bench.database.write(ask_about_lost_steps("root", "root")) == []
        journal = bench.journal_of(bench.root)
        message = {"role": "assistant", "tool_calls": [{"id": "c1", "arguments": {"text": "c1"}}]}
        await journal.add_answer({"messages": [message]}, [first, second])
        await journal.end_call(second, CallOutcome("noted"))
        await journal.begin_call(third, {})
        await journal.begin_call(fourth)
        asked = await bench.database.write(ask_about_lost_steps("root", "root"))
        shown = [(row.tool_call_id, row.tool_name, json.loads(row.arguments)) for row in asked]
        # Nothing has the arguments of the last one.
        assert shown == [
            ("c1", "note", {"text": "c1"}), ("c3", "note", {"text": "c3"}), ("c4", "note", {}),
        ]  # fmt: skip
        assert [row.created_at for row in asked] == [AT, AT + 1, AT + 2]
        assert {(row.kind, row.policy, row.question, row.root_run_id) for row in asked} == {
            ("outcome", "user", OUTCOME_QUESTION, "root")
        }
        stored = {row.call_id: row.arguments_hash for row in await bench.list_steps()}
        hashes = [row.arguments_hash for row in asked]
        assert hashes == [stored["c1"], stored["c3"], stored["c4"]]
        assert await bench.database.read(approvals.list_of_run("root")) == asked


@pytest.mark.parametrize(
    ("verb", "fields", "state", "outcome"),
    [
        ("complete", {"result": "sent"}, "done", CallOutcome("sent")),
        ("complete", {"result": {"paid": 1}}, "done", CallOutcome('{"paid":1}')),
        ("fail", {"note": "not sent"}, "failed", CallOutcome("not sent", failed=True)),
        ("retry", {}, "again", None),
    ],
)
async def test_outcome_is_stored_in_the_step_of_the_lost_call(
    deployment: Deployment,
    verb: Verb,
    fields: dict[str, Any],
    state: str,
    outcome: CallOutcome | None,
) -> None:
    async with open_bench(deployment) as bench:
        await bench.journal_of(bench.root).begin_call(JournaledCall("c1", "note", {}))
        (asked,) = await bench.database.write(ask_about_lost_steps("root", "root"))
        change = await judge(asked, Ruling(verb, asked.arguments_hash, **fields))

        changes = [(asked.approval_id, change)]
        await bench.database.write(write_decisions(bench.database.outbox, "root", changes))

        (step,) = await bench.list_steps()
        body = json.loads(step.body or "{}")
        assert step.state == state
        assert (load_outcome(body) if "text" in body else None) == outcome


def test_row_of_a_question_belongs_to_the_run_that_asks() -> None:
    spec = a_spec("m1", "s2", component_id="walk", actor="key:ci", request_id="q2")
    about: dict[str, Any] = {
        "kind": "input",
        "policy": "user",
        "tool_call_id": "c1",
        "tool_name": "ask",
        "arguments": "{}",
        "arguments_hash": "sha256:1",
    }
    row = build_row(spec, "root", AT, **about)
    assert (row.run_id, row.root_run_id, row.session_id) == ("m1", "root", "s2")
    assert (row.component_type, row.component_id) == ("agent", "walk")
    assert (row.user_id, row.started_by, row.request_id) == ("ann", "key:ci", "q2")
    assert (row.created_at, row.kind, row.tool_name) == (AT, "input", "ask")


async def test_pause_for_lost_calls_is_an_event_after_those_that_may_be_lost(
    deployment: Deployment, moment: int
) -> None:
    async with open_bench(deployment) as bench:
        started = events.append_batch("root", 4, 0, 0, "RunStarted {}\n")
        assert await bench.database.write(started)
        await bench.journal_of(bench.root).begin_call(JournaledCall("c1", "note", {}))
        asked = await bench.database.write(ask_about_lost_steps("root", "root"))
        await bench.database.write(append_pause_event("root", asked))
        _, row = await bench.database.read(events.list_after("root", -1))
        (event,) = decode_events(row)
        assert row.first_seq == LOST_SEQ_STEP
        data = json.loads(event.data)
        assert (event.name, data["agent_name"]) == ("RunPaused", "Echo")
        assert [each["tool_call_id"] for each in data["approvals"]] == ["c1"]


async def test_run_that_no_one_can_follow_or_continue_gets_no_event(tmp_path: Path) -> None:
    async with open_paused_run(tmp_path, [an_approval()]) as database:
        await database.write(append_pause_event("gone", [an_approval()]))
        checkpoint = Checkpoint("r1", 1, "pause", "{}")
        await database.write(approvals.keep_checkpoint(checkpoint))
        await database.write(append_pause_event("r1", [an_approval()]))
        assert await database.read(events.get_last_seq("r1")) == -1

        await database.write(approvals.drop_checkpoint("r1"))
        await database.write(events.append_batch("r1", 2, 0, 0, "RunStarted {}\n"))
        before = await database.read(events.get_last_seq("r1"))
        await database.write(append_pause_event("r1", [an_approval()]))
        assert await database.read(events.get_last_seq("r1")) == before


# Questions about another version.


def a_version_question(version: str = "v2", attempt: int = 1, **given: Any) -> ApprovalRow:
    return an_approval(
        tool_name=CHANGE_TOOL, tool_call_id=f"version:v1:{version}:{attempt}", **given
    )


def test_question_about_a_version_is_a_call_that_no_model_can_make() -> None:
    assert is_version_question(a_version_question())
    assert not is_version_question(an_approval(tool_name=CHANGE_TOOL))
    assert not is_version_question(an_approval(tool_call_id="version:v1:v2:1"))


async def build_version_question(tmp_path: Path, calls: Sequence[ApprovalRow]) -> ApprovalRow:
    async with open_paused_run(tmp_path, []) as database:
        state = await database.read(run_reads.get_state("r1"))
        assert state is not None
    return build_question(
        replace(state, version="v1", attempt=3),
        a_spec(actor="key:ci"),
        "v2",
        AT,
        changes=[{"path": "model"}],
        calls=calls,
        policy="other",
        expires_at=AT + 5,
    )


async def test_question_about_a_version_shows_what_has_changed(tmp_path: Path) -> None:
    row = await build_version_question(tmp_path, [])
    assert is_version_question(row)
    assert (row.kind, row.policy, row.tool_call_id) == ("approval", "other", "version:v1:v2:3")
    assert (row.run_id, row.root_run_id, row.started_by) == ("r1", "r1", "key:ci")
    assert (row.created_at, row.expires_at) == (AT, AT + 5)
    assert row.question == "Go on with version v2 in place of v1?"
    arguments = json.loads(row.arguments)
    assert arguments == {
        "before": "v1", "after": "v2", "changes": [{"path": "model"}], "calls": [],
    }  # fmt: skip
    assert row.arguments_hash == hash_call("r1", row.tool_call_id, CHANGE_TOOL, arguments)
    # No edit of them is valid.
    with pytest.raises(errors.ValidationFailed, match="does not match its schema"):
        await judge(
            replace(row, expires_at=None),
            Ruling("approve", row.arguments_hash, arguments=arguments),
        )


async def test_question_about_a_version_names_each_changed_tool_once(tmp_path: Path) -> None:
    calls = [
        an_approval(),
        an_approval(approval_id="a2"),
        an_approval(approval_id="a3", tool_name="send"),
    ]
    row = await build_version_question(tmp_path, calls)
    assert (row.question or "").endswith("The tools of approved calls have changed: pay, send.")
    assert json.loads(row.arguments)["calls"] == ["a1", "a2", "a3"]


def test_answer_is_the_last_decided_question_that_had_no_effect_yet() -> None:
    approved = a_version_question(status="approved")
    assert find_answer([approved], "v2") is approved
    assert find_answer([], "v2") is None
    assert find_answer([a_version_question()], "v2") is None
    assert find_answer([an_approval(status="approved")], "v2") is None
    assert find_answer([replace(approved, execution="done")], "v2") is None
    later = a_version_question("v3", 2, status="rejected")
    assert find_answer([approved, later], "v3") is later
    assert find_answer([approved, later], "v2") is None
    assert find_answer([approved, a_version_question("v3", 2)], "v2") is approved


async def test_answer_about_a_version_has_its_effect_once(tmp_path: Path) -> None:
    decided: dict[str, Any] = {"decided_at": START}
    rows = [
        a_version_question(status="approved", **decided),
        a_version_question("v3", 2, approval_id="a2", status="rejected", **decided),
        an_approval(approval_id="a3", status="approved", **decided),
    ]
    async with open_paused_run(tmp_path, rows) as database:
        await database.write(close_question("r1", AT))
        await database.write(close_question("r1", AT + 9))
        closed, rejected, call = [await read(database, name) for name in ("a1", "a2", "a3")]
        assert (closed.execution, closed.executing_at, closed.executed_at) == ("done", AT, AT)
        assert json.loads(closed.result or "") is None
        assert (rejected.execution, call.execution) == (None, None)


# Expiry.


async def test_expired_approvals_are_rejected_and_their_runs_go_on(
    tmp_path: Path, moment: int
) -> None:
    counted = list[tuple[str, str]]()
    rows = [
        an_approval(expires_at=AT),
        an_approval(approval_id="a2", tool_call_id="c2", expires_at=AT + 1_000),
    ]
    async with open_paused_run(tmp_path, rows) as database:

        def count(row: ApprovalRow) -> None:
            counted.append((row.approval_id, row.status))

        assert await expire_approvals(database, count) == []
        expired = await read(database)
        assert (expired.status, expired.decided_by) == ("expired", EXPIRY)
        assert expired.decided_at == AT
        assert (await read(database, "a2")).status == "pending"
        assert counted == [("a1", "expired")]
        await decide(database, ("a2", a_decision("rejected")))
        assert await read_status(database) == "PENDING"


async def test_run_goes_on_when_the_last_approval_expires(tmp_path: Path) -> None:
    async with open_paused_run(tmp_path, [an_approval(expires_at=START)]) as database:
        assert await expire_approvals(database) == ["r1"]
        assert await expire_approvals(database) == []
        assert await read_status(database) == "PENDING"


async def test_approval_expires_by_the_clock_of_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = an_approval(expires_at=START + 10)
    async with open_paused_run(tmp_path, [row]) as database:

        async def clock() -> int:
            return START + 9

        monkeypatch.setattr(type(database), "clock", lambda self: clock())
        assert await expire_approvals(database) == []
        assert (await read(database)).status == "pending"


async def test_approval_that_was_decided_meanwhile_does_not_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        an_approval(expires_at=START + 1),
        an_approval(approval_id="a2", tool_call_id="c2", expires_at=START + 2),
    ]
    async with open_paused_run(tmp_path, rows) as database:
        clock = database.clock

        async def decide_first() -> int:
            await decide(database, ("a1", DecisionChange("approved", START, "boss")))
            return await clock()

        monkeypatch.setattr(type(database), "clock", lambda self: decide_first())
        assert await expire_approvals(database) == ["r1"]
        assert [(await read(database, name)).status for name in ("a1", "a2")] == [
            "approved", "expired",
        ]  # fmt: skip


async def test_outbox_wakes_for_an_expired_approval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_paused_run(tmp_path, [an_approval(expires_at=START)]) as database:
        wakes = list[bool]()
        monkeypatch.setattr(database.outbox, "wake", lambda: wakes.append(True), raising=False)
        await expire_approvals(database)
        assert wakes == [True]
