"""The operations on the versions of components (docs/contract.md "Versions")."""

from __future__ import annotations

import orjson

from agentctl import errors
from agentctl.interface.requests import DiffFilter, VersionFilter
from agentctl.records.components import VersionDiff, VersionPage, VersionRecord
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from agentctl.records.times import format_rfc3339
from agentctl.runtime.component import Component
from agentctl.runtime.components.versions import find_changes, find_version
from agentctl.service.documents.paging import build_number_cursor, parse_number_cursor
from agentctl.service.reads.family import ReadFamily
from agentctl.store.repositories import component_versions
from agentctl.store.repositories.component_versions import LAST_NUMBER, VersionRow


class VersionOperations(ReadFamily):
    """Operations on the versions of components."""

    async def list_versions(
        self, kind: ComponentKind, component_id: str, filter: VersionFilter
    ) -> Document[VersionPage]:
        path = {KINDS[kind].id_field: component_id}
        async with self.audit(operation_ids(kind).get_versions, **path):
            component = self.lookups.component(kind, component_id)

            before = parse_number_cursor("versions", filter.limit, filter.cursor) or LAST_NUMBER
            rows = await self._read_versions(kind, component_id, before, filter.limit + 1)
            page = rows[: filter.limit]
            next_before = page[-1].seq if len(rows) > len(page) else None

            return build_document(
                VersionPage(
                    data=[self._build_version(component, row) for row in page],
                    meta={"next_cursor": build_number_cursor("versions", next_before)},
                )
            )

    async def compare_versions(
        self, kind: ComponentKind, component_id: str, filter: DiffFilter
    ) -> Document[VersionDiff]:
        path = {KINDS[kind].id_field: component_id}
        async with self.audit(operation_ids(kind).get_version_diff, **path):
            component = self.lookups.component(kind, component_id)

            newest_rows = list[VersionRow]()
            if filter.after is None or filter.before is None:
                newest_rows = await self._read_versions(kind, component_id, LAST_NUMBER, 2)

            # By default the newest version with the version before it; with itself, if it is alone.
            default_after = newest_rows[0] if newest_rows else None
            default_before = newest_rows[-1] if newest_rows else None
            after = await self._find_version(kind, component_id, filter.after, default_after)
            before = await self._find_version(kind, component_id, filter.before, default_before)
            changes = find_changes(
                orjson.loads(before.configuration), orjson.loads(after.configuration)
            )

            return build_document(
                VersionDiff(
                    before=self._build_version(component, before),
                    after=self._build_version(component, after),
                    changes=changes,
                )
            )

    async def _read_versions(
        self, kind: ComponentKind, component_id: str, before: int, limit: int
    ) -> list[VersionRow]:
        read = self.hosting.databases.system.read
        return await read(component_versions.list_page(kind, component_id, before, limit))

    async def _find_version(
        self,
        kind: ComponentKind,
        component_id: str,
        version: str | None,
        default: VersionRow | None,
    ) -> VersionRow:
        """Return a stored version; the default if the request names none.

        Raises:
            NotFound: there is none.
        """
        row = default
        if version is not None:
            work = component_versions.get(kind, component_id, version)
            row = await self.hosting.databases.system.read(work)
        if row is None:
            raise errors.NotFound("Version not found")
        return row

    def _build_version(self, component: Component, row: VersionRow) -> VersionRecord:
        catalog = self.hosting.catalog
        served_versions = [find_version(catalog, side) for side in catalog.list_sides(component)]
        return VersionRecord(
            version=row.version,
            first_seen_at=format_rfc3339(row.first_seen_at),
            is_current=row.version in served_versions,
            configuration=orjson.loads(row.configuration),
        )
