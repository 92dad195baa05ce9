"""A request of a page, the checks of its fields, and the run that its answers continue.

A page sends its whole conversation, which is not trusted: only its newest message is read, and the
session has the history. Fields that are not known are ignored, because clients send their own; a
field that is read and has another type is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import orjson

from agentctl.errors import Conflict, FourEyes, NotFound, ValidationFailed
from agentctl.interface.requests import MAXIMUM_CLIENT_TOOLS, EarlierMessage
from agentctl.interface.requests.approvals import Ruling, build_ruling
from agentctl.records.approvals import MAXIMUM_NOTE_LENGTH, VERBS, ApprovalRecord
from agentctl.records.text import check_json, check_text, is_session_id
from agentctl.server.given_files import GivenFile

MAXIMUM_MESSAGES = 2_048
"""Maximum number of messages in a request."""

_FREE_FORM = ("state", "forwardedProps", "dependencies")
"""Fields whose values are stored, or given to code, unchanged."""

_TYPE_NAMES: dict[type, str] = {dict: "an object", list: "an array", str: "a text"}


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """The answer to one approval."""

    at: str
    """Its place in the body, for errors."""

    approval_id: str

    payload: Any
    """The answer to a question; else an object with `approved`, or with `outcome` for a call whose
    server died, and with the further members of a decision."""

    is_cancelled: bool = False
    """True if the user has closed the question without an answer."""

    arguments_hash: object = None
    """The hash of the call that the user has seen, or None."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result, or the error, of a call that the page made, or of a question that it asked."""

    call_id: str
    content: Any
    error: str | None


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request."""

    thread_id: str
    """The id of the session."""

    message: str | None
    """The newest message of the user, if it is the last message; else None."""

    results: Sequence[ToolResult]
    """The results of calls after it."""

    answers: Sequence[PageAnswer]
    """The answers to approvals of a paused run."""

    tools: list[dict[str, Any]] | None
    """The tools of the page, whose schemas are not checked yet; None without tools."""

    dependencies: dict[str, Any] | None
    """Values for the code of tools, which no model sees."""

    context: Sequence[EarlierMessage] = ()
    """Messages before `message` that are not stored."""

    state: dict[str, Any] | None = None
    """The top-level keys of the session's state; None for no change."""

    files: Sequence[GivenFile] = ()
    """The files of `message`."""

    @property
    def continues(self) -> bool:
        """True if the request continues a paused run."""
        if self.answers:
            return True
        return self.message is None and bool(self.results)


def read_thread_id(body: Mapping[str, Any], name: str) -> str:
    """Return the id of the conversation, which is also the id of its session."""
    thread_id: str = check_value(body.get(name), str, name)
    if not is_session_id(thread_id):
        raise ValidationFailed(
            f"{name} must be 1 to 128 characters of A-Z, a-z, 0-9 and . _ ~ @ -, but not . or .."
        )
    return thread_id


def read_tools(entries: Sequence[Any]) -> list[dict[str, Any]] | None:
    """Return the tools of a page, without the members that only its client knows."""
    tools = []
    for index, entry in enumerate(read_list({"tools": entries}, "tools", MAXIMUM_CLIENT_TOOLS)):
        tool = check_value(entry, dict, f"tools[{index}]")
        tools.append({name: tool.get(name) for name in ("name", "description", "parameters")})
    return tools or None


def read_text(content: object, at: str) -> str:
    """Return the text of a message: a text, or an array of parts, which have to be texts."""
    if isinstance(content, str):
        return check_text(at, content)

    texts = []
    for index, part in enumerate(check_value(content, list, at)):
        place = f"{at}[{index}]"
        kind = check_value(part, dict, place).get("type")
        if kind != "text":
            raise ValidationFailed(f"{place} is not supported: messages are text")
        texts.append(check_value(part.get("text"), str, f"{place}.text"))
    return "".join(texts)


def read_list(body: Mapping[str, Any], name: str, limit: int) -> Sequence[Any]:
    """Return an array with at most `limit` entries; empty if the field is missing."""
    entries: Sequence[Any] = check_value(body.get(name) or [], list, name)
    if len(entries) > limit:
        raise ValidationFailed(f"{name} must have at most {limit} entries")
    return entries


