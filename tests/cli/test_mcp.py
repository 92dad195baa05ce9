"""`agentctl mcp`, and what doctor and `config check` report about MCP servers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from agentctl.config import load_settings
from agentctl.config.extras import build_extra_command
from agentctl.interop.mcp.settings import McpEndpoint
from tests.kit.command import Result, run_command
from tests.kit.documents import page
from tests.mcp.http_server import serve_http

SERVER = Path(__file__).parents[1] / "mcp" / "stdio_server.py"

CONFIG = f"""
[authorization]
enabled = false

[[databases]]
id = "main"
url = "sqlite:///agentctl.db"

[[models]]
id = "m"
provider = "demo"
model = "echo"

[[agents]]
id = "clerk"
model = "m"
tools = ["mcp:files.echo"]

[[mcp_servers]]
id = "files"
command = "{sys.executable}"
args = ["{SERVER}"]
allow_tools = ["echo", "pid", "absent"]
"""


def run(folder: Path, *arguments: str, more: str = "") -> Result:
    (folder / "agentctl.toml").write_text(CONFIG + more)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return run_command(*arguments, environment=environment, folder=folder)


def test_list_and_get_show_the_configured_servers(tmp_path: Path) -> None:
    more = '\n[[mcp_servers]]\nid = "shop"\nurl = "http://127.0.0.1:9/mcp"\n'
    listed = json.loads(run(tmp_path, "mcp", "list", "-o", "json", more=more).stdout)
    assert [(row["id"], row["transport"], row["used_by"]) for row in listed] == [
        ("files", "stdio", ["agent clerk"]),
        ("shop", "http", []),
    ]
    one = json.loads(run(tmp_path, "mcp", "get", "files", "-o", "json").stdout)
    assert one == listed[0]
    unknown = run(tmp_path, "mcp", "get", "flies")
    assert (unknown.code, unknown.stderr) == (
        5,
        "error: no MCP server flies\n\nhint: configured: files\n",
    )


def test_tools_lists_the_allowed_tools_as_models_see_them(tmp_path: Path) -> None:
    result = run(tmp_path, "mcp", "tools", "files", "-o", "name")
    assert (result.code, result.lines) == (0, ["files_echo", "files_pid"])


def test_check_reports_each_server_and_fails_for_one(tmp_path: Path) -> None:
    more = '\n[[mcp_servers]]\nid = "gone"\ncommand = "no-such-program"\n'
    result = run(tmp_path, "mcp", "check", "-o", "json", more=more)
    reports = {row["id"]: row for row in json.loads(result.stdout)}
    assert result.code == 1
    assert reports["files"]["state"] == "connected"
    assert reports["files"]["server"] == "test 1, protocol 2025-11-25"
    assert reports["gone"]["reason"] == "there is no program no-such-program"
    assert result.stderr.endswith("error: MCP servers that are not available: gone\n")


def test_check_of_a_server_for_users_takes_the_user(tmp_path: Path) -> None:
    with serve_http() as remote:
        more = (
            f'\n[[mcp_servers]]\nid = "shop"\nurl = "{remote.url}"\n'
            'headers = { X-User = "${user_id}", X-Tenant = "${claims:tenant}" }\n'
        )
        failed = run(tmp_path, "mcp", "check", "shop", more=more)
        assert failed.code == 1
        assert "give --user-id or --claim" in failed.stderr
        user = ("--user-id", "ann", "--claim", "tenant=acme")
        result = run(tmp_path, "mcp", "tools", "shop", *user, "-o", "name", more=more)
        assert "shop_for_ann" in result.lines
        assert run(tmp_path, "mcp", "check", "shop", "--claim", "x", more=more).code == 2


def test_doctor_finds_missing_servers_and_tools(tmp_path: Path) -> None:
    more = '\n[[mcp_servers]]\nid = "gone"\ncommand = "no-such-program"\n'
    more += '\n[[agents]]\nid = "other"\nmodel = "m"\ntools = ["mcp:files.absent"]\n'
    result = run(tmp_path, "doctor", "-o", "json", more=more)
    found = {
        (row["check"], row["verdict"]): row["what"]
        for row in json.loads(result.stdout)
        if row["check"].startswith("mcp")
    }
    assert result.code == 1
    assert found["mcp server gone", "wrong"] == (
        "it is not available: there is no program no-such-program"
    )
    assert found["mcp server files", "wrong"] == (
        "other names its tool absent, which it does not have"
    )
    assert found["mcp server files", "ok"].startswith("it is connected and has 2 tools")


def test_missing_package_is_one_line_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "mcp" else find_spec(name)
    )
    result = run(tmp_path, "config", "check")
    assert result.code == 2
    assert "[[mcp_servers]] needs a package that is not installed: mcp" in result.stderr
    assert f"hint: {build_extra_command('mcp')}" in result.stderr


@pytest.mark.parametrize(
    ("version", "code"), [("1.30.0", 2), ("2.2.0", 2), ("2.3.0", 0), ("2.10.1", 0)]
)
def test_package_that_is_too_old_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, code: int
) -> None:
    find = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: version if name == "mcp" else find(name)
    )
    result = run(tmp_path, "config", "check")
    assert result.code == code, result.stderr
    if code:
        expected = f"needs the package mcp in version 2.3 or later, not {version}"
        assert expected in result.stderr
        assert f"hint: {build_extra_command('mcp')}" in result.stderr


def test_commands_of_the_page_work(tmp_path: Path) -> None:
    """Run each command of `docs/mcp.md` against servers with the ids of the page."""
    blocks = page("docs/mcp.md").blocks("sh")
    lines = [line for block in blocks for line in block.text.splitlines() if " mcp " in line]
    commands = [shlex.split(line, comments=True)[1:] for line in lines]
    assert [command[1] for command in commands] == ["list", "check", "tools", "check"]
    with serve_http() as remote:
        more = f'\n[[mcp_servers]]\nid = "shop"\nurl = "{remote.url}"\n'
        for command in commands:
            result = run(tmp_path, *command, more=more)
            assert (result.code, command) == (0, command), result.stderr


def test_configuration_of_the_page_loads(tmp_path: Path) -> None:
    servers, endpoint = page("docs/mcp.md").blocks("toml")
    model = '[[models]]\nid = "fast"\nprovider = "demo"\nmodel = "echo"\n'
    file = tmp_path / "agentctl.toml"
    file.write_text(f"{model}{servers.text}\n{endpoint.text}")
    settings = load_settings(file, {})
    assert settings.get_table(McpEndpoint).enabled
    files, shop = settings.mcp_servers
    assert (files.command, shop.url) == ("mcp-server-files", "https://shop.example.org/mcp")
