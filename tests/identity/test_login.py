"""`agentctl login` at a certified identity provider: browser, code, renewal, sign-out."""

from __future__ import annotations

import json
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cli.conftest import Agentctl, agentctl, home
from tests.cli.conftest import environment as clean_environment
from tests.identity import person
from tests.identity.provider import Office, needs_provider
from tests.identity.short_tokens import serve_short_tokens
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.model import ModelEndpoint
from tests.kit.person import sit_at
from tests.kit.process import run_agentctl, start_agentctl

__all__ = ["agentctl", "clean_environment", "home"]

pytestmark = [needs_provider]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def office(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Office]:
    with serve_short_tokens(tmp_path_factory.mktemp("office"), model_endpoint.base_url) as office:
        yield office


@pytest.fixture
def environment(clean_environment: dict[str, str]) -> dict[str, str]:
    """A program as the browser, which signs Ada in, and no keyring."""
    return clean_environment | {
        "BROWSER": person.build_browser("ada"),
        "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
    }


Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def run(environment: dict[str, str], home: Path, office: Office) -> Run:
    """Run a command for the server in a process; it must succeed."""

    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[bytes]:
        ended = run_agentctl(*words, "--url", office.url, env=environment, cwd=home)
        assert ended.returncode == code, ended.stderr
        return ended

    return run


def find_file(home: Path) -> Path:
    (file,) = (home / ".config/agentctl/sign-ins").glob("*.json")
    return file


def read_stored(home: Path) -> dict[str, Any]:
    return dict(json.loads(find_file(home).read_text()))


def wait_for_end(home: Path) -> dict[str, Any]:
    """Wait until the stored token has expired; return the sign-in."""
    stored = read_stored(home)
    wait_for(lambda: time.time() > stored["expires_at"])
    return stored


def refresh(office: Office, refresh_token: str) -> int:
    """Use a refresh token at the provider; return the status."""
    fields = {"grant_type": "refresh_token", "client_id": "agentctl"}
    return httpx2.post(
        f"{office.issuer}/token", data={**fields, "refresh_token": refresh_token}
    ).status_code


def test_browser_signs_in_at_a_terminal(
    office: Office, environment: dict[str, str], agentctl: Agentctl, home: Path
) -> None:
    # The browser of the test is a program that has the terminal, too, and prints its page there.
    with sit_at("login", "--url", office.url, env=environment, folder=home) as user:
        screen = user.read_rest()
        assert user.process.returncode == 0, screen
    assert "signed in as ada" in screen
    assert "Continue in the terminal." in screen
    stored = read_stored(home)
    for text in (stored["token"], stored["refresh_token"]):
        assert text not in screen
    file = find_file(home)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [each.suffix for each in sorted(file.parent.iterdir())] == [".json", ".lock"]

    agentctl("context", "add", "office", "--url", office.url, "--use")
    (context,) = json.loads(agentctl("context", "list", "-o", "json").stdout)
    assert context["sign_in"].keys() == {"user", "name", "issuer", "expires_at", "kept_in"}
    assert (context["sign_in"]["user"], context["sign_in"]["kept_in"]) == ("ada", "file")
    assert f"ada at {office.issuer}" in agentctl("context", "list", "-o", "wide").stdout
    shown = agentctl("auth", "whoami", "--verbose", "-o", "json")
    assert json.loads(shown.stdout)["principal"] == "ada"
    assert stored["token"] not in shown.stderr


def test_commands_at_once_renew_the_token_once(
    office: Office, run: Run, environment: dict[str, str], home: Path
) -> None:
    run("login")
    for _ in range(2):
        # A second use of a refresh token would end the sign-in, and the second round would fail.
        before = wait_for_end(home)
        words = ("sessions", "list", "--url", office.url)
        started = [
            start_agentctl(*words, env=environment, cwd=home, stderr=subprocess.PIPE)
            for _ in range(4)
        ]
        for process in started:
            _, err = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, err
        after = read_stored(home)
        assert after["token"] != before["token"]
        assert after["refresh_token"] != before["refresh_token"]


