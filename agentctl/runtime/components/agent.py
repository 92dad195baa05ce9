"""The run of an agent or a team: model calls and tool calls in turn, until there are no more calls.

The model always streams, so that partial text exists even for a caller that does not stream. A
connection (`runtime.models.calls`) talks to the provider; this module runs the agent loop
(decision 48).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentctl.records.run_spec import REQUIRED
from agentctl.records.text import new_id
from agentctl.runtime.components.fitting import ContextFitter
from agentctl.runtime.components.leadership import collect_reports
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.files import build_files
from agentctl.runtime.models.attempts import Attempts, call_model, dump_message, load_message
from agentctl.runtime.models.calls import (
    UNKNOWN_REASON,
    ModelAnswer,
    ModelCall,
    PreparedModel,
    build_result,
)
from agentctl.runtime.models.structured_output import InvalidAnswer, OutputSchema
from agentctl.runtime.pauses import Journal, Parked, Paused, WaitingCall
from agentctl.runtime.tools.memories import add_memories
from agentctl.runtime.transcript.conversation import Conversation
from agentctl.runtime.transcript.repeated_calls import RepeatedCalls
from agentctl.runtime.transcript.transcript import TranscriptMark
from agentctl.work.unstopped import abandon_task

if TYPE_CHECKING:
    from agentctl.runtime.component import Component
    from agentctl.runtime.components.catalog import Catalog
    from agentctl.runtime.components.configured import ConfiguredRunner
    from agentctl.runtime.context import RunEnvironment


_log = logging.getLogger("agentctl.runtime")


async def run_worker(component: Component, context: RunEnvironment, catalog: Catalog) -> None:
    """Run an agent or a team to its end. The transcript has the messages and the answer.

    The leader of a team works as an agent does, in the mode of the team. coordinate: it delegates
    tasks as it sees fit and answers. route: it selects a member, which answers. If that member
    fails, the leader may select another one. If the leader selects none, its own text is the
    answer. broadcast: all members get the message at once, and it answers from their reports.

    With an output schema, the text of the last answer is published when it is valid.
    """
    runner = await catalog.prepare_runner(component, context)

    output = None
    if not runner.routes:
        output = catalog.output_schema(component, context.spec.output_schema)
    publishes = output is None and not runner.routes

    repeats = RepeatedCalls(runner.repeats, context.transcript.messages)
    conversation = Conversation(
        context, runner.actions, rules=runner.rules, repeats=repeats, publishes=publishes
    )
    turns = _Turns(runner, conversation, output)

    # A broadcast that waits for its members has reports, and has not called the model yet.
    state = context.leg.state if context.leg is not None else None
    has_ended = False
    if state is not None and "reports" not in state:
        has_ended = not await turns.resume(state)
    else:
        if state is None:
            conversation.add_prompt(runner.system)
            await _add_knowledge(runner, conversation)
        else:
            conversation.restore(state["conversation"])

        prompt = context.spec.input
        if component.kind == "team" and component.team.mode == "broadcast":
            prompt = await collect_reports(catalog.members(component), conversation, state)
        if conversation.has_prompt:
            turns.messages.append(_build_prompt(prompt) | build_files(context.spec.files))

    if context.leg is not None and context.leg.has_new_version:
        conversation.replace_instructions(runner.system)
        await _add_knowledge(runner, conversation)

    if not has_ended:
        await turns.take()

    if conversation.routed_answer is not None:
        conversation.set_answer(conversation.routed_answer)
    elif runner.routes:
        conversation.recorder.publish_held_text()


async def _add_knowledge(runner: ConfiguredRunner, conversation: Conversation) -> None:
    """Add the summary of the session and memories of the user to the instructions."""
    if runner.summarizes:
        conversation.add_summary()
    if runner.memory.mode != "off":
        await add_memories(conversation)


class _Turns:
    """The turns of a model and its tools.

    Attributes:
        messages: the history, then the messages of this run.
    """

    def __init__(
        self, runner: ConfiguredRunner, conversation: Conversation, output: OutputSchema | None
    ) -> None:
        context = conversation.context
        self._fitter = ContextFitter(runner, conversation)
        self.messages = self._fitter.messages
        self._own = self._fitter.own

        self._runner = runner
        self._output = output
        self._conversation = conversation

        self._attempts = Attempts(
            context.spec.run_id,
            runner.models,
            runner.counters,
            context.transcript,
            context.keep_cause,
            context,
        )

        context.transcript.requests.begin(context.earlier_runs, self.messages)
        earlier_messages = () if context.spec.origin is None else context.spec.origin.messages
        self._call_ids = {
            call["id"] for message in earlier_messages for call in message.get("tool_calls", ())
        }

        # Number of the model calls of the run.
        self._count = 0
        # True once the model was asked to correct its output.
        self._corrected = False

        # The parts of the transcript and of the messages that the journal has.
        self._journal = context.journal
        self._mark = TranscriptMark()
        self._stored_count = self._own

        # The results of the last answer's calls that an earlier process has made, by id, and
        # whether it has left their events to this process.
        self._known_results: Mapping[str, Mapping[str, Any]] = {}
        self._announces = True

    async def take(self) -> None:
        """Take turns until the model answers without calls."""
        runner = self._runner
        conversation = self._conversation

        while self._count < runner.model_calls:
            if self._journal is not None and self._journal.is_parking:
                raise Parked

            ask = await conversation.context.begin_model_call(may_ask=True)
            if ask is not None:
                raise Paused([ask], self._keep([], {}))

            self._attempts.begin_call()
            choice = self._choose_tool() if self._count == 0 else None
            self._count += 1

            answer = await self._call_model(choice)
            answer = self._identify_calls(answer)
            self._fitter.keep_report()
            conversation.end_answer(answer.calls, answer.finish_reason or UNKNOWN_REASON)
            self.messages.append(answer.message)

            if answer.calls:
                # Before the first call is made: then none of them is made.
                conversation.repeats.check()
                # Before the journal has that the calls begin: they would be in doubt after a kill.
                await conversation.context.wait_while_halted()
                if self._journal is not None:
                    await self._add_to(self._journal, answer.calls)
                if not await self.perform_calls(answer.calls, {}, {}):
                    return
                continue

            problem = await self._take_output()
            if problem is None:
                return
            self._corrected = True
            self.messages.append(_build_prompt(problem.prompt))

        raise ExecutionError(
            "MODEL_CALLS_EXCEEDED",
            f"The model did not finish within {runner.model_calls} model calls",
        )

    async def perform_calls(
        self,
        calls: Sequence[dict[str, Any]],
        results: Mapping[str, str],
        waiting: Mapping[str, WaitingCall],
    ) -> bool:
        """Perform the calls of an answer, and add their results to the messages.

        Args:
            results: the results of the calls that have ended in an earlier leg, by id.
            waiting: the other calls of an answer of an earlier leg.

        Returns:
            False if a member has answered in place of the model.

        Raises:
            Paused: all other calls have ended, and these wait.
        """
        conversation = self._conversation
        ended_results = {**results, **self._repeat_results(calls, waiting)}

        pending_calls = [call for call in calls if call["id"] not in ended_results]
        texts = await _gather(
            self._perform_call(call, waiting.get(call["id"])) for call in pending_calls
        )
        for call, text in zip(pending_calls, texts, strict=True):
            if text is not None:
                ended_results[call["id"]] = text

        if conversation.is_parked:
            raise Parked
        if conversation.waiting:
            raise Paused(conversation.asks, self._keep(calls, ended_results))
        if conversation.routed_answer is not None:
            return False

        for call in calls:
            result = build_result(call["id"], call["name"], ended_results[call["id"]])
            files = build_files(conversation.result_files.get(call["id"]))
            self.messages.append(result | files)
        return True

    def _perform_call(
        self, call: dict[str, Any], waiting: WaitingCall | None
    ) -> Coroutine[Any, Any, str | None]:
        """Perform a call, or continue with it after a pause. Its text is None if it waits."""
        arguments = (call["id"], call["name"], call["arguments"])
        if waiting is not None:
            return self._conversation.resume_call(*arguments, waiting)
        return self._conversation.call(*arguments)

    def _repeat_results(
        self, calls: Sequence[dict[str, Any]], waiting: Mapping[str, WaitingCall]
    ) -> dict[str, str]:
        """Return the results of the calls that an earlier process has made, by id.

        The calls that it has begun, and that continue, are opened.
        """
        conversation = self._conversation
        stored_results = self._known_results

        conversation.announces = self._announces

        texts = {
            call["id"]: conversation.repeat_result(call, stored_results[call["id"]])
            for call in calls
            if call["id"] in stored_results
        }

        for call in calls:
            if call["id"] in waiting and not waiting[call["id"]].is_gated:
                conversation.reopen_call(call)

        conversation.announces = True
        return {call_id: text for call_id, text in texts.items() if text is not None}

    async def _add_to(self, journal: Journal, calls: Sequence[dict[str, Any]]) -> None:
        """Store the answer and the begin of its calls, or hand the run over before them."""
        conversation = self._conversation
        transcript = self._conversation.context.transcript

        new_messages = [
            message for message in self.messages[self._stored_count :] if message["role"] != "tool"
        ]
        conversation_state = {**conversation.keep(), "context": self._fitter.keep()}
        if self._mark.messages:
            del conversation_state["instructions"]

        body = {
            "transcript": transcript.since(self._mark),
            "messages": [dump_message(message, self._runner.models) for message in new_messages],
            "conversation": conversation_state,
            "model": self._attempts.model.id,
            "turns": self._count,
            "corrected": self._corrected,
        }

        self._mark = transcript.mark()
        self._stored_count = len(self.messages)

        is_parking = journal.is_parking
        await journal.add_answer(body, () if is_parking else conversation.list_effects(calls))
        if is_parking:
            raise Parked

    async def _call_model(self, tool_choice: str | None) -> ModelAnswer:
        conversation = self._conversation
        fitter = self._fitter
        calls = await fitter.begin_call(self._attempts.model)

        # Last of all that waits: a summary of the first steps is a model call, too.
        for message in await conversation.take_messages():
            self.messages.append(_build_prompt(message.content))

        def build_call(model: PreparedModel) -> ModelCall:
            conversation.context.checkpoint()
            return fitter.build_call(calls, model, tool_choice=tool_choice, output=self._output)

        return await call_model(self._attempts, build_call, conversation, calls)

    def _choose_tool(self) -> str | None:
        requested = self._conversation.context.spec.tool_choice
        return requested or (REQUIRED if self._runner.routes else None)

    async def resume(self, state: Mapping[str, Any]) -> bool:
        """Take over the values of `_keep`, and continue with the open calls of the last answer.

        Returns:
            As `perform_calls`.
        """
        waiting = self._conversation.restore(state["conversation"])

        self._fitter.restore(state["conversation"].get("context"))

        self._attempts.choose(state["model"])
        self._count = state["turns"]
        self._corrected = state["corrected"]

        for message in state["messages"]:
            self._call_ids |= {call["id"] for call in message.get("tool_calls", ())}
            self.messages.append(load_message(message, self._runner.models))

        self._known_results = state.get("known", {})
        self._announces = state.get("announces", True)
        self._mark = self._conversation.context.transcript.mark()
        self._stored_count = len(self.messages)

        return await self.perform_calls(state["calls"], state["results"], waiting)

    def _keep(self, calls: Sequence[dict[str, Any]], results: Mapping[str, str]) -> dict[str, Any]:
        """Return a JSON object from which another process continues; see `resume`.

        Args:
            calls: the calls of the last answer.
            results: the results of the calls that have ended, by id.
        """
        own_messages = self.messages[self._own :]

        return {
            "conversation": {**self._conversation.keep(), "context": self._fitter.keep()},
            "messages": [dump_message(message, self._runner.models) for message in own_messages],
            "calls": calls,
            "results": results,
            "model": self._attempts.model.id,
            "turns": self._count,
            "corrected": self._corrected,
        }

    def _identify_calls(self, answer: ModelAnswer) -> ModelAnswer:
        """Give a call a new id if an earlier answer of the run has used its id.

        Some servers count the calls of each answer from 0. A decision, and `RunContext.call_id`,
        belong to one call.
        """
        repeated = [call for call in answer.calls if call["id"] in self._call_ids]
        for call in repeated:
            call["id"] = new_id()
        self._call_ids |= {call["id"] for call in answer.calls}
        # The answer in the form of its provider has the earlier ids.
        return replace(answer, native=None) if repeated else answer

    async def _take_output(self) -> InvalidAnswer | None:
        """Validate a final answer if it has a schema. Return what the model can correct."""
        conversation = self._conversation
        recorder = conversation.recorder
        output = self._output

        if output is None:
            return None

        try:
            recorder.transcript.output = await output.parse(recorder.held_text)
        except InvalidAnswer as problem:
            _log.warning(
                "run %s: the answer does not match the output schema: %s",
                conversation.context.spec.run_id,
                problem,
            )
            if not self._corrected:
                return problem
            recorder.publish_held_text()
            raise ExecutionError("OUTPUT_INVALID") from None

        recorder.publish_held_text()
        return None


def _build_prompt(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def _gather(calls: Iterable[Coroutine[Any, Any, str | None]]) -> list[str | None]:
    """Perform calls concurrently; if one raises, the rest is abandoned."""
    pending = list(calls)
    if len(pending) == 1:
        return [await pending[0]]

    tasks = [asyncio.create_task(call) for call in pending]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            abandon_task(task)
        raise
