"""`agentctl audit heads` and `verify`, on a log that a server has signed."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from agentctl.cli.files import write_key_pair
from agentctl.service.operations import audit
from tests.cli.conftest import Agentctl
from tests.cli.local_project import CONFIG, in_database
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import Deployment
from tests.kit.threaded_server import serve_in_thread

TABLES = """
[authorization]
enabled = false
[audit]
key_file = "audit.pem"
heads_file = "heads.jwt"
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a project after its server has signed one session, and stopped."""
    folder = tmp_path_factory.mktemp("signed")
    config = folder / "agentctl.toml"
    config.write_text(TABLES + CONFIG)
    write_key_pair(folder / "audit.pem", "EdDSA")
    # Heads are signed after a second.
    with patch.object(audit, "HEAD_SECONDS", 1), serve_in_thread(Deployment(folder)) as server:
        (folder / "url").write_text(server.url)
        yield folder


@pytest.fixture
def copied(project: Path, agentctl: Agentctl) -> tuple[str, ...]:
    """Options for the public key and the copy of the heads, when the server has signed a change."""
    place = ("--config", str(project / "agentctl.toml"))
    ended = agentctl("runs", "start", "--agent", "echo", "-m", "hello", *place)
    assert ended.code == 0, ended.stderr
    heads = project / "heads.jwt"
    deadline = time.monotonic() + PATIENCE
    while True:
        listed = agentctl("audit", "heads", "-o", "json", *place)
        if heads.exists() and json.loads(listed.stdout)["data"]:
            return ("--key", str(project / "audit.pub.pem"), "--heads", str(heads))
        assert time.monotonic() < deadline, listed.stdout
        time.sleep(0.1)


def test_signed_log_is_verified(agentctl: Agentctl, project: Path, copied: tuple[str, ...]) -> None:
    place = ("--url", (project / "url").read_text())
    verified = agentctl("audit", "verify", *copied, *place, "-o", "json")
    assert verified.code == 0, verified.stderr
    report = json.loads(verified.stdout)
    assert (report["verified"], report["findings"]) == (True, [])
    assert report["entries"] >= 1
    shown = agentctl("audit", "heads", *place, "-o", "tsv")
    assert shown.lines[0].split("\t")[:3] == ["number", "at", "first_seq"]


def test_changed_log_and_export_are_reported(
    agentctl: Agentctl, project: Path, copied: tuple[str, ...], tmp_path: Path
) -> None:
    place = ("--config", str(project / "agentctl.toml"))
    export = tmp_path / "audit.jsonl"
    assert agentctl("audit", "export", "--to-file", str(export), *place).code == 0
    verified = agentctl("audit", "verify", "--export", str(export), *copied)
    assert verified.code == 0, verified.stderr
    export.write_text(export.read_text().replace("allowed", "denied"))
    changed = agentctl("audit", "verify", "--export", str(export), *copied)
    assert (changed.code, "ENTRIES_CHANGED" in changed.stderr) == (1, True)
    without_heads = agentctl("audit", "verify", "--export", str(export), *copied[:2])
    assert (without_heads.code, "needs --heads" in without_heads.stderr) == (2, True)
    with_server = agentctl("audit", "verify", "--export", str(export), *copied, *place)
    assert (with_server.code, "reads a file" in with_server.stderr) == (2, True)
    export.write_text("[]\n")
    refused = agentctl("audit", "verify", "--export", str(export), *copied)
    assert (refused.code, "is not an audit entry" in refused.stderr) == (2, True)

    folder = tmp_path / "copy"
    shutil.copytree(project, folder)
    in_database(folder / "agentctl.toml", "UPDATE audit_log SET principal = 'x' WHERE seq = 1")
    place = ("--config", str(folder / "agentctl.toml"))
    changed = agentctl("audit", "verify", *copied, *place)
    assert (changed.code, "ENTRIES_CHANGED: " in changed.stderr) == (1, True)
    in_database(folder / "agentctl.toml", "DELETE FROM audit_heads")
    cut = agentctl("audit", "verify", *copied, *place)
    assert (cut.code, "HEAD_UNKNOWN: " in cut.stderr) == (1, True)
    unsigned = agentctl("audit", "verify", *copied[:2], *place)
    assert (unsigned.code, "set [audit] key_file" in unsigned.stderr) == (1, True)


def test_key_of_another_algorithm_stops_the_server(agentctl: Agentctl, tmp_path: Path) -> None:
    config = tmp_path / "agentctl.toml"
    config.write_text(TABLES + CONFIG)
    write_key_pair(tmp_path / "audit.pem", "RS256")
    ended = agentctl("serve", "--config", str(config), "--port", "0")
    assert ended.code == 2
    assert f"key file {tmp_path / 'audit.pem'} is not a key for EdDSA" in ended.stderr
