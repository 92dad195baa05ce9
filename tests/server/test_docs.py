"""The pages `/docs` and `/redoc` in a real browser, without access to another host."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from fastapi import FastAPI

from agentctl.server import create_app, running
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import Deployment
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

BROWSER = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--enable-logging=stderr", "--v=0", "--virtual-time-budget=20000",
)  # fmt: skip

BROWSERS_OWN = {
    "accounts.google.com", "android.clients.google.com", "clients2.google.com",
    "clientservices.googleapis.com", "content-autofill.googleapis.com",
    "edgedl.me.gvt1.com", "optimizationguide-pa.googleapis.com", "redirector.gvt1.com",
    "safebrowsing.googleapis.com", "update.googleapis.com", "www.google.com",
}  # fmt: skip

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt install chromium")

PAGES = {
    "docs": ("List teams", "Cancel a run of an agent", 'class="opblock'),
    "redoc": ("List teams", "Cancel a run of an agent", "menu-content"),
}


class Proxy(ThreadingHTTPServer):
    """A proxy that allows this machine only and records the requested hosts."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Refusing)
        self.asked: list[str] = []


class _Refusing(BaseHTTPRequestHandler):
    server: Proxy

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.server.asked.append(self.path)
        if parts.hostname != "127.0.0.1":
            self.send_error(403)
            return
        answer = httpx2.get(self.path, timeout=PATIENCE)
        self.send_response(answer.status_code)
        for name in ("content-type", "content-security-policy", "content-length"):
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        self.end_headers()
        self.wfile.write(answer.content)

    def do_CONNECT(self) -> None:
        self.server.asked.append(self.path)
        self.send_error(403)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing: the requests are in `asked`."""


@contextlib.contextmanager
def proxy() -> Iterator[Proxy]:
    server = Proxy()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def rendered(url: str, folder: Path) -> tuple[str, str, list[str]]:
    """Return the rendered document, the console and the requested hosts."""
    assert CHROMIUM is not None
    with proxy() as between:
        done = subprocess.run(
            [
                CHROMIUM,
                *BROWSER,
                f"--user-data-dir={folder}",
                f"--proxy-server=http://127.0.0.1:{between.server_address[1]}",
                "--proxy-bypass-list=<-loopback>",
                "--dump-dom",
                url,
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
    return done.stdout, done.stderr, between.asked


def of_page(asked: list[str]) -> list[str]:
    """Return the hosts that the page requested, without those of the browser itself.

    Hosts are compared by their whole names, because pages also load files from domains of
    browser vendors."""
    hosts = {address: urlsplit(address).hostname or address.rpartition(":")[0] for address in asked}
    return [address for address, host in hosts.items() if host not in BROWSERS_OWN]


@in_browser
@pytest.mark.parametrize("page", PAGES)
def test_page_shows_operations_and_loads_from_no_other_host(
    server: ThreadedServer, tmp_path: Path, page: str
) -> None:
    dom, console, asked = rendered(f"{server.url}/{page}", tmp_path)
    for text in PAGES[page]:
        assert text in dom
    assert "Uncaught" not in console
    assert f"{server.url}/openapi.json" in asked
    assert {urlsplit(address).netloc for address in of_page(asked)} == {f"127.0.0.1:{server.port}"}


@in_browser
def test_page_works_in_a_mounted_application(settled: Deployment, tmp_path: Path) -> None:
    app = create_app(settled.settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with running(app):
            yield

    outside = FastAPI(lifespan=lifespan)
    outside.mount("/inside/here", app)
    with serve_in_thread(settled, outside) as host:
        dom, _, asked = rendered(f"{host.url}/inside/here/docs", tmp_path)
    assert PAGES["docs"][0] in dom
    assert f"{host.url}/inside/here/openapi.json" in asked


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/docs/oauth2-redirect"])
def test_security_policy_of_pages_allows_no_other_host(server: ThreadedServer, path: str) -> None:
    answer = server.client.get(path)
    rules = dict(
        rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; ")
    )
    assert rules["default-src"] == "'none'"
    assert rules["frame-ancestors"] == "'none'"
    for sources in rules.values():
        assert "unsafe" not in sources
        assert "*" not in sources
        assert "http" not in sources
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", answer.text)


def test_nonce_of_a_page_is_used_once(server: ThreadedServer) -> None:
    nonces = {
        re.search(r'nonce="([^"]+)"', server.client.get("/redoc").text)[1]  # type: ignore[index]
        for _ in range(3)
    }
    assert len(nonces) == 3


def test_every_file_of_a_page_exists(server: ThreadedServer) -> None:
    for path in ("/docs", "/redoc"):
        names = re.findall(r'"(docs/assets/[^"]+)"', server.client.get(path).text)
        assert names
        for name in names:
            answer = server.client.get(f"/{name}")
            assert answer.status_code == 200
            assert answer.headers["cache-control"] == "public, max-age=3600"


def test_files_load_nothing_from_other_hosts(server: ThreadedServer) -> None:
    text = server.client.get("/docs/assets/redoc.standalone.js").text
    assert "cdn.redoc.ly" not in text
    assert "fonts.googleapis.com" not in text


def test_pages_have_dark_colors(server: ThreadedServer) -> None:
    for path in ("/docs", "/redoc"):
        assert 'href="docs/assets/page.css"' in server.client.get(path).text
    style = server.client.get("/docs/assets/page.css").text
    assert "@media (prefers-color-scheme: dark)" in style
