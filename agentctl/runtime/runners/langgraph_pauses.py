"""Interrupts of LangGraph as approvals, and the answers with which a graph continues.

Both forms of langchain's HumanInTheLoopMiddleware are approvals of calls: one interrupt with
`action_requests` and `review_configs`, or one with `type: "tool_approval"` for each call. Any other
interrupt is a question (docs/agents.md "LangGraph").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson
from langgraph.pregel import Pregel

from agentctl.records.text import replace_unstorable
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.json_values import NotSerializable, to_json_value
from agentctl.runtime.pauses import Ask, DecidedCall, Leg, to_text
from agentctl.runtime.runners.library_runner import DecidedCalls

ALL_DECISIONS = ("approve", "edit", "reject", "respond")

MAXIMUM_QUESTION_LENGTH = 10_000
"""Characters of a question; a longer one is cut."""


@dataclass(slots=True)
class GraphAsk:
    """One thing that an interrupt asks for."""

    key: str
    """The id of the call, or of the question."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)

    allowed: list[str] = field(default_factory=list)
    """The decisions that the graph takes; empty for a question of another form."""

    question: str | None = None
    schema: dict[str, Any] | None = None

    @property
    def is_call(self) -> bool:
        return "approve" in self.allowed or "edit" in self.allowed

    def to_approval(self, *, idempotent: bool) -> Ask:
        """Return the approval that the pause creates.

        Arguments that the graph does not let anyone edit have a schema that only they match.
        """
        if not self.is_call:
            return Ask("input", self.key, self.name, question=self.question, schema=self.schema)

        schema = self.schema if "edit" in self.allowed else {"const": self.arguments}

        return Ask(
            "approval",
            self.key,
            self.name,
            self.arguments,
            question=self.question,
            schema=schema,
            idempotent=idempotent,
        )


@dataclass(slots=True)
class OpenInterrupt:
    """An interrupt that waits, and what it asks for."""

    id: str
    asks: list[GraphAsk]

    is_list: bool = False
    """True if its answer is a list of decisions, one for each ask."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, interrupt: Mapping[str, Any]) -> OpenInterrupt:
        """Return the interrupt of a stored state."""
        return cls(
            interrupt["id"], [GraphAsk(**ask) for ask in interrupt["asks"]], interrupt["is_list"]
        )


def list_tools(graph: Any) -> Iterator[Any]:
    """Yield the tools of a graph and of its subgraphs."""
    for node in graph.nodes.values():
        for subgraph in node.subgraphs:
            yield from list_tools(subgraph)
        if isinstance(node.bound, Pregel):
            yield from list_tools(node.bound)
        yield from (getattr(node.bound, "tools_by_name", None) or {}).values()


def read_tool_schemas(graph: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names of the tools of a graph and of its subgraphs, with their JSON Schemas."""
    for tool in list_tools(graph):
        schema = tool.tool_call_schema
        try:
            yield tool.name, schema if isinstance(schema, dict) else schema.model_json_schema()
        except Exception:
            # A schema of another form, or with a type without JSON: any object is taken.
            continue


def read_interrupt(
    interrupt: Any,
    calls: Sequence[Mapping[str, Any]],
    schemas: Mapping[str, dict[str, Any]],
    used_keys: Iterable[str],
) -> OpenInterrupt:
    """Return what an interrupt asks for.

    Args:
        calls: the calls of the newest answer, of which an approval asks for some.
        schemas: JSON Schemas of the arguments of the tools, by their names.
        known: keys that earlier pauses of the run have used.
    """
    value = interrupt.value
    if isinstance(value, Mapping):
        if asks := _read_batch(value, calls, schemas):
            return OpenInterrupt(interrupt.id, asks, is_list=True)
        if ask := _read_call(value, interrupt.response_schema):
            return OpenInterrupt(interrupt.id, [ask])

    key = interrupt.id
    number = 1

    while key in used_keys:
        key = f"{interrupt.id}:{number + 1}"
        number = number + 1

    schema = interrupt.response_schema

    ask = GraphAsk(
        key,
        "interrupt",
        question=_format_question(value),
        schema=schema if isinstance(schema, dict) else None,
    )
    return OpenInterrupt(interrupt.id, [ask])


def _read_batch(
    value: Mapping[str, Any],
    calls: Sequence[Mapping[str, Any]],
    schemas: Mapping[str, dict[str, Any]],
) -> list[GraphAsk] | None:
    requests = value.get("action_requests")
    reviews = value.get("review_configs")
    if not (isinstance(requests, list) and isinstance(reviews, list) and requests):
        return None

    if len(requests) != len(reviews):
        return None

    unmatched_calls = list(calls)
    asks = []

    for request, review in zip(requests, reviews, strict=True):
        name = request.get("name")
        arguments = request.get("args")

        matching = (
            call for call in unmatched_calls if (call["name"], call["args"]) == (name, arguments)
        )
        call = next(matching, None)
        if call is None:
            return None
        unmatched_calls.remove(call)

        asks.append(
            _build_ask(
                call["id"] or "",
                str(name),
                arguments,
                list(review.get("allowed_decisions") or ALL_DECISIONS),
                request.get("description"),
                schemas.get(str(name)),
            )
        )

    return asks


