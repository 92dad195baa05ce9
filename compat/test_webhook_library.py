"""Webhooks are verified by the library `standardwebhooks` for Node."""

from __future__ import annotations

import json
import subprocess

import pytest

from compat.servers import PEERS, ROOT
from tests.approvals.people import People
from tests.webhooks.conftest import OLD_SECRET, SECRET, hooked, people, receiver
from tests.webhooks.receiver import Receiver
from tests.webhooks.test_deliveries import wait_for_event

__all__ = ["hooked", "people", "receiver"]

PACKAGES = ROOT / ".peers" / "webhooks"

pytestmark = [
    pytest.mark.skipif(
        not PEERS or not (PACKAGES / "node_modules").exists(),
        reason="needs standardwebhooks of npm: make compat",
    )
]

SCRIPT = """
const { Webhook } = require("standardwebhooks");
const results = JSON.parse(require("fs").readFileSync(0)).map(({ secret, body, headers }) => {
  try {
    return new Webhook(secret).verify(body, headers).type;
  } catch (error) {
    return error.constructor.name;
  }
});
console.log(JSON.stringify(results));
"""


def test_library_for_node_verifies_and_rejects_a_changed_body(
    people: People, receiver: Receiver
) -> None:
    run = people.start("hello", agent="long")
    got = wait_for_event(receiver, run["run_id"], "run.completed")
    body = got.body.decode()
    tried = [
        {"secret": secret, "body": text, "headers": got.headers}
        for secret in (SECRET, OLD_SECRET)
        for text in (body, body.replace("COMPLETED", "CANCELLED"))
    ]
    done = subprocess.run(
        ["node", "-e", SCRIPT],
        input=json.dumps(tried),
        capture_output=True,
        text=True,
        cwd=PACKAGES,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == ["run.completed", "WebhookVerificationError"] * 2
