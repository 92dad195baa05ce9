"""The parts of a run of openai-agents: the run itself, and the members that it has called.

A handoff makes the other agent a member, whose text is that of the run; so does an agent that is
called as a tool, whose text is the result of the call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from agents import Agent, Usage
from agents.items import ItemHelpers
from agents.models import get_default_model

from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.models.access import current_access
from agentctl.runtime.models.calls import parse_arguments
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.library_members import LibraryMember, LibraryMembers
from agentctl.runtime.tracing import Span

_HANDOFF = "handoff-"

_FIELDS = frozenset({"action", "actions", "code", "input", "operation", "queries", "query"})
"""The fields of calls that are not calls of functions, as the record has them."""


class Part:
    """The run, or one of its members.

    Attributes:
        key: the key of the member; None for the run itself.
        is_called: True for an agent that was called as a tool.
        started: the ids of the calls whose starts were reported, also before a pause.
    """

    def __init__(self, run: HostedRun, key: str | None = None) -> None:
        self.run = run
        self.key = key
        self.is_called = key is not None and not key.startswith(_HANDOFF)
        self.started: set[str] = set(run.transcript.open_calls)
        self._span: Span | None = None
        self._known: tuple[Counter[int], int] | None = None

    def start_call(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> None:
        """Report the start of a call, unless it was reported."""
        if call_id not in self.started:
            self.started.add(call_id)
            self.run.start_call(call_id, name, arguments)

    def start_model_call(self, agent: Agent[Any]) -> None:
        model = get_default_model() if agent.model is None else agent.model
        self._end_known_call()
        if (access := current_access.get()) is not None:
            # A model of the configuration leaves the report of its call to this runner.
            self._known = access.open_calls, id(model)
            access.open_calls[id(model)] += 1
        self._span = self.run.start_model_call(getattr(model, "model", model))

    def mark_first_token(self) -> None:
        if self._span is not None:
            self._span.mark_first_token()

    def end_model_call(self, usage: Mapping[str, int]) -> None:
        span = self._span
        self._span = None
        self._end_known_call()
        if span is not None:
            self.run.end_model_call(span, usage)

    def fail_model_call(self) -> bool:
        """Report that the open call of a model has failed; return True if there was one."""
        self._end_known_call()
        if self._span is None:
            return False
        self.run.fail_model_call(self._span)
        return True

    def _end_known_call(self) -> None:
        if self._known is not None:
            calls, key = self._known
            calls[key] -= 1
            self._known = None


class RunParts:
    """The parts of one run in one leg.

    Attributes:
        current: the part that answers: the member after a handoff.
    """

    def __init__(self, run: HostedRun) -> None:
        self.root = self.current = Part(run)
        self._parts: dict[str, Part] = {}
        self._owners: dict[str, Part] = {}
        self._members = LibraryMembers(run)
        self._handoffs = 0
        self._counted: Counter[str] = Counter()

    async def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Continue with the parts of a pause."""
        self._handoffs = checkpoint["number"]
        self._counted = Counter(checkpoint["counted"])
        await self._members.restore(checkpoint["members"])

        for member in self._members.list_open():
            part = self._add(member)
            self._owners |= dict.fromkeys(part.run.transcript.open_calls, part)

        self.current = self._parts.get(checkpoint["current"], self.root)

    def to_json(self) -> dict[str, Any]:
        """Return the parts for the next leg."""
        return {
            "members": self._members.to_json(),
            "current": self.current.key,
            "number": self._handoffs,
            "counted": self._counted,
        }

    def find(self, key: str) -> Part | None:
        return self._parts.get(key)

    def find_owner(self, call_id: str) -> Part:
        """Return the part whose model has requested a call."""
        return self._owners.get(call_id, self.current)

    def list_answering(self) -> Sequence[HostedRun]:
        """Return the runs whose content is the text of the current part."""
        if self.current is self.root:
            return (self.root.run,)
        return self.root.run, self.current.run

    def hand_off(self, name: str, call_id: str, result: str) -> None:
        """Start the member that continues, then end the call and the member that has made it."""
        before = self.current
        task = self.root.run.environment.spec.input
        call = call_id if before is self.root else None
        self._handoffs += 1
        key = f"{_HANDOFF}{self._handoffs}"
        self.current = self._add(self._members.start(key, name, task, call_id=call))
        before.run.end_call(call_id, result)
        if before.key is not None:
            self._members.end(before.key)

    def start_member(
        self, parent: Part, name: str, call_id: str, arguments: Mapping[str, Any]
    ) -> None:
        """Start the member of a call; it had started if a leg before this one has called it."""
        if call_id in self._parts:
            return

        task_input = arguments.get("input")
        task = task_input if isinstance(task_input, str) else orjson.dumps(arguments).decode()
        self._add(self._members.start(call_id, name, task, parent=parent.key, call_id=call_id))

    def end_member(self, call_id: str, result: str, *, failed: bool) -> None:
        """Report the end of the member of a call; a call without a member is ignored."""
        part = self._parts.pop(call_id, None)
        if part is None:
            return
        if not failed and not part.run.transcript.content:
            part.run.add_text(result)
        part.fail_model_call()
        self._members.end(call_id, ExecutionError("AGENT_FAILED") if failed else None)

    def end_model_call(self, part: Part, response: Any) -> None:
        """Count the tokens of an answer, and take over the calls that it asks for."""
        usage = read_usage(response.usage)
        self._counted.update(usage)
        part.end_model_call(usage)
        for run in self.list_answering() if part is self.current else (part.run,):
            run.complete_answer()

        for item in response.output:
            if (call_id := getattr(item, "call_id", None)) is not None:
                self._owners[call_id] = part

        part.run.count_calls(
            (item.call_id, item.name, parse_arguments(item.arguments))
            for item in response.output
            if item.type == "function_call"
        )

    def count_rest(self, usage: Usage) -> None:
        """Count the tokens of the run that no hook has reported."""
        rest = {name: count - self._counted[name] for name, count in read_usage(usage).items()}
        if any(count > 0 for count in rest.values()):
            self.root.run.environment.add_usage(rest)

    def _add(self, member: LibraryMember) -> Part:
        part = self._parts[member.key] = Part(member.run, member.key)
        return part


