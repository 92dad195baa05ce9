"""`agentctl keys rotate`: no valid token is rejected, and the old key is invalid at the end."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from tests.cli.conftest import Agentctl, Terminal
from tests.cli.projects import make_project
from tests.kit.command import shift_clock
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import Deployment
from tests.kit.process import start_agentctl
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

AT_ONCE = ("keys", "rotate", "--wait", "0")


def jwks_project(agentctl: Agentctl, folder: Path) -> Path:
    """A server whose keys are in a JWKS that agentctl made."""
    config = make_project(folder)
    (folder / "jwks.json").write_text(agentctl("keys", "jwks", cwd=folder).stdout)
    config.write_text('[authorization]\nalgorithm = "ES256"\njwks_file = "jwks.json"\n')
    return config


def pem_project(agentctl: Agentctl, folder: Path) -> Path:
    """A server as `init` makes it."""
    return make_project(folder)


def init_project(agentctl: Agentctl, folder: Path) -> Path:
    assert agentctl("init", str(folder)).code == 0
    return folder / "agentctl.toml"


def mint(agentctl: Agentctl) -> str:
    (token,) = agentctl("token", "mint", "--sub", "me", "--scope", "teams:read").lines
    return token


def holds(agentctl: Agentctl, token: str) -> bool:
    return agentctl("token", "verify", "-", input=token).code == 0


def ask(server: ThreadedServer, token: str) -> int:
    """The status that the server answers to the token."""
    request = urllib.request.Request(
        f"{server.url}/teams", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code


@contextmanager
def asking(server: ThreadedServer, token: str) -> Iterator[Counter[int]]:
    """Ask again and again while the block lasts; how often there was which answer."""
    answers: Counter[int] = Counter()
    ended = threading.Event()

    def ask_on() -> None:
        while not ended.wait(0.05):
            answers[ask(server, token)] += 1

    thread = threading.Thread(target=ask_on)
    thread.start()
    try:
        yield answers
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("project", [pem_project, jwks_project])
def test_a_running_server_rejects_no_token_during_a_rotation(
    agentctl: Agentctl, home: Path, project: Callable[[Agentctl, Path], Path]
) -> None:
    config = project(agentctl, home)
    old = mint(agentctl)
    with serve_in_thread(Deployment(config.parent)) as server:
        with asking(server, old) as of_old:
            # A server reads changed keys each second. By default, the command waits for longer.
            ended = agentctl("keys", "rotate", "--wait", "3")
            assert ended.code == 0, ended.stderr
            new = mint(agentctl)
            assert ask(server, new) == 200, "the key that signs is known at once"
            with asking(server, new) as of_new:
                enough = of_old.total() + 20
                wait_for(lambda: of_old.total() >= enough and of_new.total() >= 20)
        assert of_old.keys() == of_new.keys() == {200}
        with asking(server, new) as of_new:
            assert agentctl("keys", "rotate", "--finish", "--yes").code == 0
            wait_for(lambda: ask(server, old) == 401)
            wait_for(lambda: of_new.total() > 10)
        assert of_new.keys() == {200}
    assert not holds(agentctl, old)


def test_rotate_prints_the_new_key_id(agentctl: Agentctl, home: Path) -> None:
    config = make_project(home)
    (before,) = json.loads(agentctl("keys", "list", "-o", "json").stdout)
    began = time.time()
    ended = agentctl(*AT_ONCE, "--overlap", "8h", "--config", str(config))
    (kid,) = ended.lines
    aside = home / "keys" / f"signing.{before['kid'][:8]}.pem"
    assert ended.code == 0
    assert f"added the new public key to {home}/keys/signing.pub.pem" in ended.stderr
    assert f"the old private key is kept in {aside}" in ended.stderr
    assert f"agentctl keys rotate --config {config} --finish" in ended.stderr
    assert (aside.stat().st_mode & 0o777) == 0o600
    new, old = json.loads(agentctl("keys", "list", "-o", "json").stdout)
    assert (new["kid"], new["signs"], new["removable_at"]) == (kid, True, None)
    assert (old["kid"], old["signs"]) == (before["kid"], False)
    left = datetime.fromisoformat(old["removable_at"]).timestamp() - 8 * 3_600
    assert began - 1 <= left <= time.time()


def test_finish_before_the_overlap_ends_needs_a_confirmation(
    agentctl: Agentctl, terminal: Terminal, home: Path
) -> None:
    make_project(home)
    old = mint(agentctl)
    agentctl(*AT_ONCE)
    new = mint(agentctl)
    early = agentctl("keys", "rotate", "--finish")
    assert (early.code, early.stdout) == (2, "")
    assert "can be valid until 20" in early.stderr
    assert "Z, for 1 h" in early.stderr
    assert "--yes" in early.stderr
    assert terminal("keys", "rotate", "--finish", types="n\n").code == 2
    assert holds(agentctl, old)
    seen = terminal("keys", "rotate", "--finish", types="y\n")
    assert (seen.code, "Remove the old public key now?" in seen.screen) == (0, True)
    assert not holds(agentctl, old)
    assert holds(agentctl, new)


def test_finish_after_the_overlap_asks_nothing(agentctl: Agentctl, home: Path) -> None:
    make_project(home)
    (old,) = json.loads(agentctl("keys", "list", "-o", "json").stdout)
    agentctl(*AT_ONCE, "--overlap", "1h", "--drop-old-private")
    with shift_clock(2 * 3_600):
        ended = agentctl("keys", "rotate", "--finish")
    assert (ended.code, ended.lines) == (0, [old["kid"]])
    assert sorted(path.name for path in (home / "keys").iterdir()) == [
        "signing.pem",
        "signing.pub.pem",
    ]


def test_a_second_rotation_needs_a_finished_first(agentctl: Agentctl, home: Path) -> None:
    make_project(home)
    nothing = agentctl("keys", "rotate", "--finish")
    assert (nothing.code, nothing.stdout) == (6, "")
    assert "there is no rotation to finish" in nothing.stderr
    assert agentctl(*AT_ONCE).code == 0
    again = agentctl(*AT_ONCE)
    assert (again.code, again.stdout) == (6, "")
    assert "hint: agentctl keys rotate --finish" in again.stderr
    assert agentctl("keys", "rotate", "--finish", "--yes").code == 0
    assert agentctl(*AT_ONCE).code == 0


def test_an_interrupted_rotation_keeps_the_old_key(
    agentctl: Agentctl, terminal: Terminal, home: Path
) -> None:
    make_project(home)
    token = mint(agentctl)

    seen = terminal("keys", "rotate", "--wait", "600", types="\x03", when="waiting 600 s")

    assert seen.code == 130
    assert "the old key still signs" in seen.screen
    assert holds(agentctl, token)
    half = agentctl("keys", "rotate", "--finish")
    assert (half.code, "incomplete" in half.stderr) == (6, True)


def test_a_killed_rotation_can_be_completed(
    agentctl: Agentctl, home: Path, environment: dict[str, str]
) -> None:
    config = init_project(agentctl, home / "p")
    at = {"AGENTCTL_CONFIG": str(config)}
    token = agentctl("token", "mint", "--sub", "me", env=at).stdout

    process = start_agentctl(
        *("keys", "rotate", "--wait", "600"),
        env=environment | at,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )

    assert process.stderr is not None
    with process, process.stderr as said:
        while "waiting 600 s" not in said.readline():
            assert process.poll() is None

        busy = agentctl(*AT_ONCE, env=at)
        assert (busy.code, "another process changes the keys" in busy.stderr.lower()) == (6, True)

        process.kill()

    half = agentctl("keys", "rotate", "--finish", env=at)
    assert (half.code, "incomplete" in half.stderr) == (6, True)
    assert agentctl("token", "verify", "-", input=token, env=at).code == 0

    second = agentctl("token", "mint", "--sub", "me", env=at).stdout
    assert agentctl("token", "verify", "-", input=second, env=at).code == 0

    ended = agentctl(*AT_ONCE, env=at)
    assert ended.code == 0
    assert "resuming an interrupted rotation" in ended.stderr
    assert len(json.loads(agentctl("keys", "list", "-o", "json", env=at).stdout)) == 2

    for each in (token, second, agentctl("token", "mint", env=at).stdout):
        assert agentctl("token", "verify", "-", input=each, env=at).code == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--finish", "--overlap", "1h"), "--finish excludes"),
        (("--finish", "--drop-old-private"), "--finish excludes"),
        (("--overlap", "60"), "'60' is not a time span"),
        (("--wait", "-1"), "--wait must be a number from 0 to 3600"),
    ],
)
def test_rotate_rejects_wrong_options(
    agentctl: Agentctl, home: Path, arguments: tuple[str, ...], told: str
) -> None:
    make_project(home)
    ended = agentctl("keys", "rotate", *arguments)
    assert (ended.code, ended.stdout) == (2, "")
    assert told in ended.stderr


def test_a_shared_secret_cannot_be_rotated(agentctl: Agentctl, home: Path) -> None:
    make_project(home, "HS256")
    ended = agentctl(*AT_ONCE)
    assert (ended.code, ended.stdout) == (2, "")
    assert "hint: store the secrets in a JWKS" in ended.stderr
