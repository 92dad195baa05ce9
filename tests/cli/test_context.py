"""`agentctl context`: named servers, and whose credential goes where."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from agentctl.cli import contexts
from agentctl.errors import InvalidConfiguration, UsageError
from tests.cli.conftest import Agentctl, Terminal
from tests.kit.tables import every_row

URL = "http://127.0.0.1:7777"


@pytest.fixture
def stored(home: Path) -> Path:
    return home / ".config/agentctl/contexts.toml"


def _add(agentctl: Agentctl, name: str, *options: str, url: str = URL) -> None:
    ended = agentctl("context", "add", name, "--url", url, *options)
    assert (ended.code, ended.stdout) == (0, ""), ended.stderr


def test_add_list_use_current_remove(agentctl: Agentctl, home: Path, stored: Path) -> None:
    (home / "t").write_text("a.b.c")
    (home / "t").chmod(0o600)
    _add(agentctl, "demo", "--token-file", "t", "--use")
    _add(agentctl, "prod", url="https://example.com/os/")
    assert json.loads(agentctl("context", "list", "-o", "json").stdout) == [
        {
            "name": "demo",
            "current": True,
            "url": URL,
            "token_file": str(home / "t"),
            "sign_in": None,
        },
        {
            "name": "prod",
            "current": False,
            "url": "https://example.com/os",
            "token_file": None,
            "sign_in": None,
        },
    ]
    assert agentctl("context", "list", "-o", "name").lines == ["demo", "prod"]
    assert agentctl("context", "current").stdout == "demo\n"
    assert "https://example.com/os" in agentctl("context", "use", "prod").stderr
    assert agentctl("context", "current").stdout == "prod\n"
    assert agentctl("context", "current", env={"AGENTCTL_CONTEXT": "demo"}).stdout == "demo\n"
    assert "no current context" not in agentctl("context", "remove", "demo", "--yes").stderr
    assert "no current context" in agentctl("context", "remove", "prod", "--yes").stderr
    assert agentctl("context", "list", "-o", "json").stdout == "[]\n"
    assert agentctl("context", "current").code == 5
    assert (home / "t").exists()


def test_the_file_is_private_and_contains_no_token(
    agentctl: Agentctl, home: Path, stored: Path
) -> None:
    (home / "t").write_text("a.s3cret.c")
    ended = agentctl("context", "add", "demo", "--url", URL, "--token-file", "t")
    assert "chmod 600" in ended.stderr
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    assert stat.S_IMODE(stored.parent.stat().st_mode) == 0o700
    assert "s3cret" not in stored.read_text()
    assert [path.name for path in stored.parent.iterdir()] == ["contexts.toml"]


def test_current_fails_without_a_context(agentctl: Agentctl) -> None:
    ended = agentctl("context", "current")
    assert (ended.code, ended.stdout) == (5, "")
    assert "work locally" in ended.stderr
    assert agentctl("context", "list").code == 0


def test_use_none_clears_the_current_context(agentctl: Agentctl) -> None:
    _add(agentctl, "demo", "--use")
    assert agentctl("context", "use", "--none").code == 0
    assert agentctl("context", "current").code == 5
    assert agentctl("context", "use").code == 2
    assert agentctl("context", "use", "demo", "--none").code == 2


def test_a_wrong_name_gets_a_suggestion(agentctl: Agentctl) -> None:
    _add(agentctl, "production")
    for arguments in (("use", "prodution"), ("remove", "prodution", "--yes")):
        ended = agentctl("context", *arguments)
        assert (ended.code, ended.stdout) == (2, "")
        assert "did you mean production?" in ended.stderr
    ended = agentctl("context", "current", env={"AGENTCTL_CONTEXT": "x"})
    assert (ended.code, ended.stdout) == (2, "")
    assert "agentctl context list" in ended.stderr


def test_a_name_is_unique(agentctl: Agentctl, stored: Path) -> None:
    _add(agentctl, "demo")
    before = stored.read_bytes()
    ended = agentctl("context", "add", "demo", "--url", "http://localhost:1")
    assert ended.code == 6
    assert stored.read_bytes() == before


@every_row(
    "arguments",
    [
        ("demo", "--url", "localhost:7777"),
        ("demo", "--url", "http://u:p@host"),
        ("a b", "--url", URL),
        ("", "--url", URL),
        ("demo", "--url", URL, "--token-file", "-"),
        ("demo",),
    ],
)
def test_add_rejects_wrong_values(
    agentctl: Agentctl, stored: Path, arguments: tuple[str, ...]
) -> None:
    ended = agentctl("context", "add", *arguments)
    assert (ended.code, ended.stdout) == (2, "")
    assert "error: " in ended.stderr
    assert not stored.exists()


def test_remove_asks_for_a_confirmation(
    agentctl: Agentctl, terminal: Terminal, stored: Path
) -> None:
    _add(agentctl, "demo")
    before = stored.read_bytes()
    ended = agentctl("context", "remove", "demo")
    assert ended.code == 2
    assert "--yes" in ended.stderr
    assert terminal("context", "remove", "demo", types="n\n").code == 2
    assert stored.read_bytes() == before
    assert terminal("context", "remove", "demo", types="y\n").code == 0
    assert "demo" not in stored.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "not toml",
        "current = 1",
        'current = "x"',
        "[contexts.a]",
        "[contexts.a]\nurl = 1",
        '[contexts.a]\nurl = "http://h"\ntoken = "s3cret"',
        "[contexts]\na = 1",
        "contexts = 1",
        '[contexts.a]\nurl = "http://h"\ntoken_file = "relative"',
        "more = 1",
        '[contexts."a b"]\nurl = "http://h"',
        "\xff",
    ],
)
def test_a_damaged_file_is_reported_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = contexts.contexts_path()
    path.parent.mkdir()
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidConfiguration) as caught:
        contexts.load_contexts()
    assert str(path) in caught.value.detail
    assert "\n" not in f"{caught.value.detail}{caught.value.cause}"
    assert "s3cret" not in f"{caught.value.detail}{caught.value.cause}"
    with pytest.raises(InvalidConfiguration), contexts.updating():
        pytest.fail("a damaged store is not changed")
    assert path.read_bytes() == text.encode("latin-1")


def test_a_damaged_file_is_reported_at_a_terminal(agentctl: Agentctl, stored: Path) -> None:
    stored.parent.mkdir(parents=True)
    stored.write_text("current = [\n")
    ended = agentctl("context", "list")
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: the contexts in {stored} cannot be read\n")


def test_a_failed_change_keeps_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with contexts.updating() as stored:
        stored.by_name["a"] = contexts.Context("a", URL)
    before = contexts.contexts_path().read_bytes()
    with pytest.raises(UsageError), contexts.updating() as stored:
        contexts.find_context(stored, "b")
    assert contexts.contexts_path().read_bytes() == before


def test_concurrent_changes_lose_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def add(number: int) -> None:
        with contexts.updating() as stored:
            stored.by_name[f"c{number}"] = contexts.Context(f"c{number}", URL)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(24)))
    assert set(contexts.load_contexts().by_name) == {f"c{number}" for number in range(24)}


def test_a_linked_file_stays_a_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "dotfiles").mkdir()
    path = contexts.contexts_path()
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "dotfiles" / "contexts.toml")
    with contexts.updating() as stored:
        stored.by_name["a"] = contexts.Context("a", URL)
    assert path.is_symlink()
    assert contexts.load_contexts().by_name["a"].url == URL


@every_row(
    "url, same",
    [
        ("http://127.0.0.1:7777/mounted", True),
        ("HTTP://127.0.0.1:7777", True),
        ("http://127.0.0.1", False),
        ("https://127.0.0.1:7777", False),
        ("http://localhost:7777", False),
        ("http://127.0.0.1:7777.evil.example", None),
    ],
)
def test_a_token_is_sent_only_to_its_origin(url: str, same: bool | None) -> None:
    context = contexts.Context("a", URL, Path("/t"))
    if same is None:
        with pytest.raises(UsageError):
            contexts.credential_file(context, url)
    else:
        assert contexts.credential_file(context, url) == (Path("/t") if same else None)
    assert contexts.credential_file(contexts.Context("a", URL), url) is None
    assert contexts.credential_file(None, url) is None


def test_an_unwritable_directory_is_reported(agentctl: Agentctl, home: Path) -> None:
    (home / ".config").write_text("a file")
    for arguments in (("list",), ("add", "demo", "--url", URL)):
        ended = agentctl("context", *arguments)
        assert (ended.code, ended.stdout) == (2, "")
        assert "cannot be used" in ended.stderr


def test_a_missing_token_file_is_noted(agentctl: Agentctl, home: Path) -> None:
    ended = agentctl("context", "add", "demo", "--url", URL, "--token-file", "later")
    assert ended.code == 0
    assert f"{home / 'later'} cannot be read yet" in ended.stderr


def test_a_token_over_plain_http_is_noted(agentctl: Agentctl, home: Path) -> None:
    ended = agentctl("context", "add", "a", "--url", "http://10.0.0.1", "--token-file", "t")
    assert ended.code == 0
    assert "--insecure-http" in ended.stderr
