"""The TypeScript client in Node and in a page of another origin, with a server process."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.agui.pages import plan
from tests.clients.cutting_proxy import cutting
from tests.kit.browser import CHROMIUM, open_browser, open_context
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.documents import page
from tests.kit.model import ModelEndpoint
from tests.kit.ports import find_free_port
from tests.kit.process import base_environment, start_server
from tests.kit.world_agents import ADD, PLANNED

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "packaging" / "typescript"
CASES = Path(__file__).parent / "typescript" / "cases.mjs"
TOOLS = ROOT / ".peers" / "generators" / "node_modules" / ".bin"
NODE = shutil.which("node")

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"
STREAMS = {"node": 10_000 if LONG else 150, "page": 1_000 if LONG else 50}
TOGETHER = 8

SCOPES = (
    "agents:read", "agents:run", "teams:read", "teams:run", "workflows:read", "workflows:run",
    "sessions:read", "sessions:write", "sessions:delete",
)  # fmt: skip

CODE = '''
from collections.abc import AsyncIterator


async def tell(message: str) -> AsyncIterator[str]:
    """Answer with the message in pieces."""
    for number in range(0, len(message), 10):
        yield message[number : number + 10]
'''

CONFIG = (
    """
[[agents]]
id = "teller"
object = "telling_agents:tell"

[[workflows]]
id = "tellers"
steps = [{{ name = "one", agent = "teller" }}, {{ name = "two", agent = "teller" }}]

[[agents]]
id = "slow"
model = "trickle"
"""
    + PLANNED
)

Run = Callable[[str, Any], Any]
"""Calls an exported function of the cases with an argument."""

needs_node = pytest.mark.skipif(NODE is None, reason="needs node: apt install nodejs")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt install chromium")
needs_tools = pytest.mark.skipif(
    not (TOOLS / "tsc").exists(), reason="needs tsc: make .peers/generators/.installed"
)
both = pytest.mark.parametrize(
    "place", [pytest.param("node", marks=needs_node), pytest.param("page", marks=needs_chromium)]
)


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[tuple[Path, str]]:
    """A folder that is served at another origin; `/open` counts the open model calls."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/open":
                super().do_GET()
                return
            body = str(model_endpoint.open_calls()).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Write no log."""

    folder = tmp_path_factory.mktemp("site")
    shutil.copyfile(CLIENT / "agentctl.js", folder / "agentctl.js")
    shutil.copyfile(CASES, folder / "cases.mjs")
    (folder / "index.html").write_text("<title>A page</title>")
    (folder / "package.json").write_text('{"type": "module"}')
    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint, site: tuple[Path, str]
) -> Iterator[tuple[Deployment, str]]:
    """A deployment and the URL of its server process, which allows the origin of the site."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "telling_agents.py").write_text(CODE)
    url = model_endpoint.base_url
    server = f'cors_origins = ["{site[1]}"]'
    deployment = create_deployment(folder, url, extra=CONFIG.format(url=url), server=server)
    with start_server("--config", str(deployment.path), log=folder / "log") as served:
        yield deployment, served.url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def run(place: str, request: pytest.FixtureRequest, site: tuple[Path, str]) -> Iterator[Run]:
    """Call a function of the cases in Node or in a page."""
    folder, url = site
    if place == "node":
        yield functools.partial(run_node, folder)
        return
    shown: Page = open_context(request.getfixturevalue("browser")).new_page()
    shown.goto(f"{url}/index.html")
    code = "async ([name, given]) => (await import('/cases.mjs'))[name](given)"
    yield lambda name, given: shown.evaluate(code, [name, given])
    shown.close()


