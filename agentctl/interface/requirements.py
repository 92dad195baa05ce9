"""Requirements of operations: what a caller needs, as an operation declares it.

`NeedsScope("sessions", "read")` requires `sessions:read` or a scope that includes it. In the same
form, `agents:run`, `approvals:write` and the others of `records.authorization.KNOWN_SCOPES` are
required. `agentctl.auth.policy` decides by these declarations.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentctl.records.kinds import KINDS, ComponentKind


@dataclass(frozen=True, slots=True)
class Public:
    """No requirement; credentials are ignored."""


@dataclass(frozen=True, slots=True)
class Authenticated:
    """Any identified caller, regardless of its scopes."""


@dataclass(frozen=True, slots=True)
class Admin:
    """The admin scope: the operation is for operators."""


@dataclass(frozen=True, slots=True)
class NeedsScope:
    """A scope for a resource and an action."""

    resource: str
    action: str

    id_param: str | None = None
    """The path parameter with the id that the operation acts on, or None."""

    filters_list: bool = False
    """True for a list that a caller with scopes for single ids gets in part."""


Requirement = Public | Authenticated | Admin | NeedsScope


@dataclass(frozen=True, slots=True)
class OfComponent:
    """The scope of an operation on one kind of component: `agents:run`, or of one agent."""

    action: str

    resource: str | None = None
    """The resource of the scope; None for the components themselves: `agents`."""

    is_list: bool = False
    """True for the list of the components, which a caller with scopes for single ids gets in part.

    The path of the list has no id.
    """

    def find_scope(self, kind: ComponentKind) -> NeedsScope:
        """Return the scope that operations of a kind of component need."""
        names = KINDS[kind]
        resource = self.resource or names.path
        if self.is_list:
            return NeedsScope(resource, self.action, filters_list=True)
        return NeedsScope(resource, self.action, names.id_field)


READS_COMPONENT = OfComponent("read")
RUNS_COMPONENT = OfComponent("run")
"""The scopes of most operations on a component and its runs."""
