"""The shop of docs/own-routes.md, written and started as the page describes, in a browser."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from tests.kit.browser import CHROMIUM, expect, open_browser, open_context
from tests.kit.conditions import PATIENCE
from tests.kit.documents import page
from tests.kit.model import ModelEndpoint
from tests.kit.process import ServerProcess, run_agentctl, start_server

PAGE = page("docs/own-routes.md")

FILES = ("orders.py", "shop.py", "test_shop.py")
"""The files of the Python blocks of the page."""

CALL = {"name": "list_orders", "arguments": "{}"}

QUESTION = json.dumps({"tool_calls": [{"id": "1", "type": "function", "function": CALL}]})
"""A message that makes the model `exact` of the endpoint call the tool."""


@dataclass(frozen=True)
class Shop:
    """The served shop, and the header fields of a customer."""

    server: ServerProcess
    folder: Path

    def token(self, customer: str, *scopes: str) -> str:
        words = [word for scope in scopes for word in ("--scope", scope)]
        done = run_agentctl("token", "mint", "--sub", customer, *words, cwd=self.folder)
        return done.stdout.decode().strip()

    def client(self, customer: str, *scopes: str) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {self.token(customer, *scopes)}"}
        return httpx2.Client(base_url=self.server.url, headers=headers, timeout=PATIENCE)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("page") / "shop"
    assert run_agentctl("init", "shop", cwd=folder.parent).returncode == 0
    [settings] = PAGE.blocks("toml")
    text = settings.text.replace("https://api.openai.com/v1", model_endpoint.base_url)
    (folder / "agentctl.toml").write_text(text.replace("gpt-5.2-mini", "exact"))
    for name, block in zip(FILES, PAGE.blocks("python"), strict=True):
        (folder / name).write_text(block.text)
    environment = {**os.environ, "OPENAI_API_KEY": "test"}
    options = ("--app", "shop:app", "--port", "0")
    with start_server(*options, log=folder / "server.log", environment=environment) as server:
        yield Shop(server, folder)


def test_agent_answers_about_the_orders_of_the_customer(shop: Shop) -> None:
    scopes = ("agents:clerk:run", "sessions:read")
    with shop.client("ann", *scopes) as ann, shop.client("bob", *scopes) as bob:
        assert ann.post("/shop/orders", json={"article": "a chair"}).status_code == 201
        assert ann.get("/shop/orders").json() == ["a chair"]
        assert bob.get("/shop/orders").json() == []
        run = ann.post("/agents/clerk/runs", json={"message": QUESTION, "stream": False}).json()
        assert "a chair" in run["content"]
        assert ann.get("/shop/questions").json() == 1
        assert bob.get("/shop/questions").json() == 0
    with shop.client("eve", "teams:read") as eve:
        assert eve.get("/shop/orders").json()["error_code"] == "FORBIDDEN"
    assert httpx2.get(f"{shop.server.url}/shop/orders").status_code == 401


def test_tests_of_the_shop_succeed(shop: Shop, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    shutil.copytree(shop.folder, folder, ignore=shutil.ignore_patterns("*.db*", "server.log"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"]
    environment = {**os.environ, "OPENAI_API_KEY": "test"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt install chromium")
def test_page_of_the_shop_asks_the_agent(shop: Shop) -> None:
    with shop.client("cid") as client:
        assert client.post("/shop/orders", json={"article": "a desk"}).status_code == 201
    with open_browser() as browser:
        shown = open_context(browser).new_page()
        faults = list[str]()
        shown.on("pageerror", lambda error: faults.append(str(error)))
        shown.goto(f"{shop.server.url}/shop")
        for token, answer in (
            (shop.token("cid", "teams:read"), "Insufficient scopes"),
            (shop.token("cid", "agents:clerk:run"), "a desk"),
        ):
            shown.fill("[name=token]", token)
            shown.fill("[name=question]", QUESTION)
            shown.click("button")
            expect(shown.locator("#answer")).to_contain_text(answer)
        assert faults == []
