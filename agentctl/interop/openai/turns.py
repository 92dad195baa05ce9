"""Runs of requests: a new run, or the next leg of the run whose calls a request answers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, NamedTuple

import orjson
from starlette.responses import Response

from agentctl.errors import AgentctlError, Conflict, NotFound, Unavailable, ValidationFailed
from agentctl.interface import requests
from agentctl.interface.requests.approvals import ContinueRequest, Ruling, build_ruling
from agentctl.interop.openai.calls import CallNotFound, CallResult
from agentctl.interop.openai.chat import ChatCompletion
from agentctl.interop.openai.events import Answer, LegStart, RunEvents, read_answer, read_leg_id
from agentctl.interop.openai.failures import RefusedParameter, build_end_response, describe_end
from agentctl.interop.openai.responses import RESPONSE_ID, ModelResponse
from agentctl.records.approvals import ApprovalRecord, Verb
from agentctl.records.events import END_STATUSES, EventKind, find_event_kind, parse_event
from agentctl.records.kinds import ComponentKind
from agentctl.records.logs import add_log_context
from agentctl.records.runs import FoundTurn
from agentctl.runs.states import CLIENT_DISCONNECTED
from agentctl.server.answers import (
    Call,
    EventStreamResponse,
    cancelling_on_disconnect,
    json_response,
    wait_for_first_events,
)
from agentctl.work.event_loop import build_unread_outcome, read_after_change

SESSION_HEADER = "X-Session-ID"
"""Header field of requests with a session, and of all responses of runs."""

RUN_HEADER = "X-Run-ID"
"""Header field of all responses of runs."""

Portions = AsyncGenerator[list[requests.StreamEvent]]
"""Events of a run, as they become known together."""

Turn = ChatCompletion | ModelResponse

_SETTLED = frozenset({EventKind.PAUSED, *END_STATUSES})
"""The events after which a leg is not at work any more."""


class AnsweredCall(Conflict):
    """A result of a call whose result was given before, or whose run has ended (409)."""

    code = "tool_call_closed"


class Requested(NamedTuple):
    """A request for a turn of a component."""

    kind: ComponentKind
    model: str
    turn: Turn

    headers: dict[str, str]
    """Further header fields of the response."""

    is_stream: bool

    key: str | None
    """The idempotency key; None without a key."""


async def start_turn(
    call: Call,
    requested: Requested,
    request: requests.RunRequest,
    earlier: list[requests.EarlierMessage],
) -> Response:
    """Start a run, and respond with its answer, or with the calls that its caller has to make.

    Args:
        earlier: messages before the message of the run, next to the history of its session.

    Raises:
        RefusedParameter: a tool of the request cannot be used.
        AgentctlError: the run is refused, or has not ended.
    """
    kind = requested.kind
    model = requested.model
    operations = call.operations

    with _naming_tools(requested.turn):
        if requested.is_stream:
            events = operations.runs.stream_portions(kind, model, request, earlier=earlier)
            return await _stream(call, requested, _expand_pauses(call, events), LegStart())

        async with cancelling_on_disconnect(call.receive):
            document = await operations.runs.create(kind, model, request, earlier=earlier)

    run = document.value
    run_id = run["run_id"]
    status = run["status"]

    if status in ("PENDING", "RUNNING") and not requested.turn.background:
        raise build_unread_outcome(run_id, Unavailable("The run has not ended"))

    async def list_waiting() -> list[ApprovalRecord]:
        found_turn = await operations.sessions.find_turn(run_id)
        return await operations.approvals.list_pending(run_id, found_turn)

    waiting_approvals = list[ApprovalRecord]()
    if status == "PAUSED":
        waiting_approvals = await read_after_change(list_waiting, run_id)
    return _respond(requested, read_answer(run, waiting_approvals))


@contextlib.contextmanager
def _naming_tools(turn: Turn) -> Iterator[None]:
    """Name the tools of a request as OpenAI does, in errors about them."""
    try:
        yield
    except ValidationFailed as error:
        if turn.tools.tools and error.detail.startswith("client_tools"):
            detail = error.detail.removeprefix("client_")
            raise RefusedParameter(detail, "tools", "invalid_value") from None
        if turn.tools.tools and error.detail.startswith("tool_choice"):
            raise RefusedParameter(error.detail, "tool_choice", "invalid_value") from None
        raise


async def continue_turn(call: Call, requested: Requested) -> Response:
    """Give the results of a request to the run that waits for them, and respond with what follows.

    Raises:
        CallNotFound: a result is of no call that the caller sees, or of another model.
        RefusedParameter: the results are of several runs, or of another response.
        AnsweredCall: the result was given before, the call has expired, or the run has ended.
    """
    operations = call.operations
    turn = requested.turn
    results = turn.messages.results
    approvals = await _find_approvals(call, results)
    run_id, found_turn = await _find_run(call, requested, approvals)
    run = (await operations.sessions.read_turn(run_id, found_turn)).value

    # Each answered call counts as a leg, so that the answers to two requests have different ids.
    # The calls of this request count once: if it is repeated, they are decided already.
    result_ids = {result.approval_id for result in results}
    earlier_count = sum(
        approval["status"] != "pending" and approval["approval_id"] not in result_ids
        for approval in run["approvals"]
    )
    start = LegStart(1 + earlier_count + len(results), run["metrics"])

    rulings = [
        _build_ruling(result, approval) for result, approval in zip(results, approvals, strict=True)
    ]
    request = ContinueRequest(
        decisions=tuple(rulings), background=turn.background, idempotency_key=requested.key
    )

    try:
        continued = await operations.runs.begin_continuation(
            found_turn.kind, found_turn.component_id, run_id, request
        )
    except Conflict as conflict:
        raise AnsweredCall(conflict.detail) from None

    if continued is not None and turn.background and not requested.is_stream:
        answer = read_answer(run)._replace(text="", end=None, leg=start.leg)
        return _respond(requested, answer)

    if continued is None:
        # The run waits for the results of further calls.
        events = _announce_pause(run_id, found_turn, read_answer(run).created_at)
    else:
        if continued.after == requests.BEFORE_FIRST_EVENT:
            # A repeated request: the run has continued with the results before.
            start = start._replace(metrics=None, approval_id=results[0].approval_id)
        events = operations.runs.follow_continuation(continued)
        if not _outlives_its_client(call, requested):
            events = _cancel_when_left(call, run_id, found_turn, events)

    expanded_events = _expand_pauses(call, events)
    if requested.is_stream:
        return await _stream(call, requested, expanded_events, start)

    async with cancelling_on_disconnect(call.receive), contextlib.aclosing(expanded_events):
        first = await anext(expanded_events)
        answer = await RunEvents(first[0], start).collect(first, expanded_events)
    return _respond(requested, answer)


def _outlives_its_client(call: Call, requested: Requested) -> bool:
    """Return True if the run continues when its client disconnects."""
    if requested.turn.background:
        return True
    # The client can repeat the request and get the same run.
    if requested.key is not None:
        return True
    return call.caller.app_state.settings.server.on_disconnect == "detach"


async def _find_approvals(call: Call, results: Sequence[CallResult]) -> list[ApprovalRecord]:
    """Return the approvals of the results of a request; CallNotFound if the caller sees none."""
    approvals = list[ApprovalRecord]()
    for result in results:
        try:
            approvals.append(await call.operations.approvals.find_asked(result.approval_id))
        except NotFound:
            raise CallNotFound(result.at) from None
    return approvals


async def _find_run(
    call: Call, requested: Requested, approvals: Sequence[ApprovalRecord]
) -> tuple[str, FoundTurn]:
    """Return the run of the approvals of a request; for errors see `continue_turn`."""
    turn = requested.turn
    operations = call.operations
    results = turn.messages.results

    run_ids = {approval["root_run_id"] for approval in approvals}
    if len(run_ids) > 1:
        raise RefusedParameter(
            "The results are of calls of several runs: send those of one", results[0].at
        )

    (run_id,) = run_ids

    try:
        found_turn = await operations.sessions.find_turn(run_id)
    except NotFound:
        raise CallNotFound(results[0].at) from None

    if (found_turn.kind, found_turn.component_id) != (requested.kind, requested.model):
        raise CallNotFound(results[0].at)

    if turn.previous is not None and read_leg_id(RESPONSE_ID, turn.previous) != run_id:
        raise RefusedParameter(
            "The results are not those of the calls of this response", "previous_response_id"
        )

    return run_id, found_turn


def _build_ruling(result: CallResult, approval: ApprovalRecord) -> Ruling:
    # The client sends no hash of the arguments that its user has seen. The hash of the approval
    # will do, because an approval never changes. A decided approval has it, too: without it, a
    # repeated request would differ from the first one, and its idempotency key would be refused.
    if result.result is not None:
        return build_ruling(approval, "complete", result.result)
    verb: Verb = "approve" if result.is_approved else "reject"
    return build_ruling(approval, verb, note=result.note)


async def _announce_pause(run_id: str, found_turn: FoundTurn, created_at: int) -> Portions:
    """Yield the event of a pause for a run that waits for further results."""
    name = "TeamRunPaused" if found_turn.kind == "team" else "RunPaused"
    data = {
        "event": name,
        "run_id": run_id,
        "session_id": found_turn.session_id,
        "created_at": created_at,
        "approvals": [],
    }
    yield [requests.StreamEvent(0, name, orjson.dumps(data))]


async def _cancel_when_left(
    call: Call, run_id: str, found_turn: FoundTurn, events: Portions
) -> Portions:
    """Yield the events of a leg, and cancel its run if they are closed before their end."""
    is_settled = False
    async with contextlib.aclosing(events):
        try:
            async for portion in events:
                is_settled = is_settled or any(_is_settled(event, run_id) for event in portion)
                yield portion
            is_settled = True
        finally:
            if not is_settled:
                request = requests.CancelRequest(found_turn.session_id, reason=CLIENT_DISCONNECTED)
                with contextlib.suppress(AgentctlError):
                    await call.operations.runs.cancel(
                        found_turn.kind, found_turn.component_id, run_id, request
                    )


def _is_settled(event: requests.StreamEvent, run_id: str) -> bool:
    if find_event_kind(event.name) not in _SETTLED:
        return False
    return parse_event(event.name, event.data).run_id == run_id


async def _expand_pauses(call: Call, events: Portions) -> Portions:
    """Yield the events of a run; the event of its pause names the approvals of its members too."""
    async with contextlib.aclosing(events):
        async for portion in events:
            expanded_portion = list[requests.StreamEvent]()
            for event in portion:
                if find_event_kind(event.name) is EventKind.PAUSED:
                    event = await _expand(call, event)
                expanded_portion.append(event)
            yield expanded_portion


async def _expand(call: Call, event: requests.StreamEvent) -> requests.StreamEvent:
    """Return the event of a pause with all approvals and counters of the leg; of a member as is."""
    data = parse_event(event.name, event.data).data
    run_id = data["run_id"]
    operations = call.operations

    async def read_leg() -> dict[str, Any]:
        found_turn = await operations.sessions.find_turn(run_id)
        run = (await operations.sessions.read_turn(run_id, found_turn)).value
        return {
            "approvals": await operations.approvals.list_pending(run_id, found_turn),
            "metrics": run["metrics"],
        }

    try:
        leg = await read_after_change(read_leg, run_id)
    except NotFound:
        # A member is no turn of a session.
        return event
    return requests.StreamEvent(event.seq, event.name, orjson.dumps({**data, **leg}))


async def _stream(
    call: Call, requested: Requested, events: Portions, start: LegStart
) -> EventStreamResponse[requests.StreamEvent]:
    first = await wait_for_first_events(call.receive, events)
    run_events = RunEvents(first[0], start)
    add_log_context(session_id=run_events.session_id, run_id=run_events.run_id)
    headers = _build_headers(requested, run_events.session_id, run_events.run_id)
    return EventStreamResponse(first, events, requested.turn.build_encoder(run_events), headers)


def _respond(requested: Requested, answer: Answer) -> Response:
    headers = _build_headers(requested, answer.session_id, answer.run_id)
    body = requested.turn.build(answer)
    if body is not None:
        return json_response(body, headers=headers)

    assert answer.end is not None
    error = describe_end(answer.end, requested.turn.paused_code)
    return build_end_response(error, answer.end.status, headers)


def _build_headers(requested: Requested, session_id: str, run_id: str) -> dict[str, str]:
    return {SESSION_HEADER: session_id, RUN_HEADER: run_id, **requested.headers}
