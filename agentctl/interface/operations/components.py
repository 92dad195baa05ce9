"""The operations on components; see `agentctl.interface.operations`."""

# The methods have no statements: `execute` or a backend executes them.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import Annotated, Any

from agentctl.interface.declarations import Family, Path, component_operation
from agentctl.interface.requests import DiffFilter, VersionFilter
from agentctl.interface.requirements import READS_COMPONENT, OfComponent
from agentctl.records.components import COMPONENT_LISTS, COMPONENT_RECORDS, VersionDiff, VersionPage
from agentctl.records.document import Document
from agentctl.records.kinds import ComponentKind

# The method that returns them is named `list`.
ComponentRecords = list[Any]

ComponentId = Annotated[str, Path("Id of the component")]


class ComponentsFamily(Family):
    """The operations on components and their versions."""

    @component_operation(
        "list", "GET", needs=OfComponent("read", is_list=True), records=COMPONENT_LISTS
    )
    async def list(self, kind: ComponentKind) -> Document[ComponentRecords]:
        """List components.

        All configured components that the caller can read.
        """

    @component_operation(
        "get", "GET", "/{component_id}", needs=READS_COMPONENT, records=COMPONENT_RECORDS
    )
    async def get(self, kind: ComponentKind, component_id: ComponentId) -> Document[Any]:
        """Get a component."""

    @component_operation("get_versions", "GET", "/{component_id}/versions", needs=READS_COMPONENT)
    async def list_versions(
        self, kind: ComponentKind, component_id: ComponentId, filter: VersionFilter
    ) -> Document[VersionPage]:
        """List the versions of a component.

        The configurations with which servers have started, newest first.
        """

    @component_operation(
        "get_version_diff", "GET", "/{component_id}/versions/diff", needs=READS_COMPONENT
    )
    async def compare_versions(
        self, kind: ComponentKind, component_id: ComponentId, filter: DiffFilter
    ) -> Document[VersionDiff]:
        """Compare two versions of a component.

        By default the two newest versions.
        """
