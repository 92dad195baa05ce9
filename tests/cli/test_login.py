"""`agentctl login`: every wrong input, and providers that break the rules, with bounds."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from agentctl.cli import sign_ins
from agentctl.cli.commands import login
from agentctl.cli.loopback import MAXIMUM_CONNECTIONS, LoopbackListener
from agentctl.cli.sign_ins import SignIn, changing_sign_in, forget_sign_in
from agentctl.errors import Unavailable, UsageError
from tests.cli.conftest import Agentctl
from tests.cli.demo import Demo
from tests.cli.local_project import running_command
from tests.cli.stub_provider import Answer, Provider, serve_provider
from tests.kit.conditions import PATIENCE, wait_for

DEVICE = (
    200,
    {
        "device_code": "dev",
        "user_code": "ABCD-EFGH",
        "verification_uri": "https://id.example/device",
        "expires_in": 60,
        "interval": 1,
    },
)


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with serve_provider() as provider:
        yield provider


@pytest.fixture
def environment(environment: dict[str, str]) -> dict[str, str]:
    return environment | {"PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring"}


def refuse(error: str, status: int = 400) -> Answer:
    return status, {"error": error, "error_description": "a text that no command shows"}


def test_wrong_options_are_named(agentctl: Agentctl, demo: Demo) -> None:
    other = ("--issuer", "http://id.example", "--client-id", "cli")
    # The exit code, and texts of what is printed.
    for words, code, texts in (
        ((), 2, ("no server is selected", "--url")),
        (("--url", demo.url), 5, ("names no provider", "--issuer and --client-id")),
        (("--url", demo.url, "--issuer", "https://id.example"), 5, ("names no provider",)),
        (("--url", demo.url, *other), 2, ("not https", "--issuer")),
        (("--url", "http://agents.example"), 2, ("plain http", "--insecure-http")),
        (("--url", demo.url, "--port", "70000"), 2, ("--port",)),
    ):
        ended = agentctl("login", *words)
        assert ended.code == code, ended.stderr
        assert all(text in ended.stderr for text in texts), ended.stderr


def test_provider_of_a_hostile_server_is_refused(agentctl: Agentctl, provider: Provider) -> None:
    named = {"issuer": provider.url, "client_id": "cli", "scopes": [], "token": "access_token"}
    info = {"os_id": "x", "name": "x", "version": "1", "interface_version": "1", "auth_mode": "jwt"}
    info |= dict.fromkeys(("agent_count", "team_count", "workflow_count"), 0)
    for changes, text in (
        ({"token": "refresh_token"}, "names no provider"),
        ({"client_id": ""}, "names no provider"),
        ({"scopes": 1}, "is not what agentctl expects"),
        ({"issuer": "http://id.example"}, "not https"),
        ({"issuer": "https://["}, "not https"),
        ({"issuer": "https://user:secret@id.example"}, "not https"),
    ):
        provider.answers = {"info": [(200, {**info, "sign_in": {**named, **changes}})]}
        ended = agentctl("login", "--url", provider.url, "--device")
        assert text in ended.stderr, ended.stderr
        assert "secret" not in ended.stderr


ENDLESS: Answer = (200, b"[")

BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "endless": ({"openid-configuration": ENDLESS}, "has more than 1048576 bytes"),
    "HTML": ({"openid-configuration": (200, b"<!doctype html>")}, "is not JSON"),
    "redirect": ({"openid-configuration": (302, b"")}, "redirects to another origin"),
    "no endpoint": ({"device_authorization_endpoint": None}, "no device_authorization_endpoint"),
    "endpoint": ({"token_endpoint": "http://id.example/token"}, "no token_endpoint with https"),
    "issuer": ({"issuer": "https://other.example"}, "is of another issuer"),
    "client": ({"device_authorization": refuse("invalid_client", 401)}, "at the provider"),
    "grant": ({"device_authorization": refuse("unauthorized_client")}, "not allow this kind"),
    "scope": ({"device_authorization": refuse("invalid_scope")}, "does not grant these scopes"),
    "page": (
        {"device_authorization": (200, {**DEVICE[1], "verification_uri": "file:///etc/passwd"})},
        "no code to enter, or no page",
    ),
    "code": (
        {"device_authorization": (200, {**DEVICE[1], "user_code": "\x1b[31m"})},
        "no code to enter, or no page",
    ),
    "denied": ({"token": refuse("access_denied")}, "denied the request"),
    "expired": ({"token": refuse("expired_token")}, "not entered in time"),
    "no token": ({"token": (200, {"token_type": "Bearer"})}, "returned no access_token"),
    "long token": ({"token": (200, {"access_token": "x" * 9_000})}, "returned no access_token"),
    "endless token": ({"token": ENDLESS}, "has more than 1048576 bytes"),
    "down": ({"token": (503, {})}, "responds with 503"),
    "unknown": ({"token": refuse("of_its_own")}, "gave no reason"),
}


def test_provider_that_breaks_the_rules_is_named(
    agentctl: Agentctl, demo: Demo, provider: Provider, home: Path
) -> None:
    for name, (changes, text) in BROKEN.items():
        members = {key: value for key, value in changes.items() if "_endpoint" in key}
        members |= {key: value for key, value in changes.items() if key == "issuer"}
        answers = {"openid-configuration": provider.configure(**members)}
        answers |= {"device_authorization": DEVICE, "token": (200, {})}
        answers |= {key: value for key, value in changes.items() if key not in members}
        provider.answers = {key: [value] for key, value in answers.items()}
        given = ("--issuer", provider.url, "--client-id", "cli", "--device")
        ended = agentctl("login", "--url", demo.url, *given)
        assert ended.code in (1, 7), (name, ended.stderr)
        assert text in ended.stderr, (name, ended.stderr)
        assert "a text that no command shows" not in ended.stderr
        assert "\x1b" not in ended.stderr
    assert not list((home / ".config/agentctl/sign-ins").glob("*.json"))


def test_unreachable_provider_is_named(agentctl: Agentctl, demo: Demo) -> None:
    given = ("--issuer", "http://127.0.0.1:9", "--client-id", "cli", "--no-open")
    ended = agentctl("login", "--url", demo.url, *given)
    assert ended.code == 7
    assert "the provider of the sign-in is not available" in ended.stderr
    assert "the server cannot be reached" in ended.stderr


def test_code_is_shown_without_a_browser(
    agentctl: Agentctl, demo: Demo, provider: Provider
) -> None:
    provider.answers = {
        "openid-configuration": [provider.configure()],
        "device_authorization": [DEVICE],
        "token": [refuse("access_denied")],
    }
    given = ("--issuer", provider.url, "--client-id", "cli")
    for variables in ({}, {"DISPLAY": ":0", "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}):
        ended = agentctl("login", "--url", demo.url, *given, env=variables)
        assert "https://id.example/device" in ended.stderr
        assert "ABCD-EFGH" in ended.stderr


def test_slow_down_adds_five_seconds(agentctl: Agentctl, demo: Demo, provider: Provider) -> None:
    pending = refuse("authorization_pending")
    slow = refuse("slow_down")
    provider.answers = {
        "openid-configuration": [provider.configure()],
        "device_authorization": [DEVICE],
        "token": [pending, slow, (200, {"access_token": "not.a.token"})],
    }
    provider.polls.clear()
    given = ("--issuer", provider.url, "--client-id", "cli", "--device")

    ended = agentctl("login", "--url", demo.url, *given)

    first, second, third = provider.polls
    assert second - first >= 1
    assert third - second >= 6

    assert ended.code == 4
    assert "the server does not accept the token of the provider" in ended.stderr
    assert "check issuer and audience in [authorization]" in ended.stderr
    assert "not.a.token" not in ended.stderr


@pytest.fixture
def browser() -> Iterator[httpx2.Client]:
    with httpx2.Client() as browser:
        yield browser


@dataclass(frozen=True)
class WaitingSignIn:
    """A command that waits for the response of the provider in a browser."""

    command: subprocess.Popen[bytes]

    log: Path
    """The text that it prints."""

    callback: str
    """The address to which the provider sends the browser."""

    state: str
    """Value that the response must repeat."""

    def read_failure(self) -> str:
        """Return what the command has printed; it exits with 1."""
        assert self.command.wait(PATIENCE) == 1
        return self.log.read_text()


BeginSignIn = Callable[[], contextlib.AbstractContextManager[WaitingSignIn]]


@pytest.fixture
def begin_sign_in(
    demo: Demo, provider: Provider, environment: dict[str, str], tmp_path: Path
) -> BeginSignIn:
    """Sign in with a provider that names itself in its responses, and refuses every code."""
    provider.answers = {
        "openid-configuration": [
            provider.configure(authorization_response_iss_parameter_supported=True)
        ],
        "token": [refuse("invalid_grant")],
    }
    given = ("--issuer", provider.url, "--client-id", "cli", "--no-open")
    log = tmp_path / "login.log"

    @contextlib.contextmanager
    def begin() -> Iterator[WaitingSignIn]:
        words = ("login", "--url", demo.url, *given)
        with running_command(*words, environment=environment, log=log) as command:
            line = wait_for(lambda: re.search(r": (http\S+)\n", log.read_text()))
            query = parse_qs(urlsplit(line[1]).query)
            assert query["code_challenge_method"] == ["S256"]
            (callback,) = query["redirect_uri"]
            (state,) = query["state"]
            yield WaitingSignIn(command, log, callback, state)

    return begin


FAILED_RESPONSES: list[tuple[dict[str, str], str]] = [
    ({"error": "<b>of its own</b>"}, "the provider gave no reason"),
    ({"code": "c", "iss": "https://other.example"}, "is of another provider"),
    ({"code": "c"}, "is of another provider"),
    ({"code": "c", "iss": "PROVIDER"}, "expired, was revoked, or was used already"),
]
"""Responses with the right state, and what the command says about them."""


def test_failed_sign_in_is_explained_in_the_terminal(
    begin_sign_in: BeginSignIn, provider: Provider, browser: httpx2.Client
) -> None:
    for response, text in FAILED_RESPONSES:
        with begin_sign_in() as waiting:
            fields = {
                name: value.replace("PROVIDER", provider.url) for name, value in response.items()
            }

            page = browser.get(waiting.callback, params={"state": waiting.state, **fields})

            assert "The sign-in failed: see the terminal." in page.text
            assert page.headers["cache-control"] == "no-store"
            failure = waiting.read_failure()
            assert text in failure
            assert "of its own" not in failure


def test_responses_of_other_pages_do_not_end_a_sign_in(
    begin_sign_in: BeginSignIn, browser: httpx2.Client
) -> None:
    with begin_sign_in() as waiting:
        callback = waiting.callback
        assert browser.get(callback.replace("callback", "favicon.ico")).status_code == 404
        assert browser.get(f"{callback}?state=a&state=b&code=c").status_code == 404
        assert browser.post(callback, params={"state": waiting.state}).status_code == 404
        for foreign in ({"code": "c"}, {"state": "", "code": "c"}, {"state": "é", "code": "c"}):
            assert browser.get(callback, params=foreign).status_code == 404

        page = browser.get(callback, params={"state": waiting.state, "error": "access_denied"})
        assert "The sign-in failed: see the terminal." in page.text
        assert "denied the request" in waiting.read_failure()

    with pytest.raises(httpx2.ConnectError):
        browser.get(callback)


async def test_other_requests_do_not_end_the_wait(caplog: pytest.LogCaptureFixture) -> None:
    async with LoopbackListener(0) as listener:
        port = urlsplit(listener.redirect_uri).port

        async def ask(target: str) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET {target} HTTP/1.1\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            return answer

        # Nothing is expected yet: an empty state is not the right one.
        assert b"404" in await ask("/callback?state=&code=c")
        waiting = asyncio.ensure_future(listener.wait("expected", 30))
        await asyncio.sleep(0)

        many = "&".join(f"a{number}=" for number in range(100))
        for target in ("//[", f"/callback?{many}", "/callback?state=x&code=c", "/favicon.ico"):
            assert b"404" in await asyncio.wait_for(ask(target), PATIENCE), target
        for _ in range(MAXIMUM_CONNECTIONS):
            assert b"404" in await ask("/")

        last = asyncio.ensure_future(ask("/callback?state=expected&code=c"))
        assert await waiting == {"state": "expected", "code": "c"}

    assert b"Continue in the terminal." in await last
    assert caplog.messages == []


def test_browser_that_never_returns_is_a_timeout(
    agentctl: Agentctl, demo: Demo, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "SECONDS", 0.2)
    provider.answers = {"openid-configuration": [provider.configure()]}
    given = ("--issuer", provider.url, "--client-id", "cli", "--no-open")
    ended = agentctl("login", "--url", demo.url, *given)
    assert ended.code == Unavailable.exit_code
    assert "the browser did not return within 0.2 seconds" in ended.stderr
    assert "--device" in ended.stderr


def test_port_in_use_is_named(agentctl: Agentctl, demo: Demo, provider: Provider) -> None:
    provider.answers = {"openid-configuration": [provider.configure()]}
    port = provider.url.rpartition(":")[2]
    given = ("--issuer", provider.url, "--client-id", "cli", "--no-open", "--port", port)
    ended = agentctl("login", "--url", demo.url, *given)
    assert ended.code == UsageError.exit_code
    assert f"port {port} of this machine cannot be used" in ended.stderr


def test_place_that_cannot_be_written_is_named(
    agentctl: Agentctl, demo: Demo, provider: Provider, home: Path
) -> None:
    provider.answers = {
        "openid-configuration": [provider.configure()],
        "device_authorization": [DEVICE],
        "token": [(200, {})],
    }
    (home / ".config/agentctl").mkdir(parents=True)
    (home / ".config/agentctl/sign-ins").write_text("a file in place of the folder")
    given = ("--issuer", provider.url, "--client-id", "cli", "--device")
    ended = agentctl("login", "--url", demo.url, *given)
    assert ended.code == UsageError.exit_code
    assert "sign-ins" in ended.stderr
    assert "check who owns the file and its directory" in ended.stderr
    assert "ABCD-EFGH" not in ended.stderr


def test_sign_out_waits_for_a_renewal(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    server = "http://127.0.0.1:9"
    sign_in = SignIn(server, server, "cli", "access_token", "ada", "", "file", refresh_token="1")
    with ThreadPoolExecutor() as threads:
        with changing_sign_in(server) as store:
            store(sign_in)
        with changing_sign_in(server) as store:
            ended = threads.submit(forget_sign_in, server)
            with pytest.raises(TimeoutError):
                ended.result(0.1)
            store(replace(sign_in, refresh_token="2"))
        forgotten = ended.result(PATIENCE)
    assert forgotten is not None
    assert forgotten.refresh_token == "2"
    assert forget_sign_in(server) is None


@pytest.fixture
def stored_sign_in(demo: Demo, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path at which the sign-in of the demo would be stored, in a folder that exists."""
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
        path = sign_ins._find_path(demo.url)
    path.parent.mkdir(parents=True)
    return path