def test_refused_token_is_renewed_and_the_request_sent_again(
    office: Office, run: Run, home: Path
) -> None:
    run("login")
    stored = wait_for_end(home)
    find_file(home).write_text(json.dumps({**stored, "renew_at": time.time() + 600}))
    run("agents", "list")
    assert read_stored(home)["token"] != stored["token"]


def test_long_command_renews_its_token(
    office: Office, run: Run, environment: dict[str, str], home: Path
) -> None:
    run("login")
    tokens = {read_stored(home)["token"]}
    words = ("sessions", "list", "--watch", "-o", "jsonl", "--url", office.url)
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with start_agentctl(*words, env=environment, cwd=home, **pipes) as process:

        def is_renewed_twice() -> bool:
            assert process.poll() is None, process.stderr and process.stderr.read()
            tokens.add(read_stored(home)["token"])
            return len(tokens) == 3

        wait_for(is_renewed_twice)
        process.terminate()


def test_ended_sign_in_names_the_command(office: Office, run: Run, home: Path) -> None:
    run("login")
    stored = wait_for_end(home)
    assert refresh(office, stored["refresh_token"]) == 200
    assert refresh(office, stored["refresh_token"]) == 400
    error = run("agents", "list", code=4).stderr.decode()
    assert "error: the sign-in has ended" in error
    assert "expired, was revoked, or was used already" in error
    assert f"agentctl login --url {office.url}" in error
    assert stored["refresh_token"] not in error


def test_sign_out_revokes_and_deletes(office: Office, run: Run, home: Path) -> None:
    run("login")
    stored = read_stored(home)
    said = run("logout").stderr.decode()
    assert f"deleted the tokens of ada for {office.url} from the file" in said
    assert f"{office.issuer} has revoked the refresh token" in said
    assert refresh(office, stored["refresh_token"]) == 400
    assert not list((home / ".config/agentctl/sign-ins").glob("*.json"))
    assert b"no sign-in is kept" in run("logout", code=5).stderr
    assert b"agentctl login" in run("agents", "list", code=4).stderr


def test_code_signs_in_from_another_machine(
    office: Office, environment: dict[str, str], home: Path
) -> None:
    for denies, code, text in ((False, 0, "signed in as ada"), (True, 1, "denied the request")):
        with start_agentctl(
            *("login", "--device", "--url", office.url),
            env=environment,
            cwd=home,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            lines = [process.stderr.readline() for _ in range(3)]
            url, shown = (line.rpartition(": ")[2].strip() for line in lines[1:])
            person.sign_in("ada", url, shown, denies=denies)
            rest = process.stderr.read()
            assert (process.wait(PATIENCE), text in rest) == (code, True), rest


def test_tokens_are_in_the_keyring(
    office: Office, run: Run, environment: dict[str, str], home: Path
) -> None:
    environment |= {
        "PYTHON_KEYRING_BACKEND": "tests.identity.file_keyring.FileKeyring",
        "PYTHONPATH": str(ROOT),
        "TEST_KEYRING": str(home),
    }
    assert b"the tokens are in the keyring" in run("login").stderr
    stored = wait_for_end(home)
    assert "token" not in stored
    run("agents", "list")
    (secrets,) = json.loads((home / "secrets.json").read_text()).values()
    (home / "locked").touch()
    error = run("agents", "list", code=7).stderr.decode()
    assert "the keyring cannot be used" in error
    assert "it is locked" in error
    assert "--insecure-storage" in error
    assert "a text that" not in error
    (home / "locked").unlink()
    run("logout")
    assert json.loads((home / "secrets.json").read_text()) == {}
    assert refresh(office, json.loads(secrets)["refresh_token"]) == 400
    run("login")
    assert b"in the file" in run("login", "--insecure-storage").stderr
    assert json.loads((home / "secrets.json").read_text()) == {}


@pytest.fixture
def other_users_may_read(home: Path, run: Run) -> Path:
    run("login")
    file = find_file(home)
    file.chmod(0o644)
    return file


def test_file_that_others_can_read_is_not_used(other_users_may_read: Path, run: Run) -> None:
    error = run("agents", "list", code=2).stderr.decode()
    assert "other users can read or write it" in error
    assert "agentctl login --url" in error
    run("login")
    assert stat.S_IMODE(other_users_may_read.stat().st_mode) == 0o600
