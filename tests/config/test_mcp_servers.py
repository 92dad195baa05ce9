"""Entries of `[[mcp_servers]]`, and the tools of agents that name them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from agentctl.config import SAMPLE_CONFIG, effective_settings, load_settings
from agentctl.config.mcp_servers import is_per_user, parse_template
from agentctl.config.mcp_table import McpServer
from agentctl.config.tables import settings_from_text, settings_to_text
from tests.config.conftest import AGENT, Reads, Refuses


def program(keys: str = "") -> str:
    return f'\n[[mcp_servers]]\nid = "files"\ncommand = "serve-files"\n{keys}\n'


def web(keys: str = "") -> str:
    return f'\n[[mcp_servers]]\nid = "web"\nurl = "http://127.0.0.1:9/mcp"\n{keys}\n'


def agent(*tools: str) -> str:
    return AGENT + f"tools = {list(tools)!r}\n"


WRONG = {
    program('url = "http://127.0.0.1:9"'): (
        "mcp_servers.files.url: must have exactly one of command and url"
    ),
    '[[mcp_servers]]\nid = "files"': (
        "mcp_servers.files.command: must have exactly one of command and url"
    ),
    '[[mcp_servers]]\nid = "my.files"\ncommand = "x"': (
        'mcp_servers[0].id: must be an id: 1 to 32 letters, digits, "_" and "-", starting with a '
        'letter, not "my.files"'
    ),
    program("headers = { A = 'b' }"): "mcp_servers.files.headers: has no effect with command",
    web("args = ['-v']"): "mcp_servers.web.args: has no effect with url",
    program("env = { A = '${user_id}' }"): (
        "mcp_servers.files.env.A: has an unknown placeholder; it may have ${env:NAME}"
    ),
    web("headers = { X = '${HOME}' }"): (
        "mcp_servers.web.headers.X: has an unknown placeholder; it may have ${env:NAME}, "
        "${user_id} and ${claims:NAME}"
    ),
    web("headers = { Host = 'x' }"): "mcp_servers.web.headers.Host: is set by the protocol",
    web('headers = { X = "a\\nb" }'): (
        "mcp_servers.web.headers.X: must be a text of printable ASCII characters, with "
        '"${env:NAME}" for an environment variable, not this one'
    ),
    web("headers = { 'X Y' = 'a' }"): (
        'mcp_servers.web.headers."X Y": must be the name of a header: letters, digits and signs, '
        'not "X Y"'
    ),
    web("headers = 'X: y'"): (
        "mcp_servers.web.headers: must be a table, each value a text of printable ASCII "
        'characters, with "${env:NAME}" for an environment variable, not this one'
    ),
    web("headers = { Authorization = 'Bearer abc' }"): (
        "mcp_servers.web.headers.Authorization: looks like a secret, which does not belong into "
        "the file"
    ),
    program("env = { GITHUB_TOKEN = 'abc' }"): (
        "mcp_servers.files.env.GITHUB_TOKEN: looks like a secret, which does not belong into the "
        "file"
    ),
    agent("mcp:flies") + program(): (
        'agents.writer.tools: no entry of [[mcp_servers]] has the id "flies"; did you mean "files"?'
    ),
    agent("mcp:files.delete") + program("allow_tools = ['read_*']"): (
        'agents.writer.tools: names "mcp:files.delete", which allow_tools of files does not allow'
    ),
    agent("mcp:files."): (
        'agents.writer.tools[0]: must be "package.module:function", "mcp:server" or '
        '"mcp:server.tool", not "mcp:files."'
    ),
}


@pytest.mark.parametrize("text", WRONG)
def test_mistake_in_an_mcp_server_is_refused_with_its_key(refuses: Refuses, text: str) -> None:
    assert refuses(text) == WRONG[text]


def test_entry_has_defaults_and_repeated_arguments(reads: Reads) -> None:
    text = agent("mcp:files", "mcp:files.a/b.c-d") + program("args = ['-v', '-v']")
    settings = reads(text)
    assert settings.mcp_servers == (McpServer("files", command="serve-files", args=("-v", "-v")),)
    assert settings.agents[0].tools == ("mcp:files", "mcp:files.a/b.c-d")


def test_settings_with_an_mcp_server_reach_worker_processes(reads: Reads) -> None:
    settings = reads(program("env = { A = 'x', B_TOKEN = '${env:B}' }") + web())
    assert settings_from_text(settings_to_text(settings)) == settings
    shown = effective_settings(settings)["mcp_servers"][0]
    assert shown["env"] == {"A": "x", "B_TOKEN": "${env:B}"}


def test_header_with_data_of_the_user_makes_a_session_for_each_user(reads: Reads) -> None:
    header = "headers = { X = 'u-${user_id}', Y = '${claims:https://example.org/tenant}' }"
    (server,) = reads(web(header)).mcp_servers
    assert is_per_user(server)
    assert parse_template("u-${user_id}") == [("text", "u-"), ("user", "user_id")]
    assert not is_per_user(reads(web("headers = { X = '${env:A}' }")).mcp_servers[0])


def test_commented_mcp_servers_of_the_sample_load(tmp_path: Path) -> None:
    start = SAMPLE_CONFIG.index("# [[mcp_servers]]")
    commented = SAMPLE_CONFIG[start : SAMPLE_CONFIG.index("\n\n", start)]
    file = tmp_path / "agentctl.toml"
    file.write_text("\n".join(line.removeprefix("#") for line in commented.splitlines()))
    program, _ = load_settings(file, {}).mcp_servers
    defaults = McpServer("x")
    assert program.call_seconds == defaults.call_seconds
    shown = {key for key in ("command", "args", "env", "url", "headers") if key in commented}
    assert {field.name for field in dataclasses.fields(McpServer)} == shown | {
        "id", "allow_tools", "idempotent_tools", "call_seconds",
    }  # fmt: skip
