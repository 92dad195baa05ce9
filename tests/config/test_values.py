"""One-line errors of wrong keys, types and values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentctl.config import effective_settings
from agentctl.config.settings import ModelSettings
from agentctl.config.tables import ENTRY_TABLES, FORMER_KEYS, FORMER_PROBLEM
from agentctl.errors import InvalidConfiguration
from tests.config.conftest import AGENT, Reads, Refuses
from tests.kit.tables import every_row

WRONG_VALUES = {
    '[server]\nport = "x"': 'server.port: must be an integer from 0 to 65535, not "x"',
    "[server]\nport = true": "server.port: must be an integer from 0 to 65535, not true",
    "[server]\nport = 1.5": "server.port: must be an integer from 0 to 65535, not 1.5",
    "[server]\nport = 65536": "server.port: must be an integer from 0 to 65535, not 65536",
    "[server]\nport = -1": "server.port: must be an integer from 0 to 65535, not -1",
    "[server]\nport = [1]": "server.port: must be an integer from 0 to 65535, not a list",
    "[server]\nport = {}": "server.port: must be an integer from 0 to 65535, not a table",
    "[server]\nport = 2020-01-01": ("server.port: must not be a date or time; write it in quotes"),
    "[server]\nport = 0x8000000000000000": (
        "server.port: must not have an integer of more than 64 bits"
    ),
    "[server]\ndrain_seconds = nan": (
        "server.drain_seconds: must be a number from 0 to 3600, not nan"
    ),
    "[server]\ndrain_seconds = inf": (
        "server.drain_seconds: must be a number from 0 to 3600, not inf"
    ),
    '[server]\non_disconnect = "stop"': (
        'server.on_disconnect: must be one of: cancel, detach, not "stop"'
    ),
    '[server]\nhost = "localhost:80"': (
        'server.host: must be a host name or an address without a port, not "localhost:80"'
    ),
    '[server]\nhost = ""': (
        'server.host: must be a host name or an address without a port, not ""'
    ),
    '[server]\nname = " "': 'server.name: must be a non-empty text, not " "',
    '[server]\nname = "a\\u0000b"': ("server.name: must not contain NUL or lone surrogates"),
    '[server]\nid = "-x"': (
        'server.id: must be an id: 1 to 64 letters, digits, ".", "_" and "-", starting with a '
        'letter or a digit, not "-x"'
    ),
    '[server]\ncors_origins = "*"': (
        "server.cors_origins: must be a list, each element an origin like "
        '"https://app.example.org" without a path, or "*", not "*"'
    ),
    '[server]\ncors_origins = ["*", "app.example.org"]': (
        'server.cors_origins[1]: must be an origin like "https://app.example.org" without a path, '
        'or "*", not "app.example.org"'
    ),
    '[server]\ncors_origins = ["*", "*"]': 'server.cors_origins: must not contain "*" twice',
    '[server]\ncors_origins = ["*", "https://a.example"]': (
        'server.cors_origins: "*" allows every origin, the others have no effect'
    ),
    "[limits]\nmessage_bytes = 1_048_577": (
        "limits.message_bytes: has no effect above limits.body_bytes, which is 1048576"
    ),
    "[limits]\nbody_bytes = 0": (
        "limits.body_bytes: must be an integer from 1 to 1073741824, not 0"
    ),
    "[limits]\ntool_result_bytes = 10_000\nrun_bytes = 9_999": (
        "limits.tool_result_bytes: has no effect above limits.run_bytes, which is 9999"
    ),
    "[runs]\ntool_timeout_seconds = 60\ntimeout_seconds = 0.5": (
        "runs.tool_timeout_seconds: has no effect above runs.timeout_seconds, which is 0.5"
    ),
    "[server]\ncors_origins = [1]": (
        'server.cors_origins[0]: must be an origin like "https://app.example.org" without a path, '
        'or "*", not 1'
    ),
    '[authorization]\nenabled = "yes"': ('authorization.enabled: must be true or false, not "yes"'),
    "[authorization]\nenabled = 1": "authorization.enabled: must be true or false, not 1",
    "[authorization]\njwks_file = 1": (
        "authorization.jwks_file: must be a text, or a list, each element the path of a file, not 1"
    ),
    '[authorization]\nverification_key_files = [""]': (
        'authorization.verification_key_files[0]: must be the path of a file, not ""'
    ),
    '[authorization]\nadmin_scope = "agents:run"': (
        'authorization.admin_scope: must be a scope like "agent_os:admin" that ends in none of '
        'read, run, write, delete, not "agents:run"'
    ),
    '[authorization]\naudience = "me"': (
        "authorization.audience: has no effect while authorization.verify_audience is false"
    ),
    "[authorization]\nscopes_claim = 1": (
        "authorization.scopes_claim: must be a text, or a list, each element the name of a claim, "
        'or a path to a member of one, like "realm_access.roles", not 1'
    ),
    '[authorization]\nscopes_claim = "the scopes"': (
        "authorization.scopes_claim[0]: must be the name of a claim, or a path to a member of one, "
        'like "realm_access.roles", not "the scopes"'
    ),
    '[authorization]\nscopes_claim = ["a", "a"]': (
        'authorization.scopes_claim: must not contain "a" twice'
    ),
    '[authorization]\nscopes_claim = ""': (
        "authorization.scopes_claim: must name a claim, unless roles_claim does"
    ),
    '[authorization]\nscope_prefix = "a b"': (
        'authorization.scope_prefix: must be a prefix like "api://agents/", without spaces, or '
        'empty, not "a b"'
    ),
    '[authorization]\nroles_claim = "groups"': (
        "authorization.roles_claim: has no effect without roles"
    ),
    '[authorization.roles]\nviewer = ["agents:read"]': (
        "authorization.roles: has no effect without roles_claim"
    ),
    '[authorization]\nroles_claim = "g"\n[authorization.roles]\nviewer = "agents:read"': (
        "authorization.roles.viewer: must be a list, each element a non-empty text, "
        'not "agents:read"'
    ),
    '[authorization]\nroles_claim = "g"\n[authorization.roles]\n"" = []': (
        'authorization.roles."": must be the name of a role or group: 1 to 256 characters without '
        'spaces at the ends, not ""'
    ),
    '[authorization]\nroles_claim = "g"\n[authorization.roles]\nviewer = ["agent:read"]': (
        'authorization.roles.viewer: "agent:read" is not a scope; did you mean "agents:read"?'
    ),
    '[authorization]\nroles_claim = "g"\n[authorization.roles]\nviewer = ["agents:*"]': (
        'authorization.roles.viewer: "agents:*" is not a scope; did you mean "agents:run"?'
    ),
    '[authorization]\nroles_claim = "g"\n[authorization.roles]\n"a b" = ["agent_os:admin"]': (
        'authorization.roles."a b": grants "agent_os:admin", which allows everything'
    ),
    "[runs]\ntimeout_seconds = 0": (
        "runs.timeout_seconds: must be a number from 0.01 to 2592000, not 0"
    ),
    "server = 5": "server: must be a table, written [server]",
    "[agents]": "agents: must be a list of tables, each written [[agents]]",
    "agents = [1]": "agents: must be a list of tables, each written [[agents]]",
}


@every_row("text, expected", WRONG_VALUES.items())
def test_error_names_the_allowed_values(text: str, expected: str, refuses: Refuses) -> None:
    assert refuses(text) == expected


UNKNOWN_KEYS = {
    "[server]\nprot = 1": 'server.prot: this version has no such key, did you mean "port"?',
    "[serve]": 'serve: this version has no such key, did you mean "server"?',
    "[runs]\nretries = 1": (
        "runs.retries: this version has no such key; it has timeout_seconds,"
        " tool_timeout_seconds, on_change, on_halt"
    ),
    '[runs]\n"a\\nb" = 1': (
        'runs."a\\nb": this version has no such key; it has timeout_seconds,'
        " tool_timeout_seconds, on_change, on_halt"
    ),
    AGENT + 'modle = "fast"': (
        'agents.writer.modle: this version has no such key, did you mean "model"?'
    ),
}


@pytest.mark.parametrize(("text", "expected"), UNKNOWN_KEYS.items())
def test_unknown_key_gets_a_suggestion(text: str, expected: str, refuses: Refuses) -> None:
    assert refuses(text) == expected


@pytest.mark.parametrize("text", ['compatibility = "agentos"'])
def test_keys_of_later_versions_are_rejected(text: str, refuses: Refuses) -> None:
    line = refuses(text)
    assert "this version has no such key" in line
    assert "did you mean" not in line


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ('[authorization]\nverification_keys = "hunter2"', "hunter2"),
        ('[authorization]\nverification_keys = ["hunter2", "hunter2"]', "hunter2"),
        ('[authorization]\nverification_keys = ["hunter2\\u0000"]', "hunter2"),
        (
            '[[models]]\nid = "a"\nprovider = "openai"\nmodel = "m"\napi_key_env = "sk-hunter2"',
            "hunter2",
        ),
        (
            '[[models]]\nid = "a"\nprovider = "openai"\nmodel = "m"\n'
            'base_url = "https://me:hunter2@example.org"',
            "hunter2",
        ),
    ],
)
def test_errors_never_repeat_a_secret(text: str, secret: str, refuses: Refuses) -> None:
    assert secret not in refuses(text)


def test_error_of_the_library_has_no_value(reads: Reads) -> None:
    """A traceback would show it below the error."""
    with pytest.raises(InvalidConfiguration) as caught:
        reads('[authorization]\nverification_keys = "hunter2"')
    assert "verification_keys" in str(caught.value.__context__)
    assert "hunter2" not in str(caught.value.__context__)


def test_whole_number_is_accepted_for_a_float(reads: Reads) -> None:
    settings = reads("[server]\ndrain_seconds = 0\nport = 0\n[runs]\ntimeout_seconds = 0.5")
    assert (settings.server.drain_seconds, settings.server.port) == (0, 0)
    assert settings.runs.timeout_seconds == 0.5


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0", "::", "::1", "fe80::1%eth0", "a-b.c"])
def test_hosts_are_names_or_addresses(host: str, reads: Reads) -> None:
    assert reads(f'[server]\nhost = "{host}"').server.host == host


def test_values_in_messages_are_short(refuses: Refuses) -> None:
    line = refuses('[server]\nhost = "a\\n' + "b" * 100 + '"')
    assert line.endswith('not "a\\n' + "b" * 38 + '…"')


def test_settings_of_models_are_nested_tables(reads: Reads) -> None:
    text = """
