"""The body of each operation, and the requests that are built from bodies.

`BODIES` has the body of each operation; `BodyFields` turns its fields into those of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter
from typing import Any, TypeVar

from agentctl.errors import ValidationFailed
from agentctl.interface.requests import RunRequest
from agentctl.interface.requests.accounts import Grant
from agentctl.interface.requests.approvals import ContinueRequest, Ruling
from agentctl.interface.requests.repeats import ForkRequest, RetryRequest
from agentctl.records.kinds import KINDS
from agentctl.records.value_types import compile_type
from agentctl.server.bodies import RequestBody
from agentctl.server.body_types.accounts import ExplainBody, NewAccountBody
from agentctl.server.body_types.memories import DeleteMemoriesBody, NewMemoryBody, UpdateMemoryBody
from agentctl.server.body_types.personal_data import EraseBody
from agentctl.server.body_types.runs import (
    ContinueBody,
    DecisionBody,
    ForkBody,
    ResumeBody,
    RetryBody,
    RunBody,
)
from agentctl.server.body_types.sessions import (
    DeleteSessionsBody,
    HoldSessionBody,
    NewSessionBody,
    PruneBody,
    RenameSessionBody,
    UpdateSessionBody,
)


def _read_component_id(body: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    component_id: str | None = None
    for kind, names in KINDS.items():
        value = body.get(names.id_field)
        if kind == values["type"]:
            component_id = value
        elif value is not None:
            raise ValidationFailed(f"{names.id_field} cannot be used with type {values['type']}")
    return {**body, "component_id": component_id}


BODIES: dict[str, RequestBody] = {
    "explain_auth": RequestBody(ExplainBody),
    "create_run": RequestBody(RunBody, form=True),
    "resume_run": RequestBody(ResumeBody, form=True, optional=True),
    "continue_run": RequestBody(ContinueBody, optional=True),
    "retry_run": RequestBody(RetryBody, optional=True),
    "fork_run": RequestBody(ForkBody),
    "decide_approval": RequestBody(DecisionBody),
    "create_session": RequestBody(NewSessionBody, optional=True),
    "delete_sessions": RequestBody(DeleteSessionsBody),
    "update_session": RequestBody(UpdateSessionBody),
    "rename_session": RequestBody(RenameSessionBody),
    "hold_session": RequestBody(HoldSessionBody),
    "prune_sessions": RequestBody(PruneBody),
    "create_memory": RequestBody(NewMemoryBody),
    "update_memory": RequestBody(UpdateMemoryBody),
    "delete_memories": RequestBody(DeleteMemoriesBody),
    "erase_user_data": RequestBody(EraseBody),
    "create_service_account": RequestBody(NewAccountBody),
}
"""The bodies by the name of the method of `interface.operations.Operations`."""

Adapt = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
"""Returns the fields of a request from the body and the other parameters."""

ADAPTERS: dict[str, Adapt] = {
    "create_session": _read_component_id,
    "update_session": lambda body, _: {"changes": body},
}
"""The bodies whose fields are not named like those of the request."""


class BodyFields:
    """The parameters of an operation that are fields of its body.

    Args:
        parameters: these parameters.
        adapt: changes the fields first.
    """

    def __init__(self, parameters: Iterable[Parameter], adapt: Adapt | None = None) -> None:
        self._parameters = [
            (parameter.name, parameter.default, _choose_converter(parameter.annotation))
            for parameter in parameters
        ]
        self._adapt = adapt

    def read(self, body: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the parameters; a field that is absent or null has its default.

        Args:
            body: a checked body.
            values: the other parameters of the request.

        Raises:
            ValidationFailed: a field cannot be used with the other parameters.
        """
        if self._adapt is not None:
            body = self._adapt(body, values)
        return {
            name: default if (value := body.get(name)) is None else convert(value)
            for name, default, convert in self._parameters
        }


def _choose_converter(annotation: Any) -> Callable[[Any], Any]:
    value_type = compile_type(annotation)
    if value_type.kind is not tuple:
        return lambda value: value
    if value_type.item.kind is Grant:
        return lambda value: tuple(Grant(**grant) for grant in value)
    return tuple


def build_run_request(body: Mapping[str, Any], idempotency_key: str | None) -> RunRequest:
    """Build the request of a run from its body, a checked `RunBody`."""
    names = RunRequest.__dataclass_fields__.keys() & body.keys()
    return RunRequest(**{name: body[name] for name in names}, idempotency_key=idempotency_key)


R = TypeVar("R", RetryRequest, ForkRequest)


def build_repeat_request(kind: type[R], body: Mapping[str, Any], key: str | None) -> R:
    """Build the request that repeats a run from its body, a checked `RetryBody` or `ForkBody`."""
    names = kind.__dataclass_fields__.keys() & body.keys()
    return kind(**{name: body[name] for name in names}, idempotency_key=key)


def build_continue_request(body: Mapping[str, Any], idempotency_key: str | None) -> ContinueRequest:
    """Build the request that continues a run from its body, a checked `ContinueBody`."""
    return ContinueRequest(
        decisions=tuple(Ruling(**decision) for decision in body.get("decisions") or ()),
        background=body.get("background", False),
        dependencies=body.get("dependencies"),
        idempotency_key=idempotency_key,
    )
