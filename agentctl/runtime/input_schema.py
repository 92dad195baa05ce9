"""The object `input` of a run of an agent in code: its JSON Schema and its check.

An object that is part of a request is checked before anything is stored (docs/contract.md "Runs").
Members and later steps get a task, which is text: an agent that needs an object reads it from the
JSON text of its task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentctl.records.strict import find_object
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.json_schema import find_schema_problem

if TYPE_CHECKING:
    from agentctl.records.run_spec import RunSpec

_MAXIMUM_LENGTH = 200


class WrongInput(ValueError):
    """An object that an agent does not take.

    Attributes:
        place: the place inside the object: `.items[0]`; empty for the object itself.
        problem: the difference without the value, to follow the name and the place; public. Both
            are cut at 200 characters.
    """

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(f"{place} {problem}")
        self.place = place[:_MAXIMUM_LENGTH]
        self.problem = problem[:_MAXIMUM_LENGTH]


class InputSchema:
    """The object that an agent in code takes as `input`.

    Each `Runner` has the attribute `input_schema`. None means that its agent takes any object: the
    code reads it as `RunContext.input`. The record of the agent shows the schema.

    Args:
        schema: JSON Schema of the object.
        is_required: True if the agent cannot work with a message alone. A message that is the JSON
            text of an object which matches is accepted in place of an `input`.
        convert: makes the value for the code from an object that matches the schema; by default
            the object itself. It raises `WrongInput` for an object that the code does not take.
    """

    def __init__(
        self,
        schema: Mapping[str, Any],
        *,
        is_required: bool,
        convert: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        self.schema = schema
        self.is_required = is_required
        self._convert = convert

    def describe(self) -> str:
        """Return the names of the fields for people: `id, count (optional)`, or `any fields`."""
        required = self.schema.get("required", ())
        names = [
            name if name in required else f"{name} (optional)"
            for name in self.schema.get("properties", ())
        ]
        return ", ".join(names) or "any fields"

    async def check(self, value: dict[str, Any]) -> Any:
        """Return the value for the code.

        Raises:
            WrongInput: the object does not match.
        """
        problem = await find_schema_problem(self.schema, value, mask="the value")
        if problem is not None:
            raise WrongInput(f"does not match its schema: {problem.text}", problem.place)
        return value if self._convert is None else self._convert(value)

    async def read(self, spec: RunSpec) -> Any:
        """Return the value for the code of a run; None if it has a message only, as it may.

        Raises:
            ExecutionError: the object of the run, or its task, does not match.
        """
        try:
            if spec.input_object is not None:
                return await self.check(json.loads(spec.input_object))
            if not self.is_required:
                return None
            if (value := find_object(spec.input)) is None:
                raise WrongInput("must be the JSON text of an object")
            return await self.check(value)
        except WrongInput as wrong:
            text = f"The agent was not called: input{wrong.place} {wrong.problem}"
            raise ExecutionError("AGENT_FAILED", text) from None