[[models]]
id = "m"
provider = "openai"
model = "x"
retries = 0
[models.settings]
temperature = 0
stop = ["a", "b"]
extra_body = { top_k = 3, nested = { on = true } }

[[agents]]
id = "writer"
model = "m"
settings = { max_tokens = 9 }
"""
    loaded = reads(text)
    assert loaded.models[0].settings == ModelSettings(
        temperature=0, stop=("a", "b"), extra_body={"top_k": 3, "nested": {"on": True}}
    )
    assert loaded.agents[0].settings == ModelSettings(max_tokens=9)
    assert loaded.sources["models.m.settings.temperature"].endswith(":8")
    shown = effective_settings(loaded)
    assert shown["models"][0]["settings"]["temperature"] == 0
    assert shown["agents"][0]["settings"] == {"max_tokens": 9}


def write_key(key: str, value: str) -> str:
    """Return a configuration with a key of a table, an entry, or a table of an entry."""
    table, *between, name = key.split(".")
    line = f"{name} = {value}"
    for inner in between:
        line = f"{inner} = {{ {line} }}"
    return f'[[{table}]]\nid = "x"\n{line}' if table in ENTRY_TABLES else f"[{table}]\n{line}"


def test_folder_of_the_guide_must_have_a_site(reads: Reads, refuses: Refuses, file: Path) -> None:
    text = '[server]\nguide = "pages"'
    folder = file.parent / "pages"
    error = f"server.guide: {folder} has no documentation site: it needs an index.html"
    assert refuses(text) == error

    folder.mkdir()
    (folder / "index.html").write_text("<title>Start</title>")
    assert reads(text).server.guide == folder


@pytest.mark.parametrize(("key", "value"), FORMER_KEYS.items())
def test_former_key_names_its_constant(key: str, value: object, refuses: Refuses) -> None:
    problem = FORMER_PROBLEM.format(value)
    assert refuses(write_key(key, "3")) == f"{key}: {problem}"
    table, _, name = key.partition(".")
    if table not in ENTRY_TABLES:
        variable = f"AGENTCTL_{table}__{name}".upper()
        assert refuses("", {variable: "3"}) == f"{variable}: {problem}"


@pytest.mark.parametrize(("key", "value"), FORMER_KEYS.items())
def test_former_key_with_the_constant_is_accepted(key: str, value: object, reads: Reads) -> None:
    table, _, name = key.partition(".")
    if table in ENTRY_TABLES:
        with pytest.raises(InvalidConfiguration) as caught:  # The entry lacks other keys.
            reads(write_key(key, json.dumps(value)))
        assert key.rpartition(".")[2] not in caught.value.detail
        return
    reads(write_key(key, json.dumps(value)))
    reads("", {f"AGENTCTL_{table}__{name}".upper(): str(value)})


def test_layout_of_agentos_names_the_way_to_its_sessions(reads: Reads) -> None:
    """Without the key a server would create its tables in a PostgreSQL database of AgentOS."""
    text = '[[databases]]\nid = "old"\nurl = "sqlite:///agentos.db"\nlayout = "agentos"\n'
    with pytest.raises(InvalidConfiguration) as caught:
        reads(text)
    assert caught.value.exit_code == 2
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("remove this entry of [[databases]]; docs/agentos.md")


def test_all_former_keys_of_a_file_are_named_at_once(reads: Reads) -> None:
    text = "[limits]\nheader_count = 99\n[approvals]\npending = 8\n"
    with pytest.raises(InvalidConfiguration) as caught:
        reads(text)
    assert caught.value.hint == "remove the keys: limits.header_count, approvals.pending"
    assert caught.value.cause == "line 2 of the file"
