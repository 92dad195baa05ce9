"""The program of the last release: its source, from the commit in packaging/releases.toml."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.deployment import Deployment
from tests.kit.process import AGENTCTL, base_environment

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Program:
    """A version of agentctl: its command, and the variables that its processes need."""

    command: Sequence[str]
    variables: Mapping[str, str]

    def run(self, deployment: Deployment, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end on the configuration of a deployment."""
        return subprocess.run(
            [*self.command, *arguments, "--config", str(deployment.path)],
            env=base_environment() | self.variables,
            capture_output=True,
            text=True,
            check=False,
        )


NEW = Program(AGENTCTL, {})


def read_last_release() -> dict[str, Any]:
    text = (ROOT / "packaging" / "releases.toml").read_text()
    releases = tomllib.loads(text)["releases"]
    return max(releases, key=lambda release: tuple(map(int, release["version"].split("."))))


def extract_last_release(folder: Path) -> Path | None:
    """Write the source of the last release into a new folder `source`.

    Returns:
        The folder; None in a clone without the commit.
    """
    commit = read_last_release()["commit"]
    git = ["git", "-C", str(ROOT)]
    known = subprocess.run([*git, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True)
    if known.returncode != 0:
        return None
    archive = folder / "source.tar"
    subprocess.run([*git, "archive", "--output", str(archive), commit], check=True)
    with tarfile.open(archive) as content:
        content.extractall(folder / "source", filter="data")
    return folder / "source"


def build_program(source: Path) -> Program:
    """Return the program of a source folder, in the environment of the tests."""
    return Program((sys.executable, "-P", "-m", "agentctl"), {"PYTHONPATH": str(source)})
