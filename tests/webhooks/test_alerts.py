"""The receiver of `docs/examples/alerts` sends each event once as a mail and to a chat."""

from __future__ import annotations

import json
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from agentctl.webhooks.signing import generate_secret
from tests.kit.command import run_command
from tests.kit.conditions import wait_for
from tests.kit.ports import find_free_port, wait_for_port
from tests.kit.process import base_environment, serve_config
from tests.webhooks.receiver import Receiver, start_receiver

PROGRAM = Path(__file__).parents[2] / "docs" / "examples" / "alerts" / "alerts.py"

CONFIG = """
[[agents]]
id = "broken"
object = "breaking:fail"

[[webhooks]]
id = "ops"
url = "http://127.0.0.1:{port}/"
events = ["run.failed"]
secret_env = "OPS_WEBHOOK_SECRET"
allow_private = true
"""


@contextmanager
def start_mail_server() -> Iterator[tuple[int, list[str]]]:
    """Receive mails on a free port of the loopback address; yield the port and the mails."""
    mails = list[str]()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 mail\r\n")
            while line := self.rfile.readline():
                verb = line[:4].upper()
                if verb == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    mails.append(b"".join(iter(self.rfile.readline, b".\r\n")).decode())
                self.wfile.write(b"221 bye\r\n" if verb == b"QUIT" else b"250 ok\r\n")
                if verb == b"QUIT":
                    return

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], mails
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def mail() -> Iterator[tuple[int, list[str]]]:
    with start_mail_server() as started:
        yield started


@pytest.fixture
def chat() -> Iterator[Receiver]:
    with start_receiver() as started:
        yield started


def test_failed_run_is_one_mail_and_one_message(
    tmp_path: Path, mail: tuple[int, list[str]], chat: Receiver
) -> None:
    mail_port, mails = mail
    port = find_free_port()
    secret = generate_secret()
    environment = {
        **base_environment(),
        "OPS_WEBHOOK_SECRET": secret,
        "ALERT_MAIL": "ops@example.org",
        "ALERT_SMTP": f"127.0.0.1:{mail_port}",
        "ALERT_CHAT": f"{chat.url}/hook",
        "ALERT_PORT": str(port),
    }
    made = run_command("init", "office", environment=environment, folder=tmp_path)
    assert made.code == 0, made.stderr
    config = tmp_path / "office" / "agentctl.toml"
    config.write_text(config.read_text() + CONFIG.format(port=port))
    (tmp_path / "office" / "breaking.py").write_text(
        "def fail(message: str) -> str:\n    raise RuntimeError('the shop is closed')\n"
    )

    def agentctl(*words: str, **more: str) -> str:
        done = run_command(*words, environment=environment | more, folder=config.parent)
        assert done.code in (0, 8), done.stderr
        return done.stdout

    receiver = subprocess.Popen(
        [sys.executable, str(PROGRAM)], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        wait_for_port(port, receiver)
        with serve_config(config, environment=environment) as server:
            token = agentctl("token", "mint", "--sub", "ann", "--scope", "user").strip()
            start = ("runs", "start", "--agent", "broken", "--message", "hi")
            run_command(
                *start,
                "--url",
                server.url,
                folder=config.parent,
                environment=environment | {"AGENTCTL_TOKEN": token},
            )
            wait_for(lambda: mails and chat.requests)

            # It is delivered again, and recognized by its id.
            (delivery,) = json.loads(agentctl("webhooks", "deliveries", "-o", "json"))["data"]
            agentctl("webhooks", "redeliver", delivery["delivery_id"])

            def find_state() -> bool:
                listed = json.loads(agentctl("webhooks", "deliveries", "-o", "json"))["data"]
                return bool(listed[0]["state"] == "delivered")

            wait_for(find_state)
        forged = httpx2.post(f"http://127.0.0.1:{port}/", content=b"{}")
    finally:
        receiver.kill()
        receiver.wait()
    assert forged.status_code == 401
    assert len(mails) == len(chat.requests) == 1
    assert "Subject: agentctl: run.failed" in mails[0]
    assert "To: ops@example.org" in mails[0]
    for text in (mails[0].replace("\r", ""), chat.requests[0].event["text"]):
        assert "component_id: broken\nuser_id: ann\nerror_code: AGENT_FAILED" in text
