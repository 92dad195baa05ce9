"""Routes of a user next to those of agentctl, served by `agentctl serve --app`."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from tests.kit.command import run_command
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import ADMIN, Deploy, Deployment
from tests.kit.process import start_server
from tests.kit.process_states import wait_for_ends
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.worker_server import WorkerServer, read_stream

SHOP = Path(__file__).with_name("own_shop.py")


def prepare_shop(deploy: Deploy, extra: str = "") -> Deployment:
    """Create a folder with the configuration, the application and a public file."""
    deployment = deploy(extra)
    shutil.copy(SHOP, deployment.folder / "own_shop.py")
    (deployment.folder / "public").mkdir()
    (deployment.folder / "public" / "logo.txt").write_text("a logo")
    return deployment


def load_shop(deployment: Deployment) -> FastAPI:
    """Import the application of the folder."""
    sys.modules.pop("own_shop", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(deployment.folder)
        app: FastAPI = importlib.import_module("own_shop").app
    return app


@pytest.fixture(scope="module")
def shop(deploy: Deploy) -> Iterator[ThreadedServer]:
    """A shared server, whose client is an administrator."""
    deployment = prepare_shop(deploy, "[openai]\nenabled = true\n")
    with serve_in_thread(deployment, load_shop(deployment)) as host:
        host.client.headers.update(deployment.bearer("me", ADMIN))
        yield host


def ask(shop: ThreadedServer, method: str, path: str, token: str, **more: Any) -> httpx2.Response:
    """Send a request without a token, or with a token of a kind."""
    headers = {
        "none": {},
        "wrong": {"Authorization": "Bearer x.y.z"},
        "weak": shop.deployment.bearer("weak", "teams:read"),
        "right": shop.deployment.bearer("right", "sessions:read", "agents:echo:read"),
    }[token]
    return httpx2.request(method, shop.url + path, headers=headers, timeout=PATIENCE, **more)


@pytest.mark.parametrize(
    ("method", "path", "statuses"),
    [
        ("GET", "/shop", (200, 200, 200, 200)),
        ("GET", "/assets/logo.txt", (200, 200, 200, 200)),
        ("GET", "/private/logo.txt", (401, 401, 200, 200)),
        ("GET", "/shop/plain", (401, 401, 200, 200)),
        ("GET", "/shop/me", (401, 401, 200, 200)),
        ("GET", "/shop/maybe", (401, 401, 200, 200)),
        ("POST", "/shop/orders/7", (401, 401, 403, 200)),
        ("GET", "/shop/orders/of/echo", (401, 401, 403, 200)),
        ("GET", "/shop/orders/of/hang", (401, 401, 403, 403)),
        ("GET", "/shop/orders/sessions", (401, 401, 403, 200)),
        ("GET", "/shop/orders/session/none", (401, 401, 403, 404)),
        ("GET", "/shop/unknown", (401, 401, 404, 404)),
        ("GET", "/shop/", (401, 401, 404, 404)),
        ("GET", "/health", (200, 200, 200, 200)),
        ("GET", "/sessions", (401, 401, 403, 200)),
    ],
)
def test_each_route_answers_by_the_token(
    shop: ThreadedServer, method: str, path: str, statuses: tuple[int, ...]
) -> None:
    body = {"amount": 3} if method == "POST" else None
    for token, status in zip(("none", "wrong", "weak", "right"), statuses, strict=True):
        answer = ask(shop, method, path, token, json=body)
        assert answer.status_code == status, (token, answer.text)
        assert "x-request-id" in answer.headers
        if status == 401:
            assert answer.json()["error_code"] == "UNAUTHENTICATED"
            assert answer.headers["www-authenticate"].startswith("Bearer")
        if status == 403:
            assert answer.json()["error_code"] == "FORBIDDEN"
            assert answer.json()["required_scopes"]
        # The middleware of the user sees every request, also those of agentctl.
        assert answer.headers.get("x-shop") == method, path


def test_expired_token_is_refused_on_a_route(shop: ThreadedServer) -> None:
    headers = shop.deployment.bearer("me", ADMIN, seconds=1)
    url = f"{shop.url}/shop/me"
    wait_for(lambda: httpx2.get(url, headers=headers).status_code == 401)
    assert httpx2.get(f"{shop.url}/shop", headers=headers).status_code == 200


def test_refusals_and_denials_are_in_the_audit_log(shop: ThreadedServer) -> None:
    denied = shop.deployment.bearer("denied", "teams:read")
    answer = httpx2.post(f"{shop.url}/shop/orders/7", headers=denied, json={"amount": 1})
    assert answer.json()["required_scopes"] == ["sessions:*:read", "sessions:read"]
    [entry] = shop.client.get("/audit", params={"principal": "denied"}).json()["data"]
    assert (entry["operation"], entry["outcome"], entry["status"]) == (
        "POST /shop/orders/{number}",
        "denied",
        403,
    )
    assert entry["request_id"] == answer.headers["x-request-id"]


def test_caller_of_a_route_is_the_verified_one(shop: ThreadedServer) -> None:
    answer = ask(shop, "GET", "/shop/me", "right").json()
    assert answer == {"subject": "right", "scopes": ["agents:echo:read", "sessions:read"]}


def test_operations_of_a_route_see_the_data_of_the_caller(shop: ThreadedServer) -> None:
    body = {"message": "hi", "session_id": "of-admin", "stream": False}
    assert shop.client.post("/agents/echo/runs", json=body).status_code == 200
    mine = shop.client.get("/shop/orders/sessions").json()
    assert "of-admin" in [session["session_id"] for session in mine["data"]]
    assert ask(shop, "GET", "/shop/orders/sessions", "right").json()["data"] == []


def test_one_document_has_operations_and_routes(shop: ThreadedServer) -> None:
    document = httpx2.get(f"{shop.url}/openapi.json").json()
    assert document["info"]["title"] == "Shop"
    assert {"/agents/{agent_id}/runs", "/shop", "/shop/orders/{number}"} <= document["paths"].keys()
    order = document["paths"]["/shop/orders/{number}"]["post"]
    assert order["security"] == [{"HTTPBearer": []}]
    assert {"401", "403"} <= order["responses"].keys()
    own = order["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert own == "#/components/schemas/OwnRunRecord"
    schemas = document["components"]["schemas"]
    assert schemas["OwnRunRecord"]["required"] == ["amount"]
    assert "run_id" in schemas["RunRecord"]["properties"]
    assert "security" not in document["paths"]["/shop"]["get"]
    assert "swagger" in httpx2.get(f"{shop.url}/docs").text


def test_runs_stream_and_cancel_as_ever(shop: ThreadedServer) -> None:
    body: dict[str, Any] = {"message": "one two", "session_id": "streamed"}
    with read_stream(shop.client, "/agents/echo/runs", body) as events:
        names = [event.name for event in events]
    assert names[0] == "RunStarted"
    assert names[-1] == "RunCompleted"

    body = {"message": "x", "session_id": "cancelled", "background": True, "stream": False}
    run_id = shop.client.post("/agents/hang/runs", json=body).json()["run_id"]
    path = f"/agents/hang/runs/{run_id}/cancel?session_id=cancelled&wait=30"
    assert shop.client.post(path).json()["status"] == "CANCELLED"


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/shop/fails", 500, "Internal server error"),
        ("/shop/exits", 500, "Internal server error"),
        ("/shop/closed", 409, "closed"),
        ("/shop/teapot", 418, "no tea"),
    ],
)
def test_failing_route_harms_nothing(
    shop: ThreadedServer, path: str, status: int, text: str
) -> None:
    answer = shop.client.get(path)
    assert (answer.status_code, text in answer.text) == (status, True), answer.text
    assert "Traceback" not in answer.text
    assert "secret" not in answer.text
    assert shop.client.get("/health").status_code == 200


def test_exception_of_a_route_is_in_the_log_once(
    shop: ThreadedServer, caplog: pytest.LogCaptureFixture
) -> None:
    request_id = shop.client.get("/shop/fails").headers["x-request-id"]
    wait_for(lambda: f"request {request_id} failed" in caplog.text)
    assert caplog.text.count(f"request {request_id} failed") == 1
    assert "a secret of the shop" in caplog.text
    assert "Exception in ASGI application" not in caplog.text


def test_blocked_threads_do_not_stop_agentctl(shop: ThreadedServer) -> None:
    with ThreadPoolExecutor(90) as pool:
        try:
            slow = [pool.submit(shop.client.get, "/shop/blocks") for _ in range(90)]
            for number in range(6):
                body = {"message": "hi", "session_id": f"quick-{number}", "stream": False}
                assert shop.client.post("/agents/echo/runs", json=body).status_code == 200
            assert not any(each.done() for each in slow)
        finally:
            (shop.deployment.folder / "released").touch()
    assert {each.result().status_code for each in slow} == {200}


def test_body_of_a_route_is_bounded(shop: ThreadedServer) -> None:
    limit = shop.deployment.settings.limits.body_bytes
    assert shop.client.post("/shop/upload", content=b"x" * limit).json() == limit
    too_large = b"x" * (limit + 1)
    assert shop.client.post("/shop/upload", content=too_large).status_code == 413
    parts = iter([too_large[:limit], too_large[limit:]])
    assert shop.client.post("/shop/upload", content=parts).status_code == 413


def test_pages_of_a_route_have_their_own_header_fields(shop: ThreadedServer) -> None:
    page, file, ours = (shop.client.get(path).headers for path in ("/shop", "/shop/me", "/health"))
    assert page["cache-control"] == "no-cache"
    assert file["cache-control"] == "no-store"
    assert "default-src" not in page["content-security-policy"]
    assert "default-src 'none'" in ours["content-security-policy"]
    assert page["x-content-type-options"] == "nosniff"


def test_workers_serve_the_application_and_its_lifespan(deploy: Deploy) -> None:
    metrics = '[metrics]\nlisten = "127.0.0.1:0"\n'
    deployment = prepare_shop(deploy, metrics)
    with serve_shop(deployment, "--workers", "2") as shop:
        workers = shop.workers()
        for _ in range(6):
            assert shop.client.get("/shop").json() == {"stock": "full"}
        for path in ("/shop/fails", "/shop/exits"):
            assert shop.client.get(path).status_code == 500
        assert shop.workers() == workers

        # A busy worker may not report its metrics in time: they are missing in a response then.
        address = shop.served.wait_for("metrics: ").partition("metrics: ")[2].split()[0]
        wait_for(lambda: 'operation="GET /shop"' in httpx2.get(address).text)

        run_id = shop.start("cancelled")
        assert shop.served.stop() == 0
    assert shop.status(run_id) == "CANCELLED"
    lines = (deployment.folder / "lifespan.txt").read_text().splitlines()
    assert sorted(lines) == sorted([f"{word} {pid}" for pid in workers for word in ("up", "down")])


@contextlib.contextmanager
def serve_shop(deployment: Deployment, *options: str) -> Iterator[WorkerServer]:
    """Serve the application with processes."""
    place = ("--app", "own_shop:app", "--port", "0", *options)
    fresh = {"Connection": "close"}
    with (
        start_server(*place, log=deployment.folder / "server.log") as served,
        deployment.client(served.url) as client,
    ):
        client.headers.update(fresh)
        found = WorkerServer(deployment, served, client, deployment.bearer("me", ADMIN))
        pids = found.workers()
        yield found
    wait_for_ends(pids, served.log)


def test_plain_uvicorn_serves_the_application(deploy: Deploy) -> None:
    deployment = prepare_shop(deploy)
    with (
        serve_in_thread(deployment, load_shop(deployment), http="auto") as server,
        deployment.client(server.url) as client,
    ):
        assert client.get("/shop").json() == {"stock": "full"}
        assert server.client.get("/shop/plain").status_code == 401
        body = {"message": "hi", "session_id": "s", "stream": False}
        assert client.post("/agents/echo/runs", json=body).json()["status"] == "COMPLETED"
    words = (deployment.folder / "lifespan.txt").read_text().split()[::2]
    assert words == ["up", "down"]


WRONG: dict[str, tuple[str, str, str]] = {
    # Module: its text, and texts of the error and the hint.
    "broken": (
        "import agentctl\nraise ValueError('no stock')\n",
        "broken.py, line 2: ValueError",
        "hint: correct broken.py, line 2",
    ),
    "other": (
        "from fastapi import FastAPI\napp = FastAPI()\n",
        "--app other:app is not an application of agentctl.create_app",
        "hint: write in the module: app = agentctl.create_app()",
    ),
    "typos": (
        "import agentctl\napps = agentctl.create_app()\n",
        "the module typos has no app",
        "did you mean typos:apps?",
    ),
    "missing": ("", "No module named 'missing'", "hint: put missing.py in the current folder"),
    "unknown": (
        "import agentctl\napp = agentctl.create_app('nothing.toml')\n",
        "nothing.toml: the file does not exist",
        "hint: create one",
    ),
    "number": (
        "import agentctl\napp = agentctl.create_app(7)\n",
        "TypeError: config must be a path or Settings, not int",
        "hint: correct number.py, line 2",
    ),
    "collides": (
        "import agentctl\napp = agentctl.create_app()\n"
        "@app.post('/sessions/{name}')\ndef get() -> None: ...\n",
        "the route /sessions/{name} is taken by the operation",
        "hint: choose another",
    ),
    "mounted": (
        "import agentctl\nfrom starlette.staticfiles import StaticFiles\n"
        "app = agentctl.create_app()\napp.mount('/console', StaticFiles(directory='.'))\n",
        "the route /console is taken by",
        "hint: choose another",
    ),
    "face": (
        "import agentctl\napp = agentctl.create_app()\n"
        "@app.get('/v1/orders')\ndef get() -> None: ...\n",
        "the route /v1/orders is taken by agentctl",
        "hint: choose another",
    ),
    "named": (
        "import agentctl\napp = agentctl.create_app()\n"
        "@app.get('/mine', operation_id='get_teams')\ndef get() -> None: ...\n",
        "the route /mine has the operation id of an operation: get_teams",
        "hint: choose another",
    ),
    "live": (
        "import agentctl\nfrom fastapi import APIRouter, WebSocket\napp = agentctl.create_app()\n"
        "router = APIRouter(prefix='/live')\n"
        "@router.websocket('/ws')\nasync def get(ws: WebSocket) -> None: ...\n"
        "app.include_router(router)\n",
        "the route /live/ws is a WebSocket, which agentctl does not serve",
        "hint: ",
    ),
    "lifespan": (
        "import agentctl\nfrom contextlib import asynccontextmanager\n"
        "@asynccontextmanager\nasync def lifespan(app):\n    raise OSError('password')\n    yield\n"
        "app = agentctl.create_app(lifespan=lifespan)\n",
        "the lifespan of the application failed at its start: OSError at lifespan.py, line 5",
        "hint: correct the lifespan",
    ),
    "scope": (
        "import agentctl\nagentctl.require('orders')\n",
        "ValueError: agentctl.require: 'orders' is not a scope",
        "hint: correct scope.py, line 2",
    ),
}


@pytest.mark.parametrize("module", WRONG)
def test_wrong_application_is_explained(deploy: Deploy, module: str) -> None:
    folder = deploy("[openai]\nenabled = true\n").folder
    text, error, hint = WRONG[module]
    if text:
        (folder / f"{module}.py").write_text(text)

    options = ("--app", f"{module}:app", "--port", "0")
    ended = run_command("serve", *options, folder=folder, environment=os.environ)

    assert ended.code in (1, 2), ended.stderr
    assert error in ended.stderr
    assert hint in ended.stderr
    assert "password" not in ended.stderr


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--app", "shop:app", "--config", "x.toml"), "--app and --config cannot be used together"),
        (("--app", "shop:app", "--demo"), "--app and --demo cannot be used together"),
        (("--app", "shop"), "--app shop cannot be used"),
    ],
)
def test_wrong_options_are_explained(tmp_path: Path, options: tuple[str, ...], error: str) -> None:
    done = run_command("serve", *options, folder=tmp_path, environment=os.environ)
    assert done.code == 2
    assert error in done.stderr
    assert "hint: " in done.stderr
