"""A request of a page, the checks of its fields, and the run that its answers continue.

A page sends its whole conversation, which is not trusted: only its newest message is read, and the
history is that of the session. Fields that are not known are ignored, because clients send their
own; a field that is read and has another type is refused.
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
    """The answer to one approval, or none; `at` is its place in the body.

    `payload` has `approved`, for a call in doubt `outcome`, and what else a decision can have.
    """

    at: str
    approval_id: str
    payload: Any
    is_cancelled: bool = False
    arguments_hash: object = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result, or the error, of a call that the page made, or of a question that it asked."""

    call_id: str
    content: Any
    error: str | None


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request.

    Attributes:
        thread_id: id of the session.
        message: the newest message of the user, if it is the last one; else None.
        results: the results of calls after it.
        tools: the tools of the page, whose schemas are not checked yet; None without any.
        context: messages before `message` that are not stored.
        state: the top-level keys of the session's state; None for no change.
        files: the files of `message`.
    """

    thread_id: str
    message: str | None
    results: Sequence[ToolResult]
    answers: Sequence[PageAnswer]
    tools: list[dict[str, Any]] | None
    dependencies: dict[str, Any] | None
    context: Sequence[EarlierMessage] = ()
    state: dict[str, Any] | None = None
    files: Sequence[GivenFile] = ()

    @property
    def continues(self) -> bool:
        """True if the request goes on with a paused run."""
        return bool(self.answers or (self.message is None and self.results))


def read_thread_id(given: Mapping[str, Any], name: str) -> str:
    """Return the id of the conversation, which is that of its session."""
    thread_id: str = check_value(given.get(name), str, name)
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


def read_list(given: Mapping[str, Any], name: str, limit: int) -> Sequence[Any]:
    """Return an array with at most `limit` entries; empty if the field is missing."""
    entries: Sequence[Any] = check_value(given.get(name) or [], list, name)
    if len(entries) > limit:
        raise ValidationFailed(f"{name} must have at most {limit} entries")
    return entries


def read_object(given: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return an object; None if the field is missing or empty."""
    value = given.get(name)
    return None if value is None else check_value(value, dict, name) or None


def check_value(value: Any, kind: type, at: str) -> Any:
    """Return a value that has a JSON type and can be stored; ValidationFailed for another one."""
    if not isinstance(value, kind):
        raise ValidationFailed(f"{at} must be {_TYPE_NAMES[kind]}")
    if isinstance(value, str):
        check_text(at, value)
    elif at in _FREE_FORM:
        check_json(at, value)
    return value


Asked = Mapping[str, Any]
"""An approval of a pause: of its event with the id of its run, or its record."""

_QUESTIONS = {
    "outcome": "The server died during the call of {}. What happened?",
    "input": "{} asks for an answer",
    "approval": "May {} be called?",
    "external": "May {} be called?",
}


def build_call_id(run_id: str, tool_call_id: str) -> str:
    """Return the id of a tool call in streams: models repeat their ids, so it names the run."""
    return f"{run_id}:{tool_call_id}"


def build_question(asked: Asked) -> str:
    """Return what the user is asked, and that someone else has to decide if so."""
    question = str(asked["question"] or _QUESTIONS[asked["kind"]].format(asked["tool_name"]))
    if asked["policy"] == "other":
        question += " (an approver decides; it cannot be answered here)"
    return question


def is_interrupt(asked: Asked) -> bool:
    """Return True unless it is a call of a tool of the page."""
    return bool(asked["kind"] != "external")


def check_no_interrupt(waiting: Iterable[ApprovalRecord]) -> None:
    """Refuse a new run in a thread in which a run waits for answers (Conflict)."""
    ids = [asked["approval_id"] for asked in waiting if is_interrupt(asked)]
    if ids:
        raise Conflict(
            f"A run of this conversation waits for answers to its approvals: {', '.join(ids)}."
            " Answer each of them, or cancel the run"
        )


