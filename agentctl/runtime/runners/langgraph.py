"""Compiled graphs of LangGraph (docs/agents.md "LangGraph")."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import orjson
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.errors import GraphDrained, GraphRecursionError
from langgraph.graph import END, StateGraph, add_messages
from langgraph.pregel import Pregel
from langgraph.types import Command

from agentctl.agents import RunContext
from agentctl.records.items import CANCELLED_RESULT
from agentctl.records.strict import find_object
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.imports import UnusableObject
from agentctl.runtime.pauses import DecidedCall, Parked, Paused
from agentctl.runtime.runners.declared_types import find_default
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.langgraph_callbacks import ApprovedCalls, Effects, ModelCalls
from agentctl.runtime.runners.langgraph_calls import TaskCalls
from agentctl.runtime.runners.langgraph_inbox import (
    GraphInbox,
    InboxControl,
    build_update,
    find_message_obstacle,
)
from agentctl.runtime.runners.langgraph_input import (
    CONFIGURABLE,
    MESSAGES,
    Configurable,
    add_messages_to,
    read_graph_input,
)
from agentctl.runtime.runners.langgraph_journal import (
    THREAD,
    DurableSaver,
    GraphJournal,
    RunSaver,
    find_undone,
    is_idempotent,
)
from agentctl.runtime.runners.langgraph_messages import (
    build_content,
    find_open_calls,
    read_messages,
    repair_messages,
    to_langchain_messages,
)
from agentctl.runtime.runners.langgraph_pauses import (
    OpenInterrupt,
    build_answers,
    list_tools,
    read_interrupt,
    read_tool_schemas,
)
from agentctl.runtime.runners.langgraph_report import GraphReport
from agentctl.runtime.runners.langgraph_store import RunStore
from agentctl.runtime.runners.library_runner import DecidedCalls, LibraryRunner, RunnerOptions
from agentctl.runtime.runners.repeat_gate import RepeatGate
from agentctl.work.event_loop import retrieve_exception, wait_until_done

_GRACE_SECONDS = 0.03
"""Time that the tasks of a cancelled graph have to end; the engine waits for longer."""


class LangGraphRunner(LibraryRunner):
    """The runner of a graph.

    The object `input` of a run is checked by the input schema of the graph. The message of the run
    is added to its `messages`, unless the graph takes none.

    A graph with its own checkpointer gets the new message only; another one gets the messages of
    earlier runs as well. A member's run has neither. The context of a run is the result of the
    configured function `deps`; without one, the `RunContext`, or a value of the graph's
    `context_schema`, with what the request configures. A graph that is not compiled is compiled
    without options. A graph without a store gets that of the run.

    Raises:
        UnusableObject: the context of the graph is of a type that the server cannot make, its input
            is no object, the graph cannot be compiled, or a key has no effect because it has a
            checkpointer or a store.
    """

    kind = "langgraph"

    def __init__(self, graph: Any, options: RunnerOptions) -> None:
        super().__init__()

        if isinstance(graph, StateGraph):
            try:
                graph = graph.compile()
            except ValueError as error:
                problem = "the graph cannot be compiled"
                hint = "call its method compile() to see the reason"
                raise UnusableObject(problem, hint) from error

        if options.durable and graph.checkpointer:
            raise UnusableObject(
                "durable has no effect for a graph with its own checkpointer",
                "compile it without one, or remove the key durable",
            )

        if options.store != "user" and graph.store is not None:
            problem = "store has no effect for a graph with its own store"
            raise UnusableObject(problem, "compile it without one, or remove the key store")

        self._store = "off" if graph.store is not None else options.store

        build_context = options.build_deps
        schema = graph.context_schema
        self._configurable = None

        if options.configurable:
            makes_context = build_context is None
            self._configurable = Configurable(
                schema, options.configurable, makes_context=makes_context
            )
        elif build_context is None and schema not in (None, RunContext):
            build_context = find_default(schema)
            if build_context is None:
                raise UnusableObject(
                    f"the graph needs a context of the type {getattr(schema, '__name__', schema)}",
                    'set deps = "module:function": a function that makes it of the RunContext',
                )

        self._build_context = build_context
        self._graph = graph
        self._has_checkpointer = bool(graph.checkpointer)
        self._schema = self.input_schema = read_graph_input(graph, self._configurable)
        self._takes_messages = MESSAGES in self._schema.schema["properties"]
        self.message_obstacle = find_message_obstacle(graph)

    async def run(self, message: str, run: HostedRun) -> None:
        """Execute a run in a separate task.

        On a cancel the graph is asked to take no further step, its model calls end at their next
        part, and the task is cancelled. Its tasks that ignore this are reported as unstopped work.
        """
        inbox = GraphInbox(run, self._is_public, is_open=self.message_obstacle is None)
        control = InboxControl(inbox)
        decided = DecidedCalls(run)
        gate = RepeatGate(run, "", lambda _, call_id: call_id in decided.approved)
        model_calls = ModelCalls(run, gate)

        work = asyncio.create_task(self._drive(message, run, control, decided, gate, model_calls))

        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            control.request_drain("the run was cancelled")
            model_calls.is_cancelled = True
            work.cancel()
            if not await wait_until_done({work}, _GRACE_SECONDS):
                run.add_unstopped(work)
            else:
                retrieve_exception(work)
            raise

        await work

    def _is_public(self, names: tuple[str, ...]) -> bool:
        """Return True for a graph whose messages are part of the state of the root graph.

        It is a node, and shares the messages. A graph that the code of a node or of a tool calls is
        not.

        Args:
            names: the parts of its `checkpoint_ns`: names of nodes with the ids of their tasks.
        """
        graph = self._graph
        for name in names:
            node = graph.nodes.get(name.partition(":")[0])
            graph = None if node is None else node.bound
            if not isinstance(graph, Pregel) or "messages" not in graph.channels:
                return False
        return True

    async def _drive(
        self,
        message: str,
        run: HostedRun,
        control: InboxControl,
        decided: DecidedCalls,
        gate: RepeatGate,
        model_calls: ModelCalls,
    ) -> None:
        leg = run.environment.leg
        approved = decided.approved
        inbox = control.inbox
        checkpoint_report = None

        thread = await self._open_thread(message, run, inbox)

        stored_calls = None if leg is None else leg.state.get("task_calls")
        task_calls = TaskCalls(
            stored_calls,
            run.hidden,
            model_calls.note_failed_call,
            gate,
            is_durable=run.environment.journal is not None,
        )

        if leg is not None:
            # Before the calls are begun: nothing is called if the graph cannot take a decision.
            interrupts = [
                OpenInterrupt.from_json(stored_interrupt)
                for stored_interrupt in leg.state["interrupts"]
            ]
            takes_results = thread.saver is not None
            resume = build_answers(interrupts, leg, decided, takes_results=takes_results)
            task_calls.add_answers(resume)

            # A leg after a death continues from its newest superstep.
            thread.input = Command(resume=resume) if interrupts else None

            approved |= find_undone(leg)
            checkpoint_report = leg.state["report"]

        outputs = self._graph.output_channels
        if isinstance(outputs, str):
            outputs = None
        report = GraphReport(
            run, model_calls, gate, decided, outputs, self._is_public, inbox, checkpoint_report
        )
        await report.restore()

        if leg is None and not hasattr(self._graph, "builder"):
            report.skip_input(read_messages(thread.input))

        task_calls.use()
        journal = self._open_journal(run, thread, control, report, approved)

        effects = Effects(run, approved, model_calls, inbox.note_call)
        thread.config["callbacks"] = [model_calls, effects]
        if approved:
            # Before the effect: a tool with other arguments than the approved ones has none.
            thread.config["callbacks"].insert(1, ApprovedCalls(approved))

        # Code of the user: it may fail, so it runs before a call is stored as begun.
        if self._configurable is not None and self._configurable.makes_context:
            runtime_context = self._configurable.build_context(thread.configured)
        else:
            runtime_context = await run.build_deps(self._build_context)

        # The begin of an approved call is on the disk before the graph can make it: if the process
        # dies, the call is doubtful, and is not made a second time without a decision.
        unfinished = set(approved)
        for decision in approved.values():
            if decision.execution is None:
                await run.begin_approved(decision.approval_id)

        events = _stream(thread, control, runtime_context)
        try:
            async with aclosing(events):
                async for event in events:
                    try:
                        await report.add(event)
                    finally:
                        # The calls were made, also if a result makes the run too large.
                        for call_id, text, failed in report.take_ended():
                            unfinished.discard(call_id)
                            if journal is None or call_id not in journal.made:
                                approval_id = approved[call_id].approval_id
                                await run.environment.end_call(approval_id, text, failed=failed)

                    gate.check()
                    await run.take_turn()
        except GraphRecursionError as error:
            raise ExecutionError(
                "AGENT_FAILED", "The graph did not finish within its maximum number of steps"
            ) from error
        except GraphDrained as error:
            if journal is None or run.environment.is_stopping:
                raise report.classify(error) from error
            # Again, with the reports of the events that came after the end of the superstep.
            await journal.store()
            raise Parked from None
        except (ExecutionError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise report.classify(error) from error
        finally:
            if thread.saver is None:
                inbox.keep_rest()

        # After the stream: a pause requires that everything else has ended.
        if report.interrupts:
            await self._pause(run, thread, report, task_calls, unfinished)
        await report.end()

    async def _open_thread(self, message: str, run: HostedRun, inbox: GraphInbox) -> _Thread:
        """Return the graph of the run with its thread: a new one, or the one of the pause."""
        context = run.context
        leg = run.environment.leg

        graph_input, new_messages, configured = await self._read_input(message, run)
        if leg is None and self._takes_messages:
            # Those that came while the run waited for its begin.
            new_messages = [*new_messages, *await inbox.take()]

        configurable: dict[str, Any] = {**configured, "run_context": context}

        # Tracers of LangChain look for the session there.
        config: dict[str, Any] = {
            "configurable": configurable,
            "metadata": {"session_id": context.session_id},
        }

        graph = self._graph
        if self._store != "off":
            items = run.environment.open_store(is_shared=self._store == "shared")
            graph = graph.copy({"store": RunStore(items)})
        # A member has no earlier runs: its graph stores nothing, so that two members at the same
        # time do not share a thread.
        if not self._has_checkpointer or run.environment.spec.is_member:
            configurable["thread_id"] = THREAD
            kind = RunSaver if run.environment.journal is None else DurableSaver
            saver = kind(run.hidden)

            if leg is not None:
                await run.take_over_hidden(leg.state["saver"].get("hidden"))
                saver.restore(leg.state["saver"])
            graph = graph.copy({"checkpointer": saver})

            history = run.environment.history if self._takes_messages else []
            earlier_messages = to_langchain_messages(await run.load_messages(history))
            values = add_messages_to(graph_input, earlier_messages, new_messages)
            durability = "exit" if run.environment.journal is None else "sync"
            options = {"durability": durability}
            return _Thread(graph, config, configured, values, saver, options)

        if leg is not None:
            # The checkpointer of the graph has the bytes of files; its calls have not.
            await run.take_over_hidden(leg.state.get("task_calls", {}).get("hidden"))

            configurable |= leg.state["thread"]
            if not (await self._graph.aget_state(config)).values:
                raise ExecutionError(
                    "AGENT_FAILED",
                    "The checkpointer of the graph does not have the thread of the run any more",
                )

            return _Thread(graph, config, configured)

        # Two agents or two users never share a thread.
        configurable["thread_id"] = (
            f"{context.component_id}:{context.user_id or ''}:{context.session_id}"
        )
        earlier_messages = await self._prepare_thread(config, run)
        return _Thread(
            graph, config, configured, add_messages_to(graph_input, earlier_messages, new_messages)
        )

    def _open_journal(
        self,
        run: HostedRun,
        thread: _Thread,
        control: InboxControl,
        report: GraphReport,
        approved: Mapping[str, DecidedCall],
    ) -> GraphJournal | None:
        """Return the journal of a durable run, which stores the calls of its task; else None."""
        if run.environment.journal is None or not isinstance(thread.saver, DurableSaver):
            return None
        state = None if run.environment.leg is None else run.environment.leg.state
        journal = GraphJournal(
            run, run.environment.journal, control, state, approved, thread.saver, report
        )
        thread.saver.journal = journal
        journal.use()
        return journal

    async def _read_input(
        self, message: str, run: HostedRun
    ) -> tuple[dict[str, Any], list[Any], Mapping[str, Any]]:
        """Return the object of a run, its new messages, and the values that it configures.

        A run without a message has the JSON text of its object as its message: that is no message
        of a person.
        """
        schema = self._schema
        spec = run.environment.spec
        graph_input = (await schema.read(spec)) or {}

        # A message that is the text of an object was checked only if an object is required.
        value = find_object(message) if schema.is_required else None
        is_object = value is not None

        if spec.input_object is not None:
            value = run.context.input
            is_object = find_object(message) == value

        configured = (value or {}).get(CONFIGURABLE, {}) if self._configurable else {}

        if not self._takes_messages or is_object:
            return graph_input, [], configured

        new_messages = [HumanMessage(build_content(await run.load_prompt(message)))]
        return graph_input, new_messages, configured

    async def _pause(
        self,
        run: HostedRun,
        thread: _Thread,
        report: GraphReport,
        task_calls: TaskCalls,
        unfinished: Iterable[str],
    ) -> None:
        """Raise `Paused` with what the interrupts of a graph ask for.

        Args:
            unfinished: ids of the approved calls without an end: they may wait in the middle.
        """
        leg = run.environment.leg

        schemas = dict(read_tool_schemas(self._graph))
        idempotent = {tool.name for tool in list_tools(self._graph) if is_idempotent(tool)}
        used_keys = {decision.tool_call_id for decision in leg.decisions} if leg is not None else ()

        interrupts = [
            read_interrupt(interrupt, calls, schemas, used_keys)
            for interrupt, calls in report.interrupts.values()
        ]

        state: dict[str, Any] = {
            "interrupts": [interrupt.to_json() for interrupt in interrupts],
            "report": report.to_json(),
            "approved": sorted(unfinished),
            "task_calls": task_calls.to_json(
                {interrupt.id: interrupt for interrupt, _ in report.interrupts.values()}
            ),
        }

        if thread.saver is not None:
            state["saver"] = thread.saver.to_json()
        else:
            current = await self._graph.aget_state(thread.config | {"callbacks": []})
            names = ("thread_id", "checkpoint_ns", "checkpoint_id")
            configurable = current.config["configurable"]
            state["thread"] = {name: configurable[name] for name in names if name in configurable}

        run.recorder.reserve(len(orjson.dumps(state)))
        asks = [ask for interrupt in interrupts for ask in interrupt.asks]
        raise Paused([ask.to_approval(idempotent=ask.name in idempotent) for ask in asks], state)

    async def _prepare_thread(self, config: dict[str, Any], run: HostedRun) -> list[Any]:
        """Make the stored state of the thread ready for a new message.

        The thread of a session without earlier runs is new. What a deleted session with the same id
        has left there is deleted. The calls that an earlier run left open get a result, because
        models reject a history with an open call, and answers that they reject are changed.
        """
        state = await self._graph.aget_state(config)
        if state.values and await run.environment.is_first_of_session():
            await self._graph.checkpointer.adelete_thread(config["configurable"]["thread_id"])
            return to_langchain_messages(await run.load_messages(run.request_history))

        if state.tasks:
            # An earlier run was stopped in a step: keep what its ended tasks have returned. If all
            # have ended, but the next checkpoint was not stored, `next` is empty.
            await self._graph.aupdate_state(config, None, as_node=END)
            state = await self._graph.aget_state(config)

        messages = state.values.get(MESSAGES, []) if state.values else []
        reducer = getattr(self._graph.channels.get(MESSAGES), "operator", None)
        changes = [*repair_messages(messages)] if reducer is add_messages else []

        if changes:
            messages = add_messages(messages, changes)

        results = [
            ToolMessage(CANCELLED_RESULT, tool_call_id=call_id, name=name)
            for call_id, name in find_open_calls(messages).items()
        ]

        requested = to_langchain_messages(await run.load_messages(run.request_history))
        return [*changes, *results, *requested]


@dataclass(slots=True)
class _Thread:
    """The graph of a run, and the thread on which it works."""

    graph: Any
    config: dict[str, Any]

    configured: Mapping[str, Any]
    """The values that the request configures."""

    input: Any = None

    saver: RunSaver | None = None
    """The checkpointer of this run; None if the graph has its own."""

    options: dict[str, Any] = field(default_factory=dict)
    """Further options of the stream."""

    def continue_with(self, graph_input: Any, steps_left: int) -> None:
        """Let the next stream continue from the newest checkpoint.

        Args:
            steps_left: its `recursion_limit`.
        """
        self.input = graph_input
        self.config["recursion_limit"] = steps_left
        # The one with which the leg began, in a graph with its own checkpointer.
        self.config["configurable"].pop("checkpoint_id", None)


async def _stream(
    thread: _Thread, control: InboxControl, runtime_context: Any
) -> AsyncGenerator[Mapping[str, Any]]:
    """Yield the parts of the stream of a graph, and insert the messages that are sent to the run.

    Raises:
        GraphDrained: another part of the server has asked for a drain.
    """
    inbox = control.inbox
    while True:
        parts = thread.graph.astream(
            thread.input,
            thread.config,
            context=runtime_context,
            stream_mode=["messages", "updates", "values", "custom", "tasks"],
            subgraphs=True,
            control=control,
            version="v2",
            **thread.options,
        )
        try:
            async with aclosing(parts):
                async for part in parts:
                    yield part
            return
        except GraphDrained:
            if not inbox.has_stopped:
                raise
        messages = await inbox.take()
        thread.continue_with(build_update(messages), inbox.steps_left)
