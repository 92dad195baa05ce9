"""Questions for the user of a client (elicitation in form mode) about the approvals of a run.

A question has an id with everything that its answer needs, so that any process can take it: the
run, the approval, and the hash of the call that was shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from agentctl.errors import NotFound
from agentctl.interface.requests.approvals import Ruling, build_ruling
from agentctl.records.approvals import VERBS
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.strict import parse_json

MAXIMUM_TEXT = 20_000
"""Characters of a question: a call is shown whole, or not at all."""

_PRIMITIVES = frozenset({"string", "number", "integer", "boolean"})
_TEXT = {"type": "string"}
_NOTE = {**_TEXT, "title": "Note", "description": "A remark for the agent", "maxLength": 500}

_DECISION = {**_TEXT, "title": "Decision", "enum": [*VERBS["approval"]]}

_NOTES = {
    "decline": "The user declined",
    "cancel": "The user closed the question without an answer",
}

_FIELD_KEYS = frozenset(
    {"title", "description", "enum", "minLength", "maxLength", "minimum", "maximum", "default"}
)


class Question(NamedTuple):
    """A question, with the parameters of `elicitation/create`."""

    id: str
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PausedRun:
    """The run of a call that waits for decisions."""

    kind: ComponentKind
    component_id: str
    run_id: str

    def build_questions(self, approvals: Iterable[Mapping[str, Any]]) -> list[Question] | None:
        """Return a question for each approval.

        None without approvals, or if the user may not or cannot decide about one of them: then the
        answers about the rest would not continue the run.
        """
        questions: list[Question] = []
        for approval in approvals:
            question = self._build_question(approval)
            if question is None:
                return None
            questions.append(question)
        return questions or None

    def _build_question(self, approval: Mapping[str, Any]) -> Question | None:
        if approval["policy"] != "user":
            return None

        component = f"The {self.kind} {self.component_id}"
        tool = approval["tool_name"]
        question = approval["question"]
        arguments = json.dumps(approval["arguments"], ensure_ascii=False)

        match approval["kind"]:
            case "approval":
                form = "approval"
                schema = _build_form({"decision": _DECISION, "note": _NOTE}, "decision")
                text = f"{component} wants to call {tool} with {arguments}"
                if question:
                    text += f"\n{question}"

            case "input":
                form, schema = _build_answer_form(approval["schema"])
                text = question or f"{component} needs an answer for {tool}"

            case "external":
                form = "external"
                schema = _build_form({"result": {**_TEXT, "title": "Result"}})
                text = f"Execute {tool} with {arguments}, and enter its result"

            case _:
                return None

        if len(text) > MAXIMUM_TEXT:
            return None

        names = (self.kind, self.component_id, self.run_id, approval["approval_id"])
        question_id = "/".join((*names, form, approval["arguments_hash"]))
        return Question(question_id, {"message": text, "requestedSchema": schema})


def read_answer(question_id: str, answer: Mapping[str, Any]) -> tuple[PausedRun, Ruling]:
    """Return the run and the ruling of an answer. If the user gave none, it is a rejection.

    Args:
        answer: an `ElicitResult` of the protocol, with `action` and `content`.

    Raises:
        NotFound: the id is not that of a question.
    """
    kind, _, rest = question_id.partition("/")
    names = rest.split("/")
    if kind not in KINDS or len(names) != 5:
        raise NotFound("There is no such question")

    component_id, run_id, approval_id, form, arguments_hash = names
    run = PausedRun(kind, component_id, run_id)
    rule = partial(build_ruling, {"approval_id": approval_id, "arguments_hash": arguments_hash})

    content = answer.get("content")
    if answer.get("action") != "accept" or not isinstance(content, Mapping):
        note = _NOTES.get(str(answer.get("action")), _NOTES["decline"])
        return run, rule("fail" if form == "external" else "reject", note=note)

    match form:
        case "approval":
            is_approved = content.get("decision") == "approve"
            note = str(content.get("note") or "")
            return run, rule("approve" if is_approved else "reject", note=note or None)
        case "external":
            return run, rule("complete", content.get("result"))
        case "object":
            return run, rule("answer", dict(content))
        case "json":
            return run, rule("answer", _parse_answer(content.get("answer")))
        case _:
            return run, rule("answer", content.get("answer"))


def reject(question_id: str, note: str) -> tuple[PausedRun, Ruling]:
    """Return the run, and the ruling about a question whose answer is not valid."""
    run, ruling = read_answer(question_id, {"action": "decline"})
    return run, replace(ruling, note=note)


def _parse_answer(text: Any) -> Any:
    try:
        return parse_json(text)
    except (TypeError, ValueError):
        # The check of the answer against its schema names the place.
        return text


def _build_form(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    """Return the schema of a form; without `required` all of its fields are required."""
    names = list(required or properties)
    return {"type": "object", "properties": dict(properties), "required": names}


def _build_answer_form(schema: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """Return the kind and the schema of the form for an answer.

    A form has values without structure only. Another value is a text: as it is without a schema,
    else as JSON.
    """
    if schema is None:
        return "answer", _build_form({"answer": {**_TEXT, "title": "Answer"}})

    field = _build_field(schema)
    if field is not None:
        return "answer", _build_form({"answer": {"title": "Answer", **field}})

    properties = schema.get("properties")
    if isinstance(properties, Mapping) and properties:
        fields = {name: _build_field(declared) for name, declared in properties.items()}
        if all(field is not None for field in fields.values()):
            required = [name for name in schema.get("required", ()) if name in fields]
            return "object", {"type": "object", "properties": fields, "required": required}

    text = f"JSON for the schema {json.dumps(schema)}"
    return "json", _build_form({"answer": {**_TEXT, "title": "Answer", "description": text}})


def _build_field(schema: Any) -> dict[str, Any] | None:
    """Return the field of a form for a schema; None for a value with structure."""
    if not isinstance(schema, Mapping):
        return None

    value_type = schema.get("type")
    choices = schema.get("enum")
    if choices is not None:
        if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
            return None
        value_type = value_type or "string"

    if not isinstance(value_type, str) or value_type not in _PRIMITIVES:
        return None

    known_keywords = {name: schema[name] for name in schema if name in _FIELD_KEYS}
    return {"type": value_type, **known_keywords}
