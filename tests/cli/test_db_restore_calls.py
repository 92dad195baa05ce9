"""Approved calls after `agentctl db restore`: a server makes none of them by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Agentctl
from tests.kit.conditions import wait_for
from tests.kit.process import base_environment, serve_config

CONFIG = """
[authorization]
enabled = false

[[databases]]
id = "main"
url = "sqlite:///agentctl.db"

[[models]]
id = "tool"
provider = "demo"
model = "tool"

[[models]]
id = "echo"
provider = "demo"
model = "echo"

[[agents]]
id = "echo"
model = "echo"

[[agents]]
id = "clerk"
model = "tool"
tools = ["shop:refund"]
approve = { refund = "user" }
"""

SHOP = '''
import time
from pathlib import Path

HERE = Path(__file__).parent


def refund() -> str:
    """Pay back."""
    with (HERE / "ledger").open("a") as ledger:
        ledger.write("paid\\n")
    while (HERE / "bank-is-slow").exists():
        time.sleep(0.02)
    return "paid back"
'''


@pytest.mark.parametrize("moment", ["before the call", "during the call"])
def test_restored_approved_call_is_not_made_by_itself(
    agentctl: Agentctl, tmp_path: Path, moment: str
) -> None:
    config, ledger, slow = (tmp_path / name for name in ("agentctl.toml", "ledger", "bank-is-slow"))
    config.write_text(CONFIG)
    (tmp_path / "shop.py").write_text(SHOP)
    ledger.touch()
    where = ("--config", str(config))
    backup = tmp_path / "backup.db"
    environment = base_environment() | {"HOME": str(tmp_path)}
    assert agentctl("db", "migrate", *where).code == 0
    start = ("runs", "start", "--agent", "clerk", "-m", "refund", "--session", "s1")
    assert agentctl(*start, *where).code == 9
    [run_id] = agentctl("runs", "list", "--session", "s1", "-o", "name", *where).lines
    [approval] = agentctl("approvals", "list", "--session", "s1", "-o", "name", *where).lines
    approve = ("approvals", "approve", approval, "--yes", *where)
    made = 0
    if moment == "before the call":
        assert agentctl(*approve).code == 0
        assert agentctl("db", "backup", str(backup), *where).code == 0
    else:
        slow.touch()
        with serve_config(config, environment=environment) as server:
            assert agentctl(*approve).code == 0
            wait_for(lambda: ledger.read_text() == "paid\n")
            made = 1
            assert agentctl("db", "backup", str(backup), *where).code == 0
            refused = agentctl("db", "restore", str(backup), "--replace", *where)
            assert refused.code == 6
            assert "a process works with the database" in refused.stderr
            server.process.kill()
            server.process.wait()
    slow.unlink(missing_ok=True)

    ended = agentctl("db", "restore", str(backup), "--replace", "-o", "json", *where)
    assert ended.code == 0, ended.stderr
    assert json.loads(ended.stdout)["unknown_calls"] == 1
    with serve_config(config, environment=environment) as server:
        url = ("--url", server.url)
        assert agentctl("runs", "start", "--agent", "echo", "-m", "it works", *url).code == 0
        run = json.loads(agentctl("runs", "get", run_id, "-o", "json", *url).stdout)
        assert (run["status"], run["error"]["code"]) == ("ERROR", "WORKER_LOST")
        listed = agentctl("approvals", "list", "--execution", "unknown", "-o", "name", *url)
        assert listed.lines == [approval]
        again = agentctl("approvals", "approve", approval, "--yes", *url)
        assert again.code != 0, again.stdout
    assert ledger.read_text().splitlines() == ["paid"] * made
