"""The trial of the sign-in in the compose file: its provider and configuration, in a browser."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

import httpx2
import pytest
from playwright.sync_api import Browser, Page

from tests.identity.provider import PACKAGES, needs_provider
from tests.kit.browser import check_accessibility, expect, needs_browser, open_console
from tests.kit.conditions import PATIENCE
from tests.kit.ports import find_free_port, wait_for_port
from tests.kit.process import start_server
from tests.packaging.test_container import FOLDER, read_compose

pytestmark = [*needs_browser, needs_provider]

TRIAL = FOLDER / "sign-in"


@contextlib.contextmanager
def run_trial_provider(port: int, server: str, **variables: str) -> Iterator[None]:
    """Run the provider with the settings that the compose file gives it."""
    given = read_compose()["identity"]["environment"] | {"SIGN_IN_LISTEN": "127.0.0.1"}
    settings = {"SIGN_IN_PORT": str(port), "SIGN_IN_SERVER": server, **variables}
    process = subprocess.Popen(
        ["node", str(TRIAL / "provider.mjs"), str(PACKAGES)], env=os.environ | given | settings
    )
    try:
        wait_for_port(port, process)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The server and its provider, at free ports; yields their URLs. The server starts first."""
    folder = tmp_path_factory.mktemp("trial")
    port = find_free_port()
    own = find_free_port()
    text = (TRIAL / "agentctl.toml").read_text()
    config = folder / "agentctl.toml"
    config.write_text(text.replace(":9400", f":{port}").replace("/data/", f"{folder}/"))
    options = ("--config", str(config), "--port", str(own))
    with (
        start_server(*options, log=folder / "server.log") as served,
        run_trial_provider(port, served.url),
    ):
        yield served.url, f"http://127.0.0.1:{port}"


def sign_in(page: Page, name: str, password: str) -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


def start(page: Page) -> None:
    page.click("button:has-text('Sign in with 127.0.0.1')")
    expect(page.locator("main")).to_contain_text("Not for production")


@pytest.mark.parametrize("name", ["console", "chat"])
def test_both_users_sign_in_and_out(trial: tuple[str, str], browser: Browser, name: str) -> None:
    url, issuer = trial
    with open_console(browser, url, name=name, fresh=True) as shown:
        page = shown.page
        start(page)
        for wrong in (("user", "admin"), ("nobody", "nobody"), ("constructor", "x")):
            sign_in(page, *wrong)
            expect(page.get_by_role("alert")).to_have_text("Wrong name or password.")
        check_accessibility(shown)
        sign_in(page, "user", "user")
        expect(page.locator("header .name")).to_have_text("user")
        shown.sign_out()
        start(page)
        sign_in(page, "admin", "admin")
        expect(page.locator("header .name")).to_have_text("admin · admin")
        shown.sign_out()
        start(page)
        page.get_by_role("button", name="Cancel").click()
        shown.see("The provider refused the sign-in: access_denied")
        shown.requests[:] = [each for each in shown.requests if not each.startswith(issuer)]


def test_other_clients_and_old_forms_get_a_page_that_says_why(trial: tuple[str, str]) -> None:
    _, issuer = trial
    query = {"client_id": "other", "response_type": "code", "redirect_uri": "https://evil.example"}
    refused = httpx2.get(f"{issuer}/auth", params=query)
    assert refused.status_code == 400
    assert "client is invalid" in refused.text
    old = httpx2.get(f"{issuer}/interaction/old")
    assert old.status_code == 400
    assert "Start it again in agentctl." in old.text


def test_provider_refuses_other_machines_unless_told() -> None:
    env = os.environ | {"SIGN_IN_LISTEN": "0.0.0.0", "SIGN_IN_PORT": str(find_free_port())}
    done = subprocess.run(
        ["node", str(TRIAL / "provider.mjs"), str(PACKAGES)],
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert "error: SIGN_IN_LISTEN is 0.0.0.0, which other machines may reach" in done.stderr
    assert "SIGN_IN_ALLOW_REMOTE=1" in done.stderr
