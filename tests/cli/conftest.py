"""The command line as it is used: real processes, no terminal, nobody's home directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

TIMEOUT = 60


@dataclass(frozen=True)
class Finished:
    """A command that ended: its exit code, and what it wrote, as text and as bytes."""

    code: int
    stdout: str
    stderr: str
    raw: bytes

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()


class Agentctl(Protocol):
    def __call__(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        input: str | bytes | None = None,
        cwd: Path | None = None,
    ) -> Finished: ...


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home directory; commands run in it unless told otherwise."""
    path = tmp_path / "home"
    path.mkdir()
    return path


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    """A scrubbed environment: nothing of ours, no colors, everything of a user under `home`."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    return kept | {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "XDG_STATE_HOME": str(home / ".local/state"),
        "NO_COLOR": "1",
        "TERM": "dumb",
        "COLUMNS": "100",
        "USER": "tester",
        "LOGNAME": "tester",
        "PYTHONWARNINGS": "error",
    }


@pytest.fixture
def agentctl(environment: dict[str, str], home: Path) -> Agentctl:
    """Run `agentctl ARGS` to its end, without a terminal, with nothing on stdin by default."""

    def run(
        *args: str,
        env: Mapping[str, str] | None = None,
        input: str | bytes | None = None,
        cwd: Path | None = None,
    ) -> Finished:
        ended = subprocess.run(
            [sys.executable, "-m", "agentctl", *args],
            env=environment | dict(env or {}),
            input=input.encode() if isinstance(input, str) else input or b"",
            capture_output=True,
            cwd=cwd or home,
            timeout=TIMEOUT,
            check=False,
        )
        out, err = ended.stdout.decode(), ended.stderr.decode()
        assert "Traceback" not in err, err
        return Finished(ended.returncode, out, err, ended.stdout)

    return run
