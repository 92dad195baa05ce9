"""Search of the configuration file, and errors of unreadable files."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentctl.config import find_config_file, load_settings
from agentctl.errors import InvalidConfiguration, UsageError
from tests.config.conftest import Reads


def error_of(path: Path | None, environ: dict[str, str] | None = None) -> InvalidConfiguration:
    with pytest.raises(InvalidConfiguration) as caught:
        load_settings(path, environ or {})
    assert "\n" not in caught.value.detail
    return caught.value


def test_configuration_files_are_searched_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    users = tmp_path / "users" / "agentctl"
    here.mkdir()
    users.mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "users"))

    error = error_of(None)
    assert str(here / "agentctl.toml") in error.detail
    assert "agentctl init" in (error.hint or "")

    (users / "agentctl.toml").touch()
    assert find_config_file(None, {}) == users / "agentctl.toml"
    with pytest.raises(UsageError, match="AGENTCTL_CONFIG has an empty value"):
        find_config_file(None, {"AGENTCTL_CONFIG": ""})
    (here / "agentctl.toml").touch()
    assert find_config_file(None, {}) == here / "agentctl.toml"
    assert find_config_file(None, {"AGENTCTL_CONFIG": "other.toml"}) == here / "other.toml"
    assert (
        find_config_file(Path("../named.toml"), {"AGENTCTL_CONFIG": "x"}) == tmp_path / "named.toml"
    )


def test_paths_are_relative_to_the_file(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    settings = reads(
        "[authorization]\nverification_key_files = ['k.pem', '/abs.pem']\njwks_file = '../j.json'\n"
        "[signing]\nkey_file = 'deep/s.pem'\n"
        "[[databases]]\nid = 'one'\nurl = 'sqlite:///data/a b.db'\n"
        "[[databases]]\nid = 'two'\nurl = 'sqlite:////var/b.db'\n"
    )
    assert settings.authorization.verification_key_files == (tmp_path / "k.pem", Path("/abs.pem"))
    assert settings.authorization.jwks_file == (tmp_path.parent / "j.json",)
    assert settings.signing.key_file == tmp_path / "deep" / "s.pem"
    assert [one.url for one in settings.databases] == [
        f"sqlite:///{tmp_path}/data/a b.db",
        "sqlite:////var/b.db",
    ]
    assert settings.path == tmp_path / "agentctl.toml"


def test_empty_file_gives_the_defaults(tmp_path: Path, reads: Reads) -> None:
    settings = reads("")
    assert [(one.id, one.url) for one in settings.databases] == [
        ("main", f"sqlite:///{tmp_path}/agentctl.db")
    ]
    assert settings.signing.key_file == tmp_path / "keys" / "signing.pem"
    assert settings.authorization.jwks_file == ()


def test_missing_file_is_named_in_the_error(file: Path) -> None:
    error = error_of(file)
    assert error.detail == f"{file}: the file does not exist"
    assert "agentctl init" in (error.hint or "")
    assert error_of(None, {"AGENTCTL_CONFIG": str(file)}).detail == error.detail


def test_folders_and_binary_files_are_rejected(tmp_path: Path, file: Path) -> None:
    assert error_of(tmp_path).detail == f"{tmp_path}: must be a file, not a directory"
    file.write_bytes(b"\xff\xfe")
    assert error_of(file).detail == f"{file}: must be UTF-8 text"
    assert error_of(file / "below").detail == f"{file / 'below'}: cannot be read: not a directory"


def test_byte_order_mark_is_ignored(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf[server]\r\nport = 1\r\n")
    assert load_settings(file, {}).server.port == 1


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[server]\nport = \n", " at line 2, column 8"),
        ("[server]\nport = 1\nport = 2\n", " at line 3, column 9"),
        ("[server]\nhost = localhost", " at line 2, column 8"),
        ("[server", " at its end, line 1"),
        ("a = " + "[" * 5000, ""),
        ("a = " + "9" * 5000, ""),
    ],
)
def test_toml_error_names_the_line(file: Path, text: str, where: str) -> None:
    file.write_text(text)
    assert error_of(file).detail == f"{file}: is not valid TOML{where}"


@pytest.mark.parametrize("name", ["search", "authorization.roles"])
def test_error_names_the_first_of_two_equal_tables(file: Path, name: str) -> None:
    file.write_text(f"\n[{name}] # off\na = false\n\n[{name}]\na = true\n")
    error = error_of(file)
    assert (error.cause, error.hint) == (
        f"[{name}] is also at line 2",
        "add the keys to the first one",
    )
    file.write_text("[authorization]\nroles.a = 1\n[authorization.roles]\na = 1\n")
    assert "also at line" not in str(error_of(file).cause)


def test_error_names_the_line_of_a_key(file: Path) -> None:
    file.write_text('[server]\nname = """\nport = 5\n"""\n\nport = "x"\n')
    assert error_of(file).cause == "line 6 of the file"
    file.write_text('[server]\n"port" = "x"\n')
    assert error_of(file).cause == "line 1 of the file"
    file.write_text('server.port = "x"\n')
    assert error_of(file).cause == "line 1 of the file"


@pytest.mark.parametrize(
    "text",
    [
        "\n[[agents]]\nid = 'a'",
        "\n[[server]]\nport = 1",
        "\n[[agent]]\nid = 'a'",
        "\n[telemetry]\na = 1",
    ],
)
def test_missing_key_names_the_line_of_its_table(file: Path, text: str) -> None:
    file.write_text(text)
    assert error_of(file).cause == "line 2 of the file"
