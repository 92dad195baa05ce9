"""The workflows run the layers of the suite: at each change, each night and each week."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.run import SHARDS

ROOT = Path(__file__).parents[2]

_TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)


def read_jobs(name: str) -> Mapping[str, Any]:
    """Return the jobs of a workflow by name."""
    text = (ROOT / ".github" / "workflows" / name).read_text()
    jobs: dict[str, Any] = yaml.safe_load(text)["jobs"]
    return jobs


def list_targets(job: Mapping[str, Any]) -> list[str]:
    """Return the targets of make that the steps of a job build."""
    lines = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
    commands = [line.split() for line in lines if line.startswith("make ")]
    words = [word for command in commands for word in command[1:]]
    return [word for word in words if re.fullmatch("[a-z-]+", word)]


def read_project() -> Mapping[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def test_each_change_runs_the_layers_with_every_supported_python() -> None:
    project = read_project()
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert project["requires-python"] == f">={versions[0]}"

    # The oldest one runs all layers, and each later one the fast layer.
    jobs = read_jobs("ci.yml")
    assert list_targets(jobs["lint"]) == ["lint"]
    assert list_targets(jobs["test"]) == ["test"]
    assert jobs["test"]["steps"][1]["with"]["python-version"] == versions[0]
    assert list_targets(jobs["coverage"]) == ["coverage"]
    assert list_targets(jobs["check"]) == ["check"]
    assert jobs["check"]["strategy"]["matrix"]["python"] == versions[1:]


def test_each_night_runs_every_shard_of_the_long_tests() -> None:
    job = read_jobs("ci.yml")["long"]
    assert job["strategy"]["matrix"]["shard"] == list(range(1, SHARDS + 1))
    assert job["strategy"]["fail-fast"] is False
    assert job["steps"][-1]["run"] == "make test-long SHARD=${{ matrix.shard }} PYTHON=python"


def test_each_week_runs_what_takes_longer() -> None:
    jobs = read_jobs("weekly.yml")
    assert {name: list_targets(job) for name, job in jobs.items()} == {
        "compat": ["compat"],
        "bench": ["test-bench", "bench-quick"],
        "coverage": ["coverage"],
        "random-order": ["test"],
        "lowest": ["test-lowest"],
        "newest-python": ["check"],
        "packaging": ["test-packaging"],
        "machines": ["demo", "check"],
        "macos": ["demo", "check"],
    }
    assert "SEED=${{ github.run_number }}" in jobs["random-order"]["steps"][-1]["run"]


def test_release_attests_every_file_and_the_image() -> None:
    jobs = read_jobs("release.yml")
    attested = {
        name: [step["uses"].partition("@")[0] for step in job["steps"] if "attest" in str(step)]
        for name, job in jobs.items()
    }
    assert attested["build"] == ["actions/attest-build-provenance", "actions/attest-sbom"]
    assert "actions/attest-build-provenance" in attested["image"]
    assert attested["publish"] == ["pypa/gh-action-pypi-publish"]

    # An attestation is signed with the identity of the workflow, which only these jobs may ask for.
    signing = {name for name, job in jobs.items() if "id-token" in job["permissions"]}
    assert signing == {"build", "image", "publish"}
    assert list_targets(jobs["build"]) == ["dist", "dist"]


def test_targets_of_the_workflows_are_in_the_makefile() -> None:
    targets = set(_TARGET.findall((ROOT / "Makefile").read_text()))
    names = [path.name for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    jobs = [job for name in names for job in read_jobs(name).values()]
    assert len(jobs) > 10
    assert {target for job in jobs for target in list_targets(job)} <= targets


def test_page_on_systems_names_jobs_of_the_workflows() -> None:
    text = (ROOT / "docs/internals/machines.md").read_text()
    rows = re.findall(r"^\|.*\|(.*)\|$", text, re.MULTILINE)
    named = {name.strip() for row in rows[2:] for name in row.split(",")}
    assert len(named) > 5
    assert named <= {*read_jobs("ci.yml"), *read_jobs("weekly.yml")}
