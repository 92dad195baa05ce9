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
from tests.kit.service import admin, open_service, user

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


async def run_under_two_configurations(world: Deployment) -> tuple[dict[str, str], dict[str, str]]:
    """Run each component before and after a change; return its versions by id, of both times."""
    before = await run_as_newest_versions(world)
    reconfigure(world, TERSE, WORDY)
    after = await run_as_newest_versions(world)
    return before, after


async def run_as_newest_versions(world: Deployment) -> dict[str, str]:
    """Run each component; return the versions of the runs, which are the newest of the lists."""
    async with open_service(world) as service:
        await service.prepare()
        records = await run_all(service)
        versions = {name: record["version"] for name, record in records.items()}
        for kind, name in STARTED:
            newest, *_ = await list_versions(service, kind, name)
            assert (newest["version"], newest["is_current"]) == (versions[name], True)
    return versions


async def test_records_lists_and_usage_have_the_version_that_answered(world: Deployment) -> None:
    before, after = await run_under_two_configurations(world)

    # The instructions of the writer also change the version of what contains the writer.
    assert not {*before.values()} & {*after.values()}
    async with open_service(world) as service:
        for kind, name in STARTED:
            listed = [row["version"] for row in await list_versions(service, kind, name)]
            assert listed == [after[name], before[name]]
            runs = await read_runs(service, before[name])
            assert {run["version"] for run in runs} == {before[name]}
            assert {run.get(f"{kind}_id") for run in runs} == {name}

        # The run of a member has the version of the member.
        members = await read_runs(service, after["writer"])
        assert sorted(run["parent_run_id"] is None for run in members) == [False, False, True]

        await service.hosting.sums.add_ended_runs()
        usage = admin(service).usage
        report: Any = await usage.get(UsageFilter(by=("component", "version")))
        runs = {(row["component_id"], row["version"]): row["runs"] for row in report.value["data"]}
        assert runs == {(name, each[name]): 1 for name in before for each in (before, after)}

        only: Any = await usage.get(UsageFilter(by=(), version=after["writer"]))
        assert (only.value["total"]["runs"], only.value["total"]["member_runs"]) == (1, 2)

        wanted = OverviewFilter(by="version", component_id="writer", component_type="agent")
        overview: Any = (await usage.get_overview(wanted)).value
        assert {row["version"] for row in overview["data"]} == {before["writer"], after["writer"]}
        assert overview["total"]["runs"] == 2


async def compare(
    service: Service,
    kind: ComponentKind,
    name: str,
    before: str | None = None,
    after: str | None = None,
) -> dict[str, Any]:
    """Return the changes between two versions, by default between the last two."""
    wanted = DiffFilter(before, after)
    document: Any = await user(service).components.compare_versions(kind, name, wanted)
    return dict(document.value)


async def test_diff_shows_what_changed(world: Deployment) -> None:
    async with open_service(world) as service:
        await service.prepare()
        (first,) = await list_versions(service, "agent", "writer")
        alone = await compare(service, "agent", "writer")

    reconfigure(world, TERSE, WORDY + "\nsettings = { temperature = 0.1 }")
    async with open_service(world) as service:
        await service.prepare()
        diff = await compare(service, "agent", "writer")
        newer = diff["after"]["version"]
        reverse = await compare(service, "agent", "writer", newer, first["version"])
        team = await compare(service, "team", "writers")

    assert alone["changes"] == []
    assert diff["before"] == {**first, "is_current": False}
    assert diff["changes"] == [
        {"path": "instructions", "before": "Be terse.", "after": "Use many words."},
        {"path": "settings", "before": None, "after": {"temperature": 0.1}},
    ]
    assert [change["after"] for change in reverse["changes"]] == ["Be terse.", None]
    # A team names the versions of its members, and not what changed in them.
    assert [change["path"] for change in team["changes"]] == ["members.writer.version"]


async def test_absent_versions_and_components_are_not_found(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        await service.prepare()
        with pytest.raises(NotFound):
            await compare(service, "agent", "echo", "absent")
        with pytest.raises(NotFound):
            await list_versions(service, "agent", "absent")


async def test_versions_are_paged_from_the_newest(world: Deployment) -> None:
    texts = [TERSE, WORDY, 'instructions = "Be exact."']
    for number in range(3):
        if number:
            reconfigure(world, texts[number - 1], texts[number])
        async with open_service(world) as service:
            await service.prepare()
            whole = [row["version"] for row in await list_versions(service, "agent", "writer")]
            assert len(whole) == number + 1

    pages = list[str]()
    cursor = None
    async with open_service(world) as service:
        components = user(service).components
        for _ in whole:
            wanted = VersionFilter(limit=1, cursor=cursor)
            page: Any = (await components.list_versions("agent", "writer", wanted)).value
            pages += [row["version"] for row in page["data"]]
            cursor = page["meta"]["next_cursor"]

    assert (pages, cursor) == (whole, None)


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