def read_usage(usage: Usage) -> dict[str, int]:
    """Return the counters of a model call or of a run."""
    input_details = usage.input_tokens_details
    output_details = usage.output_tokens_details

    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "cache_read_tokens": input_details.cached_tokens,
        "cache_write_tokens": getattr(input_details, "cache_write_tokens", 0),
        "reasoning_tokens": output_details.reasoning_tokens,
    }


def has_calls(response: Any) -> bool:
    """Return True if an answer asks for a call or a handoff: it is not the last one."""
    return any(item.type not in ("message", "reasoning") for item in response.output)


def read_text(response: Any) -> str:
    """Return the text of an answer."""
    messages = [item for item in response.output if item.type == "message"]
    return "".join(ItemHelpers.extract_text(message) or "" for message in messages)


def read_arguments(raw: Any) -> dict[str, Any]:
    """Return the arguments of a function call, or the fields of another kind of call."""
    values = raw if isinstance(raw, Mapping) else raw.model_dump(mode="json", exclude_none=True)
    if isinstance(values.get("arguments"), str):
        return parse_arguments(values["arguments"])
    return {name: values[name] for name in values if name in _FIELDS}


def get_tool_agent(tool: Any) -> Agent[Any] | None:
    """Return the agent that a tool calls, if it was made by `as_tool`."""
    agent = getattr(tool, "_agent_instance", None)
    return agent if isinstance(agent, Agent) else None


def list_agents(*agents: Agent[Any]) -> list[Agent[Any]]:
    """Return agents and all that they can hand off to or call as tools, as far as is known."""
    agents_by_id: dict[int, Agent[Any]] = {}
    pending_agents: list[Any] = [*agents]
    while pending_agents:
        agent = pending_agents.pop()
        if not isinstance(agent, Agent) or id(agent) in agents_by_id:
            continue

        agents_by_id[id(agent)] = agent
        pending_agents += [get_tool_agent(tool) for tool in agent.tools]

        for handoff in agent.handoffs:
            reference = getattr(handoff, "_agent_ref", None)
            pending_agents.append(reference() if reference is not None else handoff)

    return [*agents_by_id.values()]
