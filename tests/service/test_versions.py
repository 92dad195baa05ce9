"""Versions in records, lists and usage, and the differences of two configurations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentctl.auth.principal import Principal
from agentctl.errors import Forbidden, NotFound, ValidationFailed
from agentctl.interface.requests import DiffFilter, RunFilter, RunRequest, VersionFilter
from agentctl.interface.requests.administration import OverviewFilter, UsageFilter
from agentctl.records.kinds import ComponentKind
from agentctl.service.service import Service
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.service.callers import admin, open_service, user

TERSE = 'instructions = "Be terse."'
WORDY = 'instructions = "Use many words."'

EXTRA = f"""
[[agents]]
id = "writer"
model = "echo"
{TERSE}

[[teams]]
id = "writers"
model = "delegate"
members = ["writer"]

[[workflows]]
id = "writing"
steps = [{{ name = "only", agent = "writer" }}]
"""

STARTED: tuple[tuple[ComponentKind, str], ...] = (
    ("agent", "writer"), ("team", "writers"), ("workflow", "writing"),
)  # fmt: skip


@pytest.fixture
def world(
    tmp_path: Path, model_endpoint: ModelEndpoint, databases: Mapping[str, str]
) -> Deployment:
    url = model_endpoint.base_url
    return create_deployment(tmp_path, url, extra=EXTRA, databases=databases)


def reconfigure(deployment: Deployment, old: str, new: str) -> None:
    text = deployment.path.read_text()
    assert old in text
    deployment.path.write_text(text.replace(old, new))


async def run_all(service: Service) -> dict[str, dict[str, Any]]:
    """Run each component once, and return their records by id."""
    records = {}
    for kind, name in STARTED:
        document: Any = await user(service).runs.create(kind, name, RunRequest("hello"))
        records[name] = document.value
    return records


async def list_versions(service: Service, kind: ComponentKind, name: str) -> list[dict[str, Any]]:
    document: Any = await user(service).components.list_versions(kind, name, VersionFilter())
    return list(document.value["data"])


async def read_runs(service: Service, version: str) -> list[dict[str, Any]]:
    wanted = RunFilter(version=version, created_after=0)
    document: Any = await admin(service).runs.list(wanted)
    return list(document.value["data"])


async def test_records_lists_and_usage_have_the_version_that_answered(world: Deployment) -> None:
    versions: list[dict[str, str]] = []
    for configuration in (TERSE, WORDY):
        if configuration is WORDY:
            reconfigure(world, TERSE, WORDY)
        async with open_service(world) as service:
            await service.prepare()
            records = await run_all(service)
            versions.append({name: record["version"] for name, record in records.items()})
            for kind, name in STARTED:
                newest, *_ = await list_versions(service, kind, name)
                assert (newest["version"], newest["is_current"]) == (versions[-1][name], True)

    before, after = versions
    assert not {*before.values()} & {*after.values()}
    async with open_service(world) as service:
        await service.hosting.sums.add_ended_runs()
        for kind, name in STARTED:
            listed = [each["version"] for each in await list_versions(service, kind, name)]
            assert listed == [after[name], before[name]]
            runs = await read_runs(service, before[name])
            assert {run["version"] for run in runs} == {before[name]}
            assert {run.get(f"{kind}_id") for run in runs} == {name}
        # The run of a member has the version of the member.
        members = await read_runs(service, after["writer"])
        assert sorted(run["parent_run_id"] is None for run in members) == [False, False, True]

        report: Any = await admin(service).usage.get(UsageFilter(by=("component", "version")))
        runs = {(row["component_id"], row["version"]): row["runs"] for row in report.value["data"]}
        assert runs == {(name, each[name]): 1 for name in before for each in versions}
        only: Any = await admin(service).usage.get(UsageFilter(by=(), version=after["writer"]))
        assert (only.value["total"]["runs"], only.value["total"]["member_runs"]) == (1, 2)
        wanted = OverviewFilter(by="version", component_id="writer", component_type="agent")
        overview: Any = (await admin(service).usage.get_overview(wanted)).value
        assert {row["version"] for row in overview["data"]} == {before["writer"], after["writer"]}
        assert overview["total"]["runs"] == 2


async def test_diff_shows_what_changed(world: Deployment) -> None:
    async with open_service(world) as service:
        await service.prepare()
        (first,) = await list_versions(service, "agent", "writer")
        alone: Any = await user(service).components.compare_versions(
            "agent", "writer", DiffFilter()
        )
        assert alone.value["changes"] == []
    reconfigure(world, TERSE, WORDY + "\nsettings = { temperature = 0.1 }")
    async with open_service(world) as service:
        await service.prepare()
        operations = user(service)
        diff: Any = (
            await operations.components.compare_versions("agent", "writer", DiffFilter())
        ).value
        assert diff["before"] == {**first, "is_current": False}
        assert diff["changes"] == [
            {"path": "instructions", "before": "Be terse.", "after": "Use many words."},
            {"path": "settings", "before": None, "after": {"temperature": 0.1}},
        ]
        back = DiffFilter(diff["after"]["version"], first["version"])
        reverse: Any = (await operations.components.compare_versions("agent", "writer", back)).value
        assert [change["after"] for change in reverse["changes"]] == ["Be terse.", None]
        team: Any = (
            await operations.components.compare_versions("team", "writers", DiffFilter())
        ).value
        assert [change["path"] for change in team["changes"]] == ["members.writer.version"]
        with pytest.raises(NotFound):
            await operations.components.compare_versions("agent", "writer", DiffFilter("absent"))
        with pytest.raises(NotFound):
            await operations.components.list_versions("agent", "absent", VersionFilter())


async def test_versions_are_paged_from_the_newest(world: Deployment) -> None:
    texts = [TERSE, WORDY, 'instructions = "Be exact."']
    for number in range(3):
        if number:
            reconfigure(world, texts[number - 1], texts[number])
        async with open_service(world) as service:
            await service.prepare()
            whole = [each["version"] for each in await list_versions(service, "agent", "writer")]
            assert len(whole) == number + 1
    async with open_service(world) as service:
        found = list[str]()
        cursor = None
        for _ in whole:
            part = VersionFilter(limit=1, cursor=cursor)
            page: Any = (
                await user(service).components.list_versions("agent", "writer", part)
            ).value
            found += [each["version"] for each in page["data"]]
            cursor = page["meta"]["next_cursor"]
        assert (found, cursor) == (whole, None)


async def test_command_stores_the_version_of_its_run(world: Deployment) -> None:
    async with open_service(world) as service:
        records = await run_all(service)
        for kind, name in STARTED:
            (only,) = await list_versions(service, kind, name)
            assert only["version"] == records[name]["version"]


async def test_versions_of_users_are_not_counted(world: Deployment) -> None:
    async with open_service(world) as service:
        own = service.operations_for(Principal("me", scopes=frozenset({"usage:read"})))
        for operations, wanted in (
            (own, UsageFilter(version="x")),
            (own, UsageFilter(by=("version",))),
            (admin(service), UsageFilter(by=("user", "version"))),
            (admin(service), UsageFilter(by=("version",), user_id="me")),
        ):
            with pytest.raises(ValidationFailed, match="version counts"):
                await operations.usage.get(wanted)
        with pytest.raises(ValidationFailed, match="version needs created_after"):
            await admin(service).runs.list(RunFilter(version="x"))
        with pytest.raises(Forbidden):
            await own.components.list_versions("agent", "writer", VersionFilter())