def test_damaged_sign_in_is_named(agentctl: Agentctl, demo: Demo, stored_sign_in: Path) -> None:
    agentctl("context", "add", "damaged", "--url", demo.url, "--use")
    for text in ("", "[", "[]", "{}", '{"server": 1}', "\xff", "[" * 100_000):
        stored_sign_in.write_text(text)
        stored_sign_in.chmod(0o600)

        ended = agentctl("agents", "list", "--url", demo.url)
        assert ended.code == UsageError.exit_code
        assert "is damaged" in ended.stderr
        assert "agentctl login --url" in ended.stderr

        listed = agentctl("context", "list")
        assert listed.code == 0, listed.stderr
        assert "damaged" in listed.stdout
        assert "remove the file, then sign in again" in listed.stderr


def test_stored_sign_in_that_is_no_file_is_named(
    agentctl: Agentctl, demo: Demo, stored_sign_in: Path, home: Path
) -> None:
    stored_sign_in.symlink_to(home / "elsewhere")
    assert "cannot be used" in agentctl("agents", "list", "--url", demo.url).stderr

    stored_sign_in.unlink()
    stored_sign_in.mkdir()
    ended = agentctl("agents", "list", "--url", demo.url)
    assert f"the sign-in in {stored_sign_in} cannot be used" in ended.stderr


def test_given_token_takes_precedence_over_a_damaged_sign_in(
    agentctl: Agentctl, demo: Demo, stored_sign_in: Path, home: Path
) -> None:
    stored_sign_in.symlink_to(home / "elsewhere")
    listed = agentctl("agents", "list", "--url", demo.url, env={"AGENTCTL_TOKEN": demo.token})
    assert listed.code == 0, listed.stderr