class ResumedRun:
    """The paused run that a request goes on with.

    Args:
        known: the pending approvals of the thread, and those that the request names.

    Attributes:
        named: the approvals that the request answers.
        decided: ids of those of the policy `other`.
        key: names the decisions, for requests that are repeated.

    Raises:
        NotFound: no visible run of the thread has such an interrupt, or waits for such a result.
        FourEyes: an interrupt needs another person, who has not decided yet.
        ValidationFailed: an answer is not valid, or one is missing.
    """

    def __init__(self, given: PageRequest, known: Sequence[ApprovalRecord]) -> None:
        by_id = {asked["approval_id"]: asked for asked in known}
        self.named = named = list[ApprovalRecord]()
        self.decisions: list[Ruling] = []
        self.decided: set[str] = set()
        for answer in given.answers:
            asked = by_id.get(answer.approval_id)
            if asked is None or not is_interrupt(asked):
                raise NotFound(f"{answer.at}: no run of this conversation has this approval")
            if asked["approval_id"] in {each["approval_id"] for each in named}:
                raise ValidationFailed(f"{answer.at} answers the same approval again")
            named.append(asked)
            self._take_answer(asked, answer)
        open_calls = {
            build_call_id(asked["run_id"], asked["tool_call_id"]): asked
            for asked in known
            if asked["kind"] in ("external", "input") and asked["status"] == "pending"
        }
        for result in given.results:
            if result.call_id in open_calls:
                named.append(open_calls[result.call_id])
                self.decisions.append(_build_completion(named[-1], result))
        runs = {asked["root_run_id"] for asked in named}
        if not runs:
            raise NotFound("No run of this conversation waits for these results of tool calls")
        if len(runs) > 1:
            raise ValidationFailed("The request answers several runs: answer one at a time")
        (self.run_id,) = runs
        self._check_complete(named, known)
        said = ([named_id, *values] for *values, named_id, _ in map(astuple, self.decisions))
        values = [self.run_id, *said]
        self.key = f"page:{hashlib.sha256(orjson.dumps(values)).hexdigest()}"

    def _take_answer(self, asked: ApprovalRecord, answer: PageAnswer) -> None:
        if asked["policy"] != "other":
            self.decisions.append(_build_decision(asked, answer))
        elif asked["status"] == "pending":
            raise FourEyes(
                f"{answer.at}: this approval needs the decision of an approver and cannot be"
                " answered here: send the request again when it is decided"
            )
        else:
            self.decided.add(asked["approval_id"])

    def _check_complete(
        self, named: Sequence[ApprovalRecord], known: Sequence[ApprovalRecord]
    ) -> None:
        ids = {asked["approval_id"] for asked in named}
        missing = [
            asked["approval_id"]
            for asked in known
            if asked["root_run_id"] == self.run_id
            and (asked["policy"], asked["status"]) == ("user", "pending")
            and is_interrupt(asked)
            and asked["approval_id"] not in ids
        ]
        if missing:
            raise ValidationFailed(
                f"Answer every approval of the run in one request; missing: {', '.join(missing)}"
            )


def _build_decision(asked: ApprovalRecord, answer: PageAnswer) -> Ruling:
    """Return the ruling of an answer.

    The hash of the page is that of the call that its user has seen. Without one the decision counts
    for the call that is stored.
    """
    payload = answer.payload
    if answer.is_cancelled and asked["kind"] != "outcome":
        return build_ruling(asked, "reject")
    if asked["kind"] == "input":
        return build_ruling(asked, "answer", payload)
    if asked["kind"] == "approval" and isinstance(payload, bool):
        payload = {"approved": payload}
    if not isinstance(payload, dict):
        raise ValidationFailed(f"{answer.at}.payload must match the responseSchema: an object")
    seen = payload.get("argumentsHash", answer.arguments_hash)
    note = payload.get("note")
    edited = payload.get("editedArgs")
    _check_members(answer.at, seen, note, edited)

    shown = asked["arguments_hash"] if seen is None else seen
    if asked["kind"] == "outcome":
        verb: Any = payload.get("outcome")
        value = payload.get("result")
        if verb not in VERBS["outcome"]:
            raise ValidationFailed(f"{answer.at}.payload.outcome must be complete, fail or retry")
    else:
        verb = "approve" if payload.get("approved") is True else "reject"
        value = edited
        if not isinstance(payload.get("approved"), bool):
            raise ValidationFailed(f"{answer.at}.payload.approved must be true or false")
    return replace(build_ruling(asked, verb, value, note), arguments_hash=shown)


def _check_members(at: str, seen: object, note: object, edited: object) -> None:
    for name, member in (("argumentsHash", seen), ("note", note)):
        if not isinstance(member, str | None):
            raise ValidationFailed(f"{at}.payload.{name} must be a text")
    if not isinstance(edited, dict | None):
        raise ValidationFailed(f"{at}.payload.editedArgs must be an object")


def _build_completion(asked: ApprovalRecord, result: ToolResult) -> Ruling:
    is_question = asked["kind"] == "input"
    if result.error is None:
        return build_ruling(asked, "answer" if is_question else "complete", result.content)
    note = (result.error or str(result.content or ""))[:MAXIMUM_NOTE_LENGTH] or None
    return build_ruling(asked, "reject" if is_question else "fail", note=note)
