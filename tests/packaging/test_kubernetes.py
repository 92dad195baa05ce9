"""The manifests for Kubernetes: valid, and with a configuration that the server reads."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from agentctl.cli.files import write_key_pair
from tests.kit.command import run_command
from tests.kit.process import base_environment
from tests.packaging.programs import PACKAGING, needs_packaging_mode

FOLDER = PACKAGING / "kubernetes"
VALIDATE = PACKAGING.parent / ".dist/bin/kubernetes-validate"


@needs_packaging_mode
@pytest.mark.parametrize("name", ["agentctl", "migrate", "schedule"])
def test_manifests_have_the_schema(name: str) -> None:
    if not VALIDATE.exists():
        pytest.skip("needs kubernetes-validate: make .dist/.installed")
    command = [str(VALIDATE), "--strict", str(FOLDER / f"{name}.yaml")]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_configuration_of_the_manifests_is_valid(tmp_path: Path) -> None:
    text = (FOLDER / "agentctl.yaml").read_text()
    found = re.search(r"  agentctl\.toml: \|\n((?:    .*\n|\n)+)", text)
    assert found is not None
    file = tmp_path / "agentctl.toml"
    keys = tmp_path / "keys"
    write_key_pair(keys / "signing.pem", "RS256")
    text = textwrap.dedent(found[1])
    assert "/etc/agentctl/keys" in text
    file.write_text(text.replace("/etc/agentctl/keys", str(keys)))
    words = ("config", "check", "--config", str(file))
    checked = run_command(*words, environment=base_environment(), folder=tmp_path)
    assert checked.code == 0, checked.stderr


def test_pods_have_time_to_drain() -> None:
    text = (FOLDER / "agentctl.yaml").read_text()

    def number(pattern: str) -> int:
        found = re.search(pattern, text)
        assert found is not None, pattern
        return int(found[1])

    grace = number(r"terminationGracePeriodSeconds: (\d+)")
    stop = number(r'command: \[sleep, "(\d+)"\]')
    assert grace > stop + number(r"drain_seconds = (\d+)") + 10
