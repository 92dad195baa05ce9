"""The operations on components and on their versions: a part of `Operations`."""

# The methods have no statements: `execute` or a backend executes them.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import Any

from agentctl.interface.declarations import component_operation
from agentctl.interface.operations.runs import ComponentId
from agentctl.interface.requests import DiffFilter, VersionFilter
from agentctl.records.components import COMPONENT_LISTS, COMPONENT_RECORDS, VersionDiff, VersionPage
from agentctl.records.document import Document
from agentctl.records.kinds import ComponentKind


class ComponentDeclarations:
    """The operations on components.

    The docstring of a method is its text in the OpenAPI document.
    """

    @component_operation("list", "GET", records=COMPONENT_LISTS)
    async def get_components(self, kind: ComponentKind) -> Document[list[Any]]:
        """List components.

        All configured components that the caller can read.
        """

    @component_operation("get", "GET", "/{component_id}", records=COMPONENT_RECORDS)
    async def get_component(self, kind: ComponentKind, component_id: ComponentId) -> Document[Any]:
        """Get a component."""

    @component_operation("get_versions", "GET", "/{component_id}/versions")
    async def get_versions(
        self, kind: ComponentKind, component_id: ComponentId, filter: VersionFilter
    ) -> Document[VersionPage]:
        """List the versions of a component.

        The configurations with which servers have started, newest first.
        """

    @component_operation("get_version_diff", "GET", "/{component_id}/versions/diff")
    async def get_version_diff(
        self, kind: ComponentKind, component_id: ComponentId, filter: DiffFilter
    ) -> Document[VersionDiff]:
        """Compare two versions of a component.

        By default the two newest ones.
        """
