"""Approved calls after `agentctl db restore`: a server makes none of them by itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import Agentctl
from tests.kit.command import Result
from tests.kit.conditions import wait_for
from tests.kit.deployment import Deployment
from tests.kit.process import base_environment, serve_config
from tests.kit.threaded_server import serve_in_thread

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


@dataclass(frozen=True)
class ApprovedRefund:
    """A project whose run waits for the approval of a refund, and its commands."""

    agentctl: Agentctl
    config: Path

    run_id: str
    approval_id: str

    @property
    def backup(self) -> Path:
        return self.config.with_name("backup.db")

    @property
    def slow(self) -> Path:
        """While this file exists, a refund does not return."""
        return self.config.with_name("bank-is-slow")

    def run(self, *words: str) -> Result:
        return self.agentctl(*words, "--config", str(self.config))

    def list_refunds(self) -> list[str]:
        return self.config.with_name("ledger").read_text().splitlines()

    def restore(self) -> None:
        """Restore the backup, which reports one call whose outcome is not known."""
        ended = self.run("db", "restore", str(self.backup), "--replace", "-o", "json")
        assert ended.code == 0, ended.stderr
        assert json.loads(ended.stdout)["unknown_calls"] == 1

    def check_lost(self) -> None:
        """Check on a new server that nothing goes on, also not after a second approval."""
        with serve_in_thread(Deployment(self.config.parent)) as server:
            url = ("--url", server.url)
            # The server has had time for all that is due: it executes a later run.
            later = self.agentctl("runs", "start", "--agent", "echo", "-m", "it works", *url)
            assert later.code == 0

            run = json.loads(self.agentctl("runs", "get", self.run_id, "-o", "json", *url).stdout)
            assert (run["status"], run["error"]["code"]) == ("ERROR", "WORKER_LOST")
            unknown = ("approvals", "list", "--execution", "unknown", "-o", "name")
            assert self.agentctl(*unknown, *url).lines == [self.approval_id]
            again = self.agentctl("approvals", "approve", self.approval_id, "--yes", *url)
            assert again.code != 0, again.stdout


@pytest.fixture
def refund(agentctl: Agentctl, tmp_path: Path) -> ApprovedRefund:
    config = tmp_path / "agentctl.toml"
    config.write_text(CONFIG)
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "ledger").touch()
    where = ("--config", str(config))
    assert agentctl("db", "migrate", *where).code == 0
    start = ("runs", "start", "--agent", "clerk", "-m", "refund", "--session", "s1")
    assert agentctl(*start, *where).code == 9
    (run_id,) = agentctl("runs", "list", "--session", "s1", "-o", "name", *where).lines
    (approval_id,) = agentctl("approvals", "list", "--session", "s1", "-o", "name", *where).lines
    return ApprovedRefund(agentctl, config, run_id, approval_id)


def test_call_that_was_approved_before_a_backup_is_not_made(refund: ApprovedRefund) -> None:
    assert refund.run("approvals", "approve", refund.approval_id, "--yes").code == 0
    assert refund.run("db", "backup", str(refund.backup)).code == 0

    refund.restore()

    refund.check_lost()
    assert refund.list_refunds() == []


def test_call_that_was_being_made_at_a_backup_is_not_made_again(refund: ApprovedRefund) -> None:
    refund.slow.touch()
    environment = base_environment() | {"HOME": str(refund.config.parent)}
    with serve_config(refund.config, environment=environment) as server:
        assert refund.run("approvals", "approve", refund.approval_id, "--yes").code == 0
        wait_for(lambda: refund.list_refunds() == ["paid"])
        assert refund.run("db", "backup", str(refund.backup)).code == 0

        refused = refund.run("db", "restore", str(refund.backup), "--replace")
        assert refused.code == 6
        assert "a process works with the database" in refused.stderr

        server.process.kill()
        server.process.wait()
    refund.slow.unlink()

    refund.restore()

    refund.check_lost()
    assert refund.list_refunds() == ["paid"]
