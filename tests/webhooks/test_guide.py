"""The receiver of the guide and the commands work as on the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from agentctl.webhooks.signing import generate_secret
from tests.kit.command import Result, run_command
from tests.kit.ports import find_free_port, wait_for_port
from tests.kit.process import base_environment

PAGE = Path(__file__).parents[2] / "docs" / "webhooks.md"

CONFIG = """
[[webhooks]]
id = "ops"
url = "http://127.0.0.1:{port}/"
events = ["run.failed"]
secret_env = "OPS_WEBHOOK_SECRET"
allow_private = true
"""


def run(folder: Path, secret: str, *words: str) -> Result:
    """Run a command with the configuration of a folder."""
    environment = {**base_environment(), "OPS_WEBHOOK_SECRET": secret}
    place = ("--config", str(folder / "agentctl.toml"))
    return run_command(*words, *place, environment=environment, folder=folder)


def test_receiver_of_the_guide_accepts_signed_events_only(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    port = find_free_port()
    program = tmp_path / "receiver.py"
    program.write_text(found[1].replace("8080", str(port)))
    assert len([line for line in found[1].splitlines() if line.strip()]) <= 20
    config = tmp_path / "agentctl.toml"
    config.write_text(CONFIG.format(port=port))
    secret = generate_secret()
    receiver = subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**base_environment(), "OPS_WEBHOOK_SECRET": secret},
    )
    try:
        wait_for_port(port, receiver)
        sent = run(tmp_path, secret, "webhooks", "test", "ops")
        assert sent.code == 0, sent.stderr
        assert "webhook ops accepted the event" in sent.stderr
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "webhook.test {'webhook_id': 'ops'}\n"
        refused = run(tmp_path, generate_secret(), "webhooks", "test", "ops")
        assert refused.code == 7
        assert "the server responds with 401" in refused.stderr
    finally:
        receiver.kill()
        receiver.communicate()


def test_commands_list_and_repeat_deliveries(tmp_path: Path) -> None:
    config = tmp_path / "agentctl.toml"
    config.write_text(CONFIG.format(port=1))
    secret = generate_secret()
    assert run(tmp_path, secret, "db", "migrate").code == 0
    listed = run(tmp_path, secret, "webhooks", "list", "-o", "tsv")
    assert listed.stdout.splitlines()[1].startswith("ops\thttp://127.0.0.1:1\trun.failed")
    assert run(tmp_path, secret, "webhooks", "deliveries", "--state", "dead").code == 0
    done = run(tmp_path, secret, "webhooks", "redeliver", "--dead", "--since", "2h")
    assert (done.code, "deliveries to make again: 0" in done.stderr) == (0, True)
    assert run(tmp_path, secret, "webhooks", "redeliver").code == 2
    assert run(tmp_path, secret, "webhooks", "redeliver", "none").code == 5
    assert run(tmp_path, secret, "webhooks", "enable", "ops").code == 0
    printed = run_command("webhooks", "secret", environment=base_environment(), folder=tmp_path)
    assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{43}=\n", printed.stdout)


def test_doctor_names_a_missing_secret(tmp_path: Path) -> None:
    config = tmp_path / "agentctl.toml"
    config.write_text(CONFIG.format(port=1))
    found = run(tmp_path, "", "doctor")
    assert "webhooks.ops.secret_env: OPS_WEBHOOK_SECRET is not set" in found.stdout + found.stderr