def _read_call(value: Mapping[str, Any], schema: Any) -> GraphAsk | None:
    call_id, name, arguments = (value.get(key) for key in ("tool_call_id", "name", "args"))
    if value.get("type") != "tool_approval" or not isinstance(arguments, Mapping):
        return None
    if not (isinstance(call_id, str) and isinstance(name, str)):
        return None
    decisions = dict(_read_decisions(schema)) if isinstance(schema, dict) else None
    allowed = list(ALL_DECISIONS if decisions is None else decisions)
    edited = (decisions or {}).get("edit")
    return _build_ask(call_id, name, arguments, allowed, value.get("description"), edited)


def _build_ask(
    key: str,
    name: str,
    arguments: Any,
    allowed: list[str],
    description: object,
    schema: dict[str, Any] | None,
) -> GraphAsk:
    try:
        values = to_json_value(arguments, 2**31)
    except NotSerializable as error:
        raise ExecutionError(
            "AGENT_FAILED", f"The arguments of the call of {name} have no JSON form"
        ) from error

    question = _format_question(description) if description else None
    ask = GraphAsk(key, name, values, allowed, question, schema)

    if not ask.is_call:
        # Only a person answers: the tool is never executed.
        return GraphAsk(key, name, {}, allowed, question or name, None)

    return ask


def _read_decisions(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield the allowed decisions of a response schema, and the schema of edited arguments."""
    definitions = schema.get("$defs", {})

    def resolve(part: Any) -> dict[str, Any]:
        reference = part.get("$ref", "") if isinstance(part, dict) else ""
        definition = definitions.get(reference.rpartition("/")[2], {}) if reference else part
        return definition if isinstance(definition, dict) else {}

    for branch in schema.get("oneOf") or schema.get("anyOf") or [schema]:
        properties = resolve(branch).get("properties", {})
        decision = properties.get("type", {}).get("const")

        if decision == "edit":
            action = resolve(properties.get("edited_action")).get("properties", {})
            arguments = resolve(action.get("args"))
            if b'"$ref"' in orjson.dumps(arguments):
                arguments = {**arguments, "$defs": definitions}
            yield decision, arguments or None
        elif isinstance(decision, str):
            yield decision, None


def _format_question(value: object) -> str:
    if not isinstance(value, str):
        try:
            value = orjson.dumps(to_json_value(value, 2**31)).decode()
        except NotSerializable:
            value = f"a {type(value).__name__}"
    return replace_unstorable(value[:MAXIMUM_QUESTION_LENGTH])


def build_answers(
    interrupts: Iterable[OpenInterrupt], leg: Leg, calls: DecidedCalls, *, takes_results: bool
) -> dict[str, Any]:
    """Return the answers with which a graph continues, by the ids of the interrupts.

    Args:
        calls: gets the approved and the rejected calls, by their ids.
        takes_results: False if the graph keeps the answer of an earlier attempt, so that a call
            that was made then cannot be answered with its result.

    Raises:
        ExecutionError: the graph cannot take a decision. Nothing is called then.
    """
    answers: dict[str, Any] = {}
    for interrupt in interrupts:
        values = [_answer(ask, leg, calls, takes_results) for ask in interrupt.asks]
        answers[interrupt.id] = {"decisions": values} if interrupt.is_list else values[0]
    return answers


def _answer(ask: GraphAsk, leg: Leg, calls: DecidedCalls, takes_results: bool) -> Any:
    decision = leg.find(ask.key)
    if decision is None or decision.execution in ("executing", "unknown"):
        raise ExecutionError("AGENT_FAILED", f"The call of {ask.name} has no known outcome")

    if not ask.is_call:
        if decision.status == "answered" and not ask.allowed:
            return decision.answer

        if decision.status == "answered":
            return {"type": "respond", "message": to_text(decision.answer)}

        if "reject" in ask.allowed:
            return _reject(ask, decision, calls)

        outcome = "not answered in time" if decision.status == "expired" else "rejected"
        raise ExecutionError("AGENT_FAILED", f"The question of the graph was {outcome}")

    if decision.execution is not None:
        if not takes_results or "respond" not in ask.allowed:
            raise ExecutionError(
                "AGENT_FAILED",
                f"The call of {ask.name} was made before its server died, and the graph cannot take"
                " its result: it is not made again",
            )
        return {"type": "respond", "message": to_text(decision.result)}

    if not decision.is_approved:
        return _reject(ask, decision, calls)

    calls.approved[ask.key] = decision

    if decision.is_edited or "approve" not in ask.allowed:
        action = {"name": ask.name, "args": decision.arguments}
        return {"type": "edit", "edited_action": action}

    return {"type": "approve"}


def _reject(ask: GraphAsk, decision: DecidedCall, calls: DecidedCalls) -> Any:
    if "reject" not in ask.allowed:
        raise ExecutionError(
            "AGENT_FAILED",
            f"The call of {ask.name} was rejected, and the graph does not take a rejection",
        )
    calls.settled[ask.key] = decision.refusal, True
    return {"type": "reject", "message": decision.note or decision.refusal}