def run_node(folder: Path, name: str, given: Any) -> Any:
    code = (
        "import('./cases.mjs').then(async (module) => {"
        "const [name, given] = JSON.parse(process.argv[1]);"
        "console.log(JSON.stringify(await module[name](given)));})"
    )
    done = subprocess.run(
        [str(NODE), "--eval", code, json.dumps([name, given])],
        cwd=folder,
        env=base_environment(),
        capture_output=True,
        text=True,
        timeout=3_600 if LONG else PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@both
def test_client_does_what_its_page_says(
    run: Run, world: tuple[Deployment, str], site: tuple[Path, str]
) -> None:
    deployment, url = world
    work = {
        "url": url,
        "site": site[1],
        "nowhere": f"http://127.0.0.1:{find_free_port()}",
        "tokens": {
            "me": deployment.token("me", *SCOPES),
            "boss": deployment.token("boss", "approvals:read", "approvals:write"),
            "invalid": deployment.token("me", *SCOPES)[:-8] + "AAAAAAAA",
        },
        "plans": {"one_call": plan(ADD), "two_calls": plan_together()},
    }
    found = run("execute", work)
    assert len(found) > 15
    failed = [f"{name}: {failure}" for name, failure in found.items() if failure is not None]
    assert not failed, "\n".join(failed)


def plan_together() -> str:
    """Return the message that makes the model `plan` send two calls at once."""
    (first,) = json.loads(plan(ADD))
    (second,) = json.loads(plan(ADD))[0]["tool_calls"]
    return json.dumps([{"tool_calls": [*first["tool_calls"], second | {"id": "c9"}]}])


@both
def test_cut_streams_lose_and_repeat_nothing(
    run: Run, place: str, world: tuple[Deployment, str]
) -> None:
    deployment, url = world
    count = STREAMS[place]
    with cutting(url, seed=1) as proxy:
        problems = run(
            "readCutStreams",
            {
                "url": proxy.url,
                "token": deployment.token("me", *SCOPES),
                "count": count,
                "prefix": place,
                "together": TOGETHER,
            },
        )
    assert problems == []
    assert proxy.counts["cut_responses"] > count
    assert proxy.counts["cut_requests"] > count / 5

    runs = Counter[str]()
    cursor = None
    with deployment.client(url, "admin", ADMIN) as admin:
        while True:
            query = {"parent": "none", "limit": 100} | ({"cursor": cursor} if cursor else {})
            listed = admin.get("/runs", params=query).json()
            runs.update(record["session_id"] for record in listed["data"])
            cursor = listed["meta"]["next_cursor"]
            if cursor is None:
                break
    started = {number: runs[f"{place}-{number}"] for number in range(count)}
    assert {number: times for number, times in started.items() if times != 1} == {}


@needs_tools
def test_generated_files_are_current() -> None:
    command = [sys.executable, str(CLIENT / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_tools
def test_types_refuse_wrong_calls(tmp_path: Path) -> None:
    for name in ("agentctl.d.ts", "api.d.ts"):
        shutil.copyfile(CLIENT / name, tmp_path / name)
    shutil.copyfile(CASES.parent / "types.ts", tmp_path / "types.ts")
    assert check_types(tmp_path / "types.ts") == ""


@needs_node
@needs_tools
def test_examples_of_the_page_run(tmp_path: Path, world: tuple[Deployment, str]) -> None:
    deployment, url = world
    package = tmp_path / "node_modules" / "agentctl-client"
    package.mkdir(parents=True)
    for name in ("package.json", "agentctl.js", "agentctl.d.ts", "api.d.ts"):
        shutil.copyfile(CLIENT / name, package / name)
    text = "\n".join(block.text for block in page("docs/client.md").blocks("typescript"))
    for shown, used in {
        "http://127.0.0.1:7777": url,
        '{ message: "pay" }': f"{{ message: {json.dumps(plan(ADD))} }}",
        "{ token }": f"{{ token: {json.dumps(deployment.token('me', *SCOPES))} }}",
    }.items():
        assert text.count(shown) == 1
        text = text.replace(shown, used)
    (tmp_path / "example.ts").write_text(text)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    assert check_types(tmp_path / "example.ts") == ""
    done = subprocess.run(
        [str(NODE), "example.js"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["Hello", "COMPLETED Hello again"]
    expected = {"0 RunStarted", "RunContinued", "ToolCallCompleted", "RunCompleted"}
    assert expected <= set(lines)
    assert any(line.endswith("RunCancelled") for line in lines)
    assert lines[-1].startswith("404 NOT_FOUND ")


def check_types(file: Path) -> str:
    """Write the module of a file, and return what the strict checks of tsc report about it."""
    options = "--strict --target es2022 --module esnext --moduleResolution bundler"
    libraries = ["--lib", "es2022,dom", "--skipDefaultLibCheck"]
    command = [str(TOOLS / "tsc"), *options.split(), *libraries, str(file)]
    return subprocess.run(command, cwd=file.parent, capture_output=True, text=True).stdout