def read_object(body: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return an object; None if the field is missing or empty."""
    if body.get(name) is None:
        return None
    return check_value(body[name], dict, name) or None


def check_value(value: Any, kind: type, at: str) -> Any:
    """Return a value that has a JSON type and can be stored; else ValidationFailed."""
    if not isinstance(value, kind):
        raise ValidationFailed(f"{at} must be {_TYPE_NAMES[kind]}")
    if isinstance(value, str):
        check_text(at, value)
    elif at in _FREE_FORM:
        check_json(at, value)
    return value


AskedApproval = Mapping[str, Any]
"""An approval that a run waits for: its record, or its part, with `run_id`, in a pause event."""

_QUESTIONS = {
    "outcome": "The server died during the call of {}. What happened?",
    "input": "{} asks for an answer",
    "approval": "May {} be called?",
    "external": "May {} be called?",
}


def build_call_id(run_id: str, tool_call_id: str) -> str:
    """Return the id of a tool call in streams: models repeat their ids, so it names the run."""
    return f"{run_id}:{tool_call_id}"


def build_question(approval: AskedApproval) -> str:
    """Return the question of an approval, with a note if another person has to decide."""
    question: str | None = approval["question"]
    if not question:
        question = _QUESTIONS[approval["kind"]].format(approval["tool_name"])
    if approval["policy"] == "other":
        return f"{question} (an approver decides; it cannot be answered here)"
    return question


def is_interrupt(approval: AskedApproval) -> bool:
    """Return True for a question to the user; False for a call of a tool of the page."""
    return bool(approval["kind"] != "external")


def check_no_interrupt(waiting_approvals: Iterable[ApprovalRecord]) -> None:
    """Refuse a new run in a thread with a run that waits for answers (Conflict)."""
    ids = [approval["approval_id"] for approval in waiting_approvals if is_interrupt(approval)]
    if ids:
        raise Conflict(
            f"A run of this conversation waits for answers to its approvals: {', '.join(ids)}."
            " Answer each of them, or cancel the run"
        )


class ResumedRun:
    """The paused run that a request continues.

    Args:
        known_approvals: the pending approvals of the thread, and those that the request names.

    Raises:
        NotFound: no visible run of the thread has such an interrupt, or waits for such a result.
        FourEyes: an interrupt needs another person, who has not decided yet.
        ValidationFailed: an answer is not valid or missing, or the answers are of several runs.
    """

    def __init__(
        self, page_request: PageRequest, known_approvals: Sequence[ApprovalRecord]
    ) -> None:
        self.answered_approvals = list[ApprovalRecord]()
        """The approvals that the request answers."""

        self.decisions = list[Ruling]()
        """The rulings of the user of the page."""

        self.decided = set[str]()
        """Ids of answered approvals of the policy `other`: another person has decided them."""

        self._take_answers(page_request.answers, known_approvals)
        self._take_results(page_request.results, known_approvals)

        run_ids = {approval["root_run_id"] for approval in self.answered_approvals}
        if not run_ids:
            raise NotFound("No run of this conversation waits for these results of tool calls")
        if len(run_ids) > 1:
            raise ValidationFailed("The request answers several runs: answer one at a time")
        (self.run_id,) = run_ids
        self._check_complete(known_approvals)

        self.key = self._build_key()
        """The idempotency key of the decisions: the same for a request that is repeated."""

    def _take_answers(
        self, answers: Sequence[PageAnswer], known_approvals: Sequence[ApprovalRecord]
    ) -> None:
        by_id = {approval["approval_id"]: approval for approval in known_approvals}
        answered_ids = set[str]()
        for answer in answers:
            approval = by_id.get(answer.approval_id)
            if approval is None or not is_interrupt(approval):
                raise NotFound(f"{answer.at}: no run of this conversation has this approval")
            if answer.approval_id in answered_ids:
                raise ValidationFailed(f"{answer.at} answers the same approval again")

            answered_ids.add(answer.approval_id)
            self.answered_approvals.append(approval)
            self._take_answer(approval, answer)

    def _take_answer(self, approval: ApprovalRecord, answer: PageAnswer) -> None:
        if approval["policy"] != "other":
            self.decisions.append(_build_decision(approval, answer))
        elif approval["status"] == "pending":
            raise FourEyes(
                f"{answer.at}: this approval needs the decision of an approver and cannot be"
                " answered here: send the request again when it is decided"
            )
        else:
            self.decided.add(approval["approval_id"])

    def _take_results(
        self, results: Sequence[ToolResult], known_approvals: Sequence[ApprovalRecord]
    ) -> None:
        """Take the results of open calls. A page sends the results of earlier calls again."""
        open_calls = dict[str, ApprovalRecord]()
        for approval in known_approvals:
            if approval["kind"] in ("external", "input") and approval["status"] == "pending":
                call_id = build_call_id(approval["run_id"], approval["tool_call_id"])
                open_calls[call_id] = approval

        for result in results:
            if result.call_id in open_calls:
                approval = open_calls[result.call_id]
                self.answered_approvals.append(approval)
                self.decisions.append(_build_completion(approval, result))

    def _check_complete(self, known_approvals: Sequence[ApprovalRecord]) -> None:
        """Check that the request answers all questions of the run to its user."""
        answered_ids = {approval["approval_id"] for approval in self.answered_approvals}
        missing_ids = list[str]()
        for approval in known_approvals:
            if approval["root_run_id"] != self.run_id or not is_interrupt(approval):
                continue
            is_open = approval["policy"] == "user" and approval["status"] == "pending"
            if is_open and approval["approval_id"] not in answered_ids:
                missing_ids.append(approval["approval_id"])

        if missing_ids:
            missing = ", ".join(missing_ids)
            raise ValidationFailed(
                f"Answer every approval of the run in one request; missing: {missing}"
            )

    def _build_key(self) -> str:
        # Keys are stored: the members stay in this order.
        values: list[object] = [self.run_id]
        for decision in self.decisions:
            *members, approval_id, _ = astuple(decision)
            values.append([approval_id, *members])
        return f"page:{hashlib.sha256(orjson.dumps(values)).hexdigest()}"


def _build_decision(approval: ApprovalRecord, answer: PageAnswer) -> Ruling:
    """Return the ruling of an answer.

    It has the hash of the call that the user has seen on the page. Without a hash the decision
    counts for the call that is stored.
    """
    payload = answer.payload
    if answer.is_cancelled and approval["kind"] != "outcome":
        return build_ruling(approval, "reject")
    if approval["kind"] == "input":
        return build_ruling(approval, "answer", payload)
    if approval["kind"] == "approval" and isinstance(payload, bool):
        payload = {"approved": payload}
    if not isinstance(payload, dict):
        raise ValidationFailed(f"{answer.at}.payload must match the responseSchema: an object")

    arguments_hash = payload.get("argumentsHash", answer.arguments_hash)
    note = payload.get("note")
    edited_arguments = payload.get("editedArgs")
    _check_members(answer.at, arguments_hash, note, edited_arguments)
    if arguments_hash is None:
        arguments_hash = approval["arguments_hash"]

    verb: Any
    if approval["kind"] == "outcome":
        verb = payload.get("outcome")
        if verb not in VERBS["outcome"]:
            raise ValidationFailed(f"{answer.at}.payload.outcome must be complete, fail or retry")
        ruling = build_ruling(approval, verb, payload.get("result"), note)
    else:
        is_approved = payload.get("approved")
        if not isinstance(is_approved, bool):
            raise ValidationFailed(f"{answer.at}.payload.approved must be true or false")
        verb = "approve" if is_approved else "reject"
        ruling = build_ruling(approval, verb, edited_arguments, note)
    return replace(ruling, arguments_hash=arguments_hash)


def _check_members(at: str, arguments_hash: object, note: object, edited: object) -> None:
    for name, member in (("argumentsHash", arguments_hash), ("note", note)):
        if not isinstance(member, str | None):
            raise ValidationFailed(f"{at}.payload.{name} must be a text")
    if not isinstance(edited, dict | None):
        raise ValidationFailed(f"{at}.payload.editedArgs must be an object")


def _build_completion(approval: ApprovalRecord, result: ToolResult) -> Ruling:
    """Return the ruling of a result: of a call of a tool of the page, or of an answer."""
    is_question = approval["kind"] == "input"
    if result.error is None:
        return build_ruling(approval, "answer" if is_question else "complete", result.content)

    note = (result.error or str(result.content or ""))[:MAXIMUM_NOTE_LENGTH] or None
    return build_ruling(approval, "reject" if is_question else "fail", note=note)
