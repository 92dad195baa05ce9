"""Versions of components in the life of runs (docs/versions.md)."""

from __future__ import annotations

from collections.abc import Iterable

from agentctl.records.times import now
from agentctl.runtime.component import Component
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.components.versions import describe_version
from agentctl.store.databases import Databases
from agentctl.store.repositories import component_versions
from agentctl.store.repositories.component_versions import VersionRow


class StoredVersions:
    """Stores the versions of the components of this process, each once."""

    def __init__(self, catalog: Catalog, databases: Databases) -> None:
        self._catalog = catalog
        self._databases = databases
        self._stored: set[tuple[str, str]] = set()

    async def store(self, components: Iterable[Component]) -> None:
        """Store the versions of some components, unless they are stored.

        Raises:
            Unavailable: the system database does not answer.
        """
        new = list[VersionRow]()
        for component in components:
            place = component.id, component.key
            if place in self._stored:
                continue
            if (found := describe_version(self._catalog, component)) is not None:
                known = component_versions.list_known(component.kind, component.id)
                if found.version not in await self._databases.system.read(known):
                    row = VersionRow(
                        0, component.kind, component.id, found.version, now(), found.configuration
                    )
                    new.append(row)
            self._stored.add(place)
        if new:
            await self._databases.system.write(component_versions.add(new))
