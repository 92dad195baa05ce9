"""The transcript and the state of a run from its checkpoint, its journal and its events."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from agentctl.records.events import parse_event
from agentctl.records.items import CANCELLED_RESULT
from agentctl.runs.log.event_rows import RunIdentity, format_event
from agentctl.runs.log.fold import EventFold, StoredLog, begin_transcript, fold_steps
from agentctl.runtime.pauses import CallOutcome, dump_outcome, load_outcome
from agentctl.runtime.transcript.events import Content, RunEvent, ToolCallCompleted, ToolCallStarted
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.store.repositories.approvals import Checkpoint

USAGE = {"usage": {"input_tokens": 3}, "usage_of_models": {}, "knows_usage": True}
NO_SPANS = {"model_calls": 1, "spans": []}
CHANGES = {"values": {"topic": "tea"}, "removed": []}


def start(kind: str = "agent", **more: Any) -> dict[str, Any]:
    """Build the checkpoint of the start of a run."""
    return {"spec": {"component_type": kind}, **more}


def step(seq: int, kind: str, state: str, call_id: str | None = None, **body: Any) -> Any:
    """Build a step that begins at its number times ten, and ends one later unless it works."""
    return SimpleNamespace(
        seq=seq,
        kind=kind,
        call_id=call_id,
        name=f"name of {call_id}",
        state=state,
        started_at=10 * seq,
        ended_at=None if state == "started" else 10 * seq + 1,
        body=json.dumps(body) if body else None,
    )


def add(text: str, *calls: str, **more: Any) -> dict[str, Any]:
    """Build what an answer of the model adds to the transcript."""
    made = [{"id": call_id, "name": f"name of {call_id}", "arguments": {}} for call_id in calls]
    message = {"role": "assistant", "content": text, "finish_reason": "stop"}
    return {
        "messages": [message | ({"tool_calls": made} if made else {})],
        "content": text,
        "reasoning": "",
        "progress_events": 0,
        "spans": NO_SPANS,
        **USAGE,
        **more,
    }


def answer(seq: int, text: str, *calls: str, **more: Any) -> Any:
    """Build the step of an answer with calls."""
    added = add(text, *calls)
    made = [{"id": call_id, "name": f"name of {call_id}", "arguments": {}} for call_id in calls]
    message = {"role": "assistant", "content": text, "tool_calls": made}
    return step(
        seq,
        "answer",
        "done",
        transcript=added,
        messages=[message],
        conversation={"ask": text},
        model="m",
        turns=seq,
        corrected=False,
        **more,
    )


def outcome(text: str, **more: Any) -> dict[str, Any]:
    return {**dump_outcome(CallOutcome(text)), **more}


def read(rebuilt: dict[str, Any]) -> Transcript:
    return Transcript.from_json(rebuilt["transcript"])


@pytest.mark.parametrize("field", ["failed", "counts_as_failure", "is_routed"])
def test_result_of_a_call_is_stored_whole(field: str) -> None:
    changed: dict[str, Any] = {field: not getattr(CallOutcome("text"), field)}
    outcome = CallOutcome("text", **changed)
    assert load_outcome(dump_outcome(outcome)) == outcome


def test_run_without_steps_has_the_values_of_its_checkpoint() -> None:
    rebuilt = fold_steps(start(summary="short"), [])
    assert (rebuilt["state"], rebuilt["summary"], rebuilt["is_first"]) == (None, "short", False)
    assert rebuilt["session_changes"] is None
    assert read(rebuilt).messages == []


def test_results_of_the_last_answer_are_known() -> None:
    steps = [
        answer(0, "one", "a", begin={"is_first": True, "summary": "long"}),
        step(1, "tool", "done", "a", **outcome("of a")),
        answer(2, "two", "b", "c"),
        step(3, "tool", "failed", "b", **outcome("of b")),
        step(4, "tool", "started", "c"),
    ]
    rebuilt = fold_steps(start(), steps)
    state = rebuilt["state"]
    assert (rebuilt["is_first"], rebuilt["summary"]) == (True, "long")
    assert {call: each["text"] for call, each in state["known"].items()} == {"b": "of b"}
    assert (state["known"]["b"]["started_at"], state["known"]["b"]["ended_at"]) == (30, 31)
    assert [call["id"] for call in state["calls"]] == ["b", "c"]
    assert state["conversation"] == {"ask": "two", "waiting": {}}
    assert (state["model"], state["turns"], state["results"]) == ("m", 2, {})
    roles = [(each["role"], each["content"]) for each in state["messages"]]
    assert roles == [("assistant", "one"), ("tool", "of a"), ("assistant", "two")]
    transcript = read(rebuilt)
    assert [(each["tool_call_id"], each["result"]) for each in transcript.tools] == [("a", "of a")]
    assert transcript.content == "onetwo"
    assert transcript.open_calls == {}


def test_end_of_a_run_has_the_results_of_its_last_calls() -> None:
    steps = [
        answer(0, "one", "a", "b", "c"),
        step(3, "tool", "failed", "b", **outcome("of b", failed=True, run_id="member")),
        step(1, "tool", "done", "a", **outcome("of a", arguments={"n": 1})),
        step(4, "tool", "started", "c"),
    ]
    rebuilt = fold_steps(start(), steps, ends=True)
    transcript = read(rebuilt)
    assert "known" not in rebuilt["state"]
    found = [
        (each["tool_call_id"], each["result"], each["tool_call_error"], each["tool_args"])
        for each in transcript.tools
    ]
    assert found == [("a", "of a", False, {"n": 1}), ("b", "of b", True, {})]
    spans = {span["id"]: span for span in transcript.spans.records()}
    assert [spans[call]["status"] for call in ("a", "b")] == ["completed", "failed"]
    assert spans["b"]["member_run_id"] == "member"
    assert spans["b"]["finished_at"].endswith("00:00:00.000031Z")


def test_steps_before_the_checkpoint_are_part_of_it() -> None:
    steps = [step(seq, "tool", "done", f"c{seq}", **outcome("x")) for seq in range(4)]
    state = {"conversation": {"waiting": {}}, "messages": [], "calls": [], "results": {}}
    later = fold_steps(start(state=state, next_step=2), steps)
    assert list(later["state"]["known"]) == ["c2", "c3"]
    assert list(fold_steps(start(state=state), steps)["state"]["known"]) == ["c0", "c1", "c2", "c3"]


def test_calls_after_the_state_of_a_graph_are_known() -> None:
    whole = Transcript()
    whole.add_user("hello")
    replaced = step(0, "answer", "done", graph={"thread": 1}, whole=whole.to_json(), after=2)
    calls = [step(seq, "tool", "done", f"c{seq}", **outcome("x")) for seq in (1, 2, 3)]
    working = step(4, "tool", "started", "c4")
    rebuilt = fold_steps(start(), [replaced, *calls, working])
    assert rebuilt["state"]["thread"] == 1
    assert list(rebuilt["state"]["known"]) == ["c2", "c3"]
    assert [each["content"] for each in read(rebuilt).messages] == ["hello"]


def test_members_that_work_are_waited_for() -> None:
    steps = [
        answer(0, "one", "a", "b"),
        step(1, "member", "started", "a", run_id="ra", member="x"),
        step(2, "member", "done", "b", **outcome("of b", run_id="rb", member="y")),
    ]
    state = fold_steps(start(), steps)["state"]
    waiting = state["conversation"]["waiting"]
    assert list(waiting) == ["a"]
    assert (waiting["a"]["has_begun"], waiting["a"]["state"]) == (True, "ra")
    assert list(state["known"]) == ["b"]
    # An answer that follows has all results: nothing waits any more.
    steps[1] = step(1, "member", "done", "a", **outcome("of a", run_id="ra", member="x"))
    state = fold_steps(start(), [*steps, answer(3, "two")])["state"]
    assert state["conversation"]["waiting"] == {}


def test_messages_of_a_library_are_added_or_replaced() -> None:
    def native(seq: int, *messages: str, replaced: bool) -> Any:
        body = {"messages": messages, "first_message": 0, "usage": seq, "replaced": replaced}
        return step(seq, "answer", "done", native=body, transcript=add(f"{seq}", "a"))

    ended = step(2, "tool", "done", "a", **outcome("of a", arguments={"n": 1}))
    steps = [native(0, "one", replaced=False), native(1, "two", replaced=False), ended]
    rebuilt = fold_steps(start(), steps)
    assert rebuilt["state"] == {
        "messages": ["one", "two"],
        "first_message": 0,
        "usage": 1,
        "metadata": {},
        "calls": {},
        "known": rebuilt["state"]["known"],
    }
    assert rebuilt["state"]["known"]["a"]["text"] == "of a"
    rebuilt = fold_steps(start(), steps, ends=True)
    assert [each["tool_args"] for each in read(rebuilt).tools] == [{"n": 1}]
    rebuilt = fold_steps(start(), [*steps, native(3, "three", replaced=True)])
    assert rebuilt["state"]["messages"] == ["three"]


def log(seq: int, state: str, call_id: str, **body: Any) -> Any:
    is_done = body.pop("is_done", False)
    return step(seq, "step", state, call_id, call={"call_id": call_id, "is_done": is_done}, **body)


def test_steps_of_a_function_are_its_log() -> None:
    steps = [
        log(0, "done", "own", is_done=True, begin={"is_first": True}),
        log(1, "started", "lost"),
        log(2, "done", "json", text='{"n": 1}'),
        log(3, "done", "text", text="plain"),
        log(4, "failed", "failed", text="it was not sent"),
    ]
    before = {"calls": [{"call_id": "before"}, {"call_id": "own"}], "output": ["x"]}
    rebuilt = fold_steps(start(state=before), steps)
    assert rebuilt["is_first"] is True
    assert rebuilt["state"] == {
        "calls": [
            {"call_id": "before"},
            {"call_id": "own", "is_done": True},
            {"call_id": "lost", "is_done": False},
            {"call_id": "json", "is_done": True, "result": {"n": 1}},
            {"call_id": "text", "is_done": True, "result": "plain"},
            {"call_id": "failed", "is_done": True, "reason": "it was not sent"},
        ],
        "output": ["x"],
    }
    assert fold_steps(start(), steps[:1])["state"]["output"] == []


@pytest.mark.parametrize("is_open", [False, True])
def test_steps_of_a_workflow_are_its_spans(is_open: bool) -> None:
    known = Transcript()
    if is_open:
        known.spans.start_step(0, "first", 1)
        known.spans.start_member("r0", "x", 1, "step-0")
    steps = [
        step(0, "member", "done", "step-0", **outcome("one", run_id="r0", member="x")),
        step(
            1, "member", "failed", "step-1", **outcome("no", failed=True, run_id="r1", member="y")
        ),
    ]
    rebuilt = fold_steps(start("workflow", transcript=known.to_json()), steps)
    assert rebuilt["state"] == {"step": 2, "input": "no", "run_id": None}
    transcript = read(rebuilt)
    assert transcript.content == "no"
    spans = transcript.spans.records()
    assert [(span["id"], span["status"], span["parent"]) for span in spans] == [
        ("step-0", "completed", None), ("r0", "completed", "step-0"),
        ("step-1", "failed", None), ("r1", "failed", "step-1"),
    ]  # fmt: skip
    assert spans[0]["started_at"].endswith("01Z" if is_open else "00Z")
    assert {span["finished_at"][-3:] for span in spans} == {"01Z", "11Z"}


def test_open_step_of_a_workflow_names_its_run() -> None:
    ended = step(0, "member", "done", "step-0", **outcome("one", run_id="r0", member="x"))
    working = step(1, "member", "started", "step-1", run_id="r1", member="y")
    rebuilt = fold_steps(start("workflow"), [ended, working])
    assert rebuilt["state"] == {"step": 1, "input": "one", "run_id": "r1"}
    assert fold_steps(start("workflow"), [])["state"] is None
    only = fold_steps(start("workflow"), [working])["state"]
    assert only == {"step": 1, "input": None, "run_id": "r1"}


@pytest.mark.parametrize("kind", ["agent", "workflow"])
def test_latest_changes_of_the_session_state_are_kept(kind: str) -> None:
    first = {"values": {"topic": "ink"}, "removed": []}
    found = outcome("x", run_id="r", member="m", session_state=CHANGES)
    steps = [
        step(2, "member", "done", "step-0", **found),
        step(1, "member", "done", "step-0", **{**found, "session_state": first}),
        step(3, "member", "done", "step-1", **outcome("x", run_id="s", member="m")),
        step(4, "member", "started", "step-2", run_id="t", session_state=first),
    ]
    assert fold_steps(start(kind), steps)["session_changes"] == {**CHANGES, "at": 21}


RUN: Any = SimpleNamespace(
    run_id="r1",
    component_type="agent",
    input="hello",
    files=None,
    created_at=5_000_000,
    content=None,
)
IDENTITY = RunIdentity("r1", "s1", None, "agent", "a", "A")


def call(call_id: str, error: bool | None = None) -> dict[str, Any]:
    """Build the entry of a call; one without a result by default."""
    result = None if error is None else f"of {call_id}"
    return {
        "tool_call_id": call_id,
        "tool_name": "look",
        "tool_args": {"n": 1},
        "tool_call_error": error,
        "result": result,
    }


def apply_all(fold: EventFold, *happened: RunEvent) -> None:
    for each in happened:
        name, data, _ = format_event(IDENTITY, each)
        fold.apply(parse_event(name, data))


def test_events_of_a_lost_run_become_messages() -> None:
    kept = [{"role": "user", "content": "before", "created_at": 1, "origin_run_id": "r0"}]
    fold = EventFold(RUN, begin_transcript(RUN, kept))
    apply_all(
        fold,
        Content("\n\nOne"),
        Content(" moment"),
        ToolCallStarted(call("a")),
        ToolCallCompleted(call("a", error=False)),
        Content("Then"),
        ToolCallStarted(call("b")),
    )
    assert fold.component_name == "A"
    transcript = fold.end(9_000_000)
    assert [(each["role"], each["content"]) for each in transcript.messages] == [
        ("user", "before"), ("user", "hello"), ("assistant", "One moment"), ("tool", "of a"),
        ("assistant", "Then"), ("tool", CANCELLED_RESULT),
    ]  # fmt: skip
    assert transcript.messages[1]["created_at"] == 5
    assert transcript.content == "\n\nOne momentThen"
    found = [(each["result"], each["tool_call_error"]) for each in transcript.tools]
    assert found == [("of a", False), (CANCELLED_RESULT, True)]
    spans = transcript.spans.records()
    assert [(span["id"], span["status"]) for span in spans] == [("a", "completed"), ("b", None)]


def test_run_goes_on_after_the_kept_result_of_a_call() -> None:
    kept = [{"role": "tool", "content": "x", "tool_call_id": "a", "tool_name": "look"}]
    assert begin_transcript(RUN, kept).messages == kept


def test_event_without_a_member_of_its_call_is_skipped() -> None:
    fold = EventFold(RUN, begin_transcript(RUN))
    entry = call("a")
    del entry["tool_call_error"]
    name, data, _ = format_event(IDENTITY, ToolCallStarted(entry))
    with pytest.raises(KeyError):
        fold.apply(parse_event(name, data))
    assert fold.end(9_000_000).tools == []


def test_workflow_of_a_dead_server_has_no_messages() -> None:
    workflow: Any = SimpleNamespace(**{**vars(RUN), "component_type": "workflow"})
    fold = EventFold(workflow, begin_transcript(workflow))
    apply_all(fold, Content("text"))
    transcript = fold.end(9_000_000)
    assert (transcript.messages, transcript.content) == ([], "text")


def test_arguments_of_calls_are_those_of_the_last_state_and_of_later_steps() -> None:
    state = {"calls": ["unknown", {"id": "old", "arguments": {"n": 0}}]}
    checkpoint = Checkpoint("r1", 1, "pause", json.dumps(start(state=state)))
    steps = [
        answer(0, "one", "a"),
        step(1, "tool", "started", "b", arguments={"n": 2}),
        step(2, "tool", "started", "c"),
    ]
    log = StoredLog(checkpoint, steps)
    assert log.find_arguments() == {"old": {"n": 0}, "a": {}, "b": {"n": 2}}
    assert not log.is_durable


def test_log_goes_on_by_default() -> None:
    steps = [answer(0, "one", "a"), step(1, "tool", "done", "a", **outcome("of a"))]
    log = StoredLog(Checkpoint("r1", 0, "start", json.dumps(start())), steps)
    assert list(log.fold()["state"]["known"]) == ["a"]
    assert "known" not in log.fold(ends=True)["state"]
