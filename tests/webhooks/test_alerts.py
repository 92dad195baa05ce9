"""The receiver of `docs/examples/alerts` sends each event once as a mail and to a chat."""

from __future__ import annotations

import json
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


AGENT = """
def fail(message: str) -> str:
    raise RuntimeError("the shop is closed")
"""


@dataclass
class Office:
    """A configuration of `agentctl init` with an agent that fails, and a webhook for its runs.

    Attributes:
        config: its file.
        environment: the variables of its commands and of the receiver of the example.
        port: the port of that receiver.
    """

    config: Path
    environment: dict[str, str]
    port: int

    def run(self, *words: str, **variables: str) -> str:
        """Run a command, which may wait for a run that fails; return what it prints."""
        done = run_command(
            *words, environment=self.environment | variables, folder=self.config.parent
        )
        assert done.code in (0, 8), done.stderr
        return done.stdout

    def start_failing_run(self, url: str) -> None:
        token = self.run("token", "mint", "--sub", "ann", "--scope", "user").strip()
        start = ("runs", "start", "--agent", "broken", "--message", "hi", "--url", url)
        environment = self.environment | {"AGENTCTL_TOKEN": token}
        run_command(*start, environment=environment, folder=self.config.parent)

    def find_delivery(self) -> dict[str, str]:
        (delivery,) = json.loads(self.run("webhooks", "deliveries", "-o", "json"))["data"]
        return dict(delivery)

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Run the receiver of the example within the block."""
        receiver = subprocess.Popen(
            [sys.executable, str(PROGRAM)], env=self.environment, stderr=subprocess.DEVNULL
        )
        try:
            wait_for_port(self.port, receiver)
            yield
        finally:
            receiver.kill()
            receiver.wait()


@pytest.fixture
def office(tmp_path: Path, mail: tuple[int, list[str]], chat: Receiver) -> Office:
    port = find_free_port()
    environment = {
        **base_environment(),
        "OPS_WEBHOOK_SECRET": generate_secret(),
        "ALERT_MAIL": "ops@example.org",
        "ALERT_SMTP": f"127.0.0.1:{mail[0]}",
        "ALERT_CHAT": f"{chat.url}/hook",
        "ALERT_PORT": str(port),
    }
    made = run_command("init", "office", environment=environment, folder=tmp_path)
    assert made.code == 0, made.stderr
    config = tmp_path / "office" / "agentctl.toml"
    config.write_text(config.read_text() + CONFIG.format(port=port))
    (tmp_path / "office" / "breaking.py").write_text(AGENT)
    return Office(config, environment, port)


def test_failed_run_is_one_mail_and_one_message(
    office: Office, mail: tuple[int, list[str]], chat: Receiver
) -> None:
    _, mails = mail
    with office.receiving():
        with serve_config(office.config, environment=office.environment) as server:
            office.start_failing_run(server.url)
            wait_for(lambda: mails and chat.requests)

            # It is delivered again, and recognized by its id.
            delivery = office.find_delivery()
            office.run("webhooks", "redeliver", delivery["delivery_id"])
            wait_for(lambda: office.find_delivery()["state"] == "delivered")

        forged = httpx2.post(f"http://127.0.0.1:{office.port}/", content=b"{}")
    assert forged.status_code == 401
    assert len(mails) == len(chat.requests) == 1
    assert "Subject: agentctl: run.failed" in mails[0]
    assert "To: ops@example.org" in mails[0]
    for text in (mails[0].replace("\r", ""), chat.requests[0].event["text"]):
        assert "component_id: broken\nuser_id: ann\nerror_code: AGENT_FAILED" in text
