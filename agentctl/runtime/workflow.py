"""Execution of a workflow's run: its steps in order, each with the output of the previous one."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from agentctl.runtime.events import StepCompleted, StepStarted
from agentctl.runtime.failures import ExecutionError, FailureCode

if TYPE_CHECKING:
    from agentctl.runtime.catalog import Catalog
    from agentctl.runtime.component import Component
    from agentctl.runtime.context import MemberResult, RunContext

__all__ = ["run_workflow"]


async def run_workflow(
    workflow: Component, message: str, context: RunContext, catalog: Catalog
) -> None:
    """Run a workflow to its end. Its content is the output of the last step that succeeded.

    A workflow has no messages: they are in the runs of its steps.

    Raises:
        ExecutionError: a step failed, or the run of a step was cancelled.
    """
    output = message
    for index, (name, worker) in enumerate(catalog.steps(workflow)):
        context.checkpoint()
        context.emit(StepStarted(name, index))
        result = await context.run_member(worker, output)
        if result.status != "COMPLETED":
            raise _step_failure(name, result)
        output = result.content
        context.transcript.replace_content(output)
        context.emit(StepCompleted(name, index, output))


def _step_failure(step: str, result: MemberResult) -> ExecutionError:
    """Build the failure of the workflow, with the error code of the step."""
    if result.status == "CANCELLED":
        return ExecutionError("INTERNAL", f"The step {step} was cancelled")
    code: FailureCode = next(
        (known for known in get_args(FailureCode) if known == result.error_code), "INTERNAL"
    )
    return ExecutionError(
        code, f"The step {step} failed: {result.error_detail or 'no reason known'}"
    )
