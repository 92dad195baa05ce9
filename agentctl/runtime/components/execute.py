"""Execution of a run of any component, and the preparation of a server for its first run.

A workflow executes its steps in order, each with the output of the previous one. The first step has
the message and the object `input` of the workflow.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, get_args

from agentctl.errors import InvalidConfiguration
from agentctl.runtime.failures import ExecutionError, FailureCode
from agentctl.runtime.pauses import CallOutcome, JournaledCall, Parked, Paused
from agentctl.runtime.tracing import SPAN_STATUSES
from agentctl.runtime.transcript.events import StepCompleted, StepStarted
from agentctl.work.run_scope import CurrentCall, current_call
from agentctl.work.unstopped import install_executor, watch_threads

if TYPE_CHECKING:
    from agentctl.runtime.component import Component
    from agentctl.runtime.components.catalog import Catalog
    from agentctl.runtime.context import MemberResult, RunEnvironment

_log = logging.getLogger("agentctl.runtime")


def prepare_components(catalog: Catalog) -> None:
    """Import and build everything that runs need, so that the first run does not wait for it.

    Models without an API key are skipped: their runs report that.

    Raises:
        InvalidConfiguration: a tool, a model, an output or an object is not usable; names the
            component.
    """
    for component in catalog.list_workers():
        prepare_component(catalog, component)


def prepare_component(catalog: Catalog, component: Component) -> None:
    """Import and build what the runs of an agent or a team need; see `prepare_components`."""
    if catalog.is_hosted(component):
        catalog.hosted_runner(component)
        return
    catalog.output_schema(component, None)
    with suppress(ExecutionError):
        catalog.runner(component)


async def execute_component(
    component: Component, context: RunEnvironment, catalog: Catalog
) -> None:
    """Run a component to its end. The results are in `context.transcript`.

    Args:
        context: the run, with the earlier runs of its session.

    Raises:
        ExecutionError: the run ends as ERROR.
        Paused: the run waits for people.
        asyncio.CancelledError: the task was cancelled, or a checkpoint found a stop request.
    """
    install_executor()
    # The task of a member has a copy of the context of the call that started it.
    current_call.set(None)
    catalog.give_models(context)
    try:
        with watch_threads(context.transcript.unstopped):
            if context.spec.purpose is not None:
                from agentctl.runtime.components.background import execute_background_work

                await execute_background_work(component, context, catalog)
            else:
                await _execute(component, context, catalog)
    except ExecutionError as failure:
        _log.warning("run %s failed: %s: %s", context.spec.run_id, failure.code, failure.detail)
        raise
    except InvalidConfiguration as error:
        # The error is for a command that runs locally: it shows the hint.
        extra = {"failure": error}
        _log.error("run %s failed: %s", context.spec.run_id, error.detail, extra=extra)
        raise ExecutionError("INTERNAL", "The component is not configured correctly") from error
    except Exception as error:
        _log.exception("run %s failed with an internal error", context.spec.run_id)
        context.keep_cause(error)
        raise ExecutionError("INTERNAL") from error
    finally:
        if component.kind != "workflow" and not context.transcript.messages:
            # The run failed before its model was called: keep the message in the session.
            context.transcript.add_user(context.spec.input, context.spec.files)


async def _execute(component: Component, context: RunEnvironment, catalog: Catalog) -> None:
    if catalog.is_hosted(component):
        from agentctl.runtime.runners.runner import run_hosted_agent
        from agentctl.work.started_work import CodeScope

        with CodeScope(context.transcript.unstopped).enter():
            await run_hosted_agent(catalog.open_runner(component), context)
    elif component.kind == "workflow":
        await _run_workflow(component, context, catalog)
    else:
        from agentctl.runtime.components.agent import run_worker

        await run_worker(component, context, catalog)


async def _run_workflow(workflow: Component, context: RunEnvironment, catalog: Catalog) -> None:
    """Run a workflow to its end. Its content is the output of the last step that succeeded.

    A workflow has no messages: they are in the runs of its steps.
    """
    output, first, run_id = context.spec.input, 0, None
    origin = context.spec.origin
    if origin is not None and origin.step_input is not None:
        output, first = origin.step_input, origin.at
        context.transcript.replace_content(output)
    if context.leg is not None:
        state = context.leg.state
        first, run_id = state["step"], state["run_id"]
        output = output if state["input"] is None else state["input"]

    spans, journal = context.transcript.spans, context.journal
    steps = catalog.steps(workflow)
    for index, (name, worker) in enumerate(steps[first:], start=first):
        context.checkpoint()
        if journal is not None and journal.is_parking:
            raise Parked

        span = spans.find_open(f"step-{index}") if run_id is not None else None
        if run_id is None:
            context.emit(StepStarted(name, index))
        span = span or spans.start_step(index, name)
        token = current_call.set(CurrentCall(span.id, name))
        try:
            result = await context.run_member(worker, output, run_id=run_id, keeps_input=index == 0)
        finally:
            current_call.reset(token)

        if result.status == "PARKED":
            raise Parked
        if result.status == "PAUSED":
            raise Paused([], {"step": index, "input": output, "run_id": result.run_id})
        run_id = None
        span.end(SPAN_STATUSES[result.status])
        if result.status != "COMPLETED":
            raise _build_step_failure(name, result)

        output = result.content
        if journal is not None:
            call = JournaledCall(span.id, name, {}, kind="member")
            await journal.end_call(call, CallOutcome(output))
        context.transcript.replace_content(output)
        context.emit(StepCompleted(name, index, output))


def _build_step_failure(name: str, result: MemberResult) -> ExecutionError:
    """Return the failure of a workflow whose step was cancelled or has failed."""
    if result.status == "CANCELLED":
        return ExecutionError("INTERNAL", f"The step {name} was cancelled")
    code: FailureCode = next(
        (known for known in get_args(FailureCode) if known == result.error_code), "INTERNAL"
    )
    reason = result.error_detail or "no reason known"
    return ExecutionError(code, f"The step {name} failed: {reason}")
