"""The first hour of a stranger with an identity provider: `python -m tests.identity.first_hour`.

It begins in an empty folder and ends with an approval in the console and at a terminal. It prints
its commands, edits and steps in the browser, with the seconds of each. The provider and its users
exist before; the configuration is that of docs/identity-providers.md for Keycloak, whose form of
tokens the provider of the tests issues. The time of a person is not part of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Page

from tests.identity import person
from tests.identity.provider import list_clients, run_identity_provider
from tests.kit.browser import expect, open_browser, open_context
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.documents import page as read_page
from tests.kit.ports import find_free_port
from tests.kit.process import base_environment

ISSUER = "https://id.example.org/realms/office"
USERS = {"ada": {"realm_access": {"roles": ["default-roles-office", "operator"]}}}

CLERK = """
[[models]]
id = "clerk"
provider = "demo"
model = "tool"

[[agents]]
id = "clerk"
model = "clerk"
tools = ["shop:refund"]
approve = { refund = "user" }
"""

SHOP = '''
def refund(order: int) -> str:
    """Pay an order back."""
    return f"Order {order} is paid back."
'''


@dataclass
class Walk:
    """The steps so far: where, what, and seconds."""

    folder: Path
    port: int
    environment: dict[str, str]
    steps: list[tuple[str, str, float]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def step(self, where: str, what: str) -> Iterator[None]:
        """Measure a step."""
        started = time.monotonic()
        yield
        self.steps.append((where, what, time.monotonic() - started))

    def run(self, command: str, *, code: int = 0, **values: str) -> str:
        """Run a command in the folder as a step; return what it printed.

        Args:
            values: texts to put in the place of words such as `APPROVAL_ID`.
        """
        words = [values.get(word, word) for word in shlex.split(command)]
        with self.step("terminal", command):
            ended = subprocess.run(
                words,
                cwd=self.folder,
                env=self.environment,
                text=True,
                capture_output=True,
                timeout=PATIENCE,
            )
        assert ended.returncode == code, f"$ {command}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def render(self) -> str:
        """Return the steps as a table."""
        rows = [f"| {where} | {what} | {seconds:.1f} |" for where, what, seconds in self.steps]
        head = ["| where | step | seconds |", "| --- | --- | ---: |"]
        total = sum(seconds for *_, seconds in self.steps)
        return "\n".join([*head, *rows, f"| | {len(rows)} steps | {total:.1f} |"])


def configure(walk: Walk, issuer: str) -> None:
    """Edit the file of `init` as the page describes it, and add an agent whose tool is gated."""
    page = read_page("docs/identity-providers.md")
    console, keycloak = (block.text.replace(ISSUER, issuer) for block in page.blocks("toml")[:2])
    file = walk.folder / "agentctl.toml"
    text = re.sub(r"(?ms)^\[authorization\].*?^(?=\[signing\])", f"{keycloak}\n", file.read_text())
    text = text.replace("port = 7777", f"port = {walk.port}")
    file.write_text(f"{text}\n{console}\n{CLERK}")
    (walk.folder / "shop.py").write_text(SHOP)


@contextlib.contextmanager
def served(walk: Walk) -> Iterator[None]:
    """Run `agentctl serve` until the end of the block."""
    log = walk.folder / "server.log"
    with log.open("w") as output:
        line = ["agentctl", "serve"]
        process = subprocess.Popen(line, cwd=walk.folder, env=walk.environment, stderr=output)
    try:
        with walk.step("terminal", "agentctl serve"):
            wait_for(lambda: walk.url in log.read_text())
        yield
    finally:
        process.terminate()
        process.wait()


def use_console(walk: Walk, page: Page) -> None:
    """Sign in, start a run, approve its call, and sign out."""
    with walk.step("browser", "sign in to the console at the provider"):
        page.goto(f"{walk.url}/console#/agents/agents/clerk")
        page.click("button:has-text('Sign in with 127.0.0.1')")
        page.fill("input[name=login]", "ada")
        page.fill("input[name=password]", "any")
        page.click("button:has-text('Sign-in')")
        page.click("button:has-text('Continue')")
        expect(page.locator("header .name")).to_have_text("ada")
    with walk.step("browser", "start a run"):
        page.fill("[data-message]", "Refund order 7")
        page.click("button:text-is('Start')")
        page.wait_for_selector("[data-waits]")
    with walk.step("browser", "approve its call and read the answer"):
        page.click("button:has-text('Decide')")
        page.click("dialog button[type=submit]")
        expect(page.locator("#app")).to_contain_text("Order 7 is paid back.")
    with walk.step("browser", "sign out"):
        page.click("[data-menu^='Account']")
        page.click("button:has-text('Sign out')")
        page.wait_for_selector("form[aria-label='Sign in']")


def use_terminal(walk: Walk) -> None:
    """Sign in, start a run, approve its call, and sign out."""
    walk.run("agentctl context add office --url URL --use", URL=walk.url)
    walk.run("agentctl login")
    walk.run("agentctl runs start --agent clerk --message 'Refund order 8'", code=9)
    approval = walk.run("agentctl approvals list --status pending -o name").strip()
    walk.run("agentctl approvals approve APPROVAL_ID --yes", APPROVAL_ID=approval)
    run = walk.run("agentctl runs list --limit 1 -o name").strip()
    walk.run("agentctl runs wait RUN_ID", RUN_ID=run)
    assert "Order 8 is paid back." in walk.run("agentctl runs get RUN_ID", RUN_ID=run)
    walk.run("agentctl logout")


def walk_through(folder: Path) -> Walk:
    """Make all steps in a new folder.

    Raises:
        AssertionError: a step failed.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **base_environment(),
        "PATH": path,
        "HOME": str(folder),
        "BROWSER": person.build_browser("ada"),
        "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
    }
    walk = Walk(folder, find_free_port(), environment)
    walk.run("agentctl init office")
    walk.folder = folder / "office"
    clients = list_clients(f"{walk.url}/console")
    clients[0]["client_id"] = "agentctl-console"
    with run_identity_provider(clients, users=USERS) as issuer:
        with walk.step("editor", "agentctl.toml and shop.py"):
            configure(walk, issuer)
        walk.run("agentctl config check")
        with served(walk):
            with open_browser() as chromium:
                use_console(walk, open_context(chromium).new_page())
            use_terminal(walk)
    return walk


def main() -> None:
    """Print the steps."""
    with tempfile.TemporaryDirectory() as folder:
        print(walk_through(Path(folder)).render())


if __name__ == "__main__":
    main()
