"""`agentctl auth`: who one is, what one may do, and why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentctl.auth.policy import POLICY
from agentctl.records.authorization import KNOWN_SCOPES
from tests.cli.conftest import Agentctl
from tests.cli.demo import Demo
from tests.cli.projects import make_project
from tests.kit.tables import every_row

AGENT = """
[[databases]]
id = "main"
url = "sqlite:///main.db"

[[models]]
id = "echo"
provider = "demo"
model = "echo"

[[agents]]
id = "echo"
name = "Echo"
model = "echo"
"""


@pytest.fixture
def project(home: Path) -> Path:
    return make_project(home, rest=AGENT)


def mint(agentctl: Agentctl, *options: str, config: Path | None = None) -> str:
    where = () if config is None else ("--config", str(config))
    ended = agentctl("token", "mint", "--yes", *options, *where)
    assert ended.code == 0, ended.stderr
    return ended.stdout.strip()


@pytest.fixture
def reader(agentctl: Agentctl, project: Path) -> Path:
    """The file of a token of `me` for one agent."""
    token = mint(agentctl, "--sub", "me", "--scope", "agents:echo:read", "--scope", "agents:run")
    file = project.parent / "reader.token"
    file.write_text(token + "\n")
    return file


# explain


def test_explain_reports_an_allowed_request(agentctl: Agentctl, reader: Path) -> None:
    ended = agentctl("auth", "explain", "GET", "/agents/echo", "--token-file", str(reader))
    assert ended.code == 0
    assert ended.stderr == "allowed: get_agent as me\n"
    assert ended.lines[0] == "name\toutcome\tfound\tcause\tremedy"
    steps = [line.split("\t")[:2] for line in ended.lines[1:]]
    assert all(outcome == "passed" for _, outcome in steps[:-1])
    assert [name for name, _ in steps][:3] == ["authorization", "credential", "length"]
    assert reader.read_text().strip() not in ended.stdout + ended.stderr


def test_explain_reports_reason_and_fix_of_a_denial(agentctl: Agentctl, reader: Path) -> None:
    ended = agentctl("auth", "explain", "get", "/agents/other", "--token-file", str(reader))
    assert ended.code == 1
    verdict, cause, empty, hint = ended.stderr.splitlines()
    assert verdict == "403: rejected by policy as me"
    assert cause == '  cause: "agents:echo:read" is for another agent, not "other"; ' + (
        '"agents:run" allows run, not read'
    )
    assert (empty, hint[:40]) == ("", "hint: grant one of: agents:other:read or")


def test_explain_in_every_output_format(agentctl: Agentctl, reader: Path) -> None:
    asked = ("auth", "explain", "GET", "/sessions", "--token-file", str(reader), "-o")
    seen: dict[str, Any] = json.loads(agentctl(*asked, "json").stdout)
    assert (seen["status"], seen["decided_by"], seen["allowed"]) == (403, "policy", False)
    table = agentctl(*asked, "table")
    assert table.code == 1
    assert table.lines[0].split() == ["STEP", "OUTCOME", "FOUND"]
    assert [line.split()[:2] for line in table.lines[1:]] == [["policy", "failed"]]
    passed = sum(step["outcome"] == "passed" for step in seen["steps"])
    assert table.stderr.splitlines()[-1] == f"{passed} checks passed (--all shows them)"
    whole = agentctl(*asked, "table", "--all")
    assert [line.split()[0] for line in whole.lines[1:]] == [step["name"] for step in seen["steps"]]
    lines = [json.loads(line) for line in agentctl(*asked, "jsonl").lines]
    assert [line.keys() for line in lines] == [step.keys() for step in seen["steps"]]
    assert agentctl(*asked, "name").lines == [step["name"] for step in lines]


def test_explain_reads_the_token_from_each_source(agentctl: Agentctl, reader: Path) -> None:
    asked = ("auth", "explain", "GET", "/agents/echo")
    token = reader.read_text()
    assert agentctl(*asked, "--token-file", "-", input=token).code == 0
    from_environment = agentctl(*asked, env={"AGENTCTL_TOKEN": token})
    assert (from_environment.code, from_environment.stderr) == (0, "allowed: get_agent as me\n")
    nothing = agentctl(*asked)
    assert nothing.code == 1
    assert nothing.stderr.startswith("401: rejected by credential\n")
    without = agentctl(*asked, "--no-token", env={"AGENTCTL_TOKEN": token})
    assert without.stderr == nothing.stderr
    both = agentctl(*asked, "--no-token", "--token-file", str(reader))
    assert (both.code, both.stdout) == (2, "")


@every_row(
    "arguments, code, told",
    [
        (("GET", "agents"), 2, "path must begin with /"),
        (("G T", "/agents"), 2, "method must be a word"),
        (("GET", "/agents", "--token-file", "none-there"), 2, "no token can be read"),
        (("GET", "/agents", "--config", "none.toml"), 2, "none.toml"),
        (("GET", "/agents", "--url", "http://127.0.0.1:1"), 7, "cannot"),
        (("GET",), 2, "PATH"),
    ],
)
def test_explain_rejects_wrong_requests(
    agentctl: Agentctl, project: Path, arguments: tuple[str, ...], code: int, told: str
) -> None:
    ended = agentctl("auth", "explain", *arguments)
    assert (ended.code, ended.stdout) == (code, "")
    assert told in ended.stderr


def test_explain_fails_with_invalid_keys(agentctl: Agentctl, project: Path) -> None:
    (project.parent / "keys" / "signing.pub.pem").write_text("nonsense")
    ended = agentctl("auth", "explain", "GET", "/agents", "--no-token")
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: ")


def test_explain_creates_no_database(agentctl: Agentctl, reader: Path) -> None:
    ended = agentctl("auth", "explain", "GET", "/agents/echo", "--token-file", str(reader))
    assert ended.code == 0
    assert not list(reader.parent.glob("*.db"))


def test_a_server_explains_only_to_administrators(
    agentctl: Agentctl, demo: Demo, tmp_path: Path
) -> None:
    one = mint(agentctl, "--sub", "bob", "--scope", "sessions:read", config=demo.config)
    file = tmp_path / "bob.token"
    file.write_text(one)
    demo.run("auth-explained", "hello")
    asked = ("auth", "explain", "GET", "/sessions/auth-explained", "--url", demo.url)
    boss = {"AGENTCTL_TOKEN": demo.token}
    ended = agentctl(*asked, "--token-file", str(file), "-o", "json", env=boss)
    told = json.loads(ended.stdout)
    assert (ended.code, told["status"], told["principal"]) == (1, 404, "bob")
    assert told["steps"][-1]["cause"] == 'the session exists and belongs to "ada"'
    own = agentctl(*asked, env=boss)
    assert (own.code, own.stderr) == (0, "allowed: get_session_by_id as ada\n")
    only = agentctl(*asked, "--token-file", str(file))
    assert (only.code, only.stdout) == (4, ""), "bob asks himself, and is no administrator"
    nobody = agentctl(*asked, "--no-token")
    assert (nobody.code, nobody.stdout) == (4, "")
    offline = agentctl(
        *asked[:4], "--config", str(demo.config), "--token-file", str(file), "-o", "json"
    )
    assert json.loads(offline.stdout)["decided_by"] == "data"


# whoami


def test_whoami_in_local_mode(agentctl: Agentctl, project: Path) -> None:
    ended = agentctl("auth", "whoami", "-o", "json")
    assert ended.code == 0
    seen = json.loads(ended.stdout)
    assert seen["principal"].startswith("local:")
    assert (seen["admin"], seen["scopes"]) == (True, [])
    acting = agentctl("auth", "whoami", "--as-user", "ann", "-o", "name")
    assert acting.stdout == "ann\n"


def test_whoami_on_a_server(agentctl: Agentctl, demo: Demo) -> None:
    asked = ("auth", "whoami", "--url", demo.url)
    env = {"AGENTCTL_TOKEN": demo.token}
    table = agentctl(*asked, "-o", "table", env=env)
    assert table.code == 0
    assert "ada" in table.stdout
    assert "agent_os:admin" in table.stdout
    assert "expires" in table.stdout
    assert " min (" in table.stdout or " h (" in table.stdout
    assert demo.token not in table.stdout
    assert json.loads(agentctl(*asked, "-o", "json", env=env).stdout)["principal"] == "ada"
    refused = agentctl(*asked)
    assert (refused.code, refused.stdout) == (4, "")


# can-i


@pytest.fixture
def limited(agentctl: Agentctl, demo: Demo) -> dict[str, str]:
    """The environment of somebody with two scopes."""
    options = ("--sub", "eve", "--scope", "agents:echo:run", "--scope", "sessions:read")
    return {"AGENTCTL_TOKEN": mint(agentctl, *options, config=demo.config)}


@every_row(
    "asked, yes, by",
    [
        (("POST", "/agents/echo/runs"), True, "granted by agents:echo:run"),
        (("post", "/agents/slow/runs"), False, None),
        (("GET", "/agents"), False, None),
        (("GET", "/sessions/any?x=1"), True, "granted by sessions:read"),
        (("HEAD", "/auth/me"), True, "allowed for every valid token"),
        (("GET", "/health"), True, "public: credentials are ignored"),
        (("POST", "/auth/explain"), False, None),
        (("sessions:read",), True, "granted by sessions:read"),
        (("sessions:one:read",), True, "granted by sessions:read"),
        (("agents:echo:run",), True, "granted by agents:echo:run"),
        (("agents:run",), False, None),
        (("agent_os:admin",), False, None),
        (("create_agent_run", "--agent", "echo"), True, "granted by agents:echo:run"),
        (("create_agent_run", "--agent", "slow"), False, None),
        (("create_agent_run",), False, None),
        (("get_session_by_id", "--session", "s"), True, "granted by sessions:read"),
        (("get_team", "--team", "duo"), False, None),
        (("get_workflow", "--workflow", "relay"), False, None),
    ],
)
def test_can_i_for_a_caller_with_scopes(
    agentctl: Agentctl,
    demo: Demo,
    limited: dict[str, str],
    asked: tuple[str, ...],
    yes: bool,
    by: str | None,
) -> None:
    ended = agentctl("auth", "can-i", *asked, "--url", demo.url, "-o", "json", env=limited)
    told = json.loads(ended.stdout)
    assert (ended.code, told["allowed"], told["by"]) == (0 if yes else 1, yes, by)
    assert told["principal"] == "eve"
    assert ended.stderr == ""


def test_answer_of_can_i_is_a_word_for_scripts(
    agentctl: Agentctl, demo: Demo, limited: dict[str, str]
) -> None:
    for scope, code, word in (("sessions:read", 0, "true"), ("agents:run", 1, "false")):
        asked = ("auth", "can-i", scope, "--url", demo.url, "-o", "name")
        answer = agentctl(*asked, env=limited)
        assert (answer.code, answer.lines) == (code, [word])


def test_can_i_for_an_administrator(agentctl: Agentctl, demo: Demo, project: Path) -> None:
    boss = {"AGENTCTL_TOKEN": demo.token}
    for asked in (("explain_auth",), ("agents:run",), ("DELETE", "/sessions/any")):
        for where, env in ((("--url", demo.url), boss), ((), {})):
            ended = agentctl("auth", "can-i", *asked, *where, env=env)
            assert ended.code == 0
            assert "the caller is an administrator" in ended.stdout


@every_row(
    "asked, told",
    [
        (("agent:rnu",), "did you mean 'agents:run'?"),
        (("get_agnt",), "did you mean 'get_agent'?"),
        (("xyzzy",), "auth scopes"),
        (("GET",), "add a path: agentctl"),
        (("GET", "/nothing"), "is not an operation"),
        (("GET", "/agents/"), "no slash at the end"),
        (("PUT", "/agents"), "its methods are GET, HEAD"),
        (("get_agents", "--agent", "x"), "--agent has no effect with get_agents"),
        (("agents:run", "--team", "x"), "--team has no effect"),
        (("GET", "/agents", "--session", "x"), "--session has no effect"),
    ],
)
def test_can_i_rejects_unknown_questions(
    agentctl: Agentctl, project: Path, asked: tuple[str, ...], told: str
) -> None:
    ended = agentctl("auth", "can-i", *asked)
    assert (ended.code, ended.stdout) == (2, "")
    assert told in ended.stderr


def test_can_i_fails_with_an_invalid_token(agentctl: Agentctl, demo: Demo) -> None:
    ended = agentctl("auth", "can-i", "agents:run", "--url", demo.url)
    assert (ended.code, ended.stdout) == (4, "")


# scopes


def test_scopes_lists_every_operation(agentctl: Agentctl) -> None:
    ended = agentctl("auth", "scopes", "-o", "json")
    assert (ended.code, ended.stderr) == (0, "")
    table = json.loads(ended.stdout)
    assert {entry["scope"] for entry in table} == {*KNOWN_SCOPES, "agent_os:admin", None}
    opened = {each["operation"] for entry in table for each in entry["operations"]}
    assert opened == set(POLICY)
    (run,) = (entry for entry in table if entry["scope"] == "agents:run")
    assert run["forms"] == ["agents:run", "agents:*:run", "agents:<id>:run"]
    path = {"operation": "create_agent_run", "method": "POST", "path": "/agents/{agent_id}/runs"}
    assert path in run["operations"]


def test_scopes_as_a_table(agentctl: Agentctl, home: Path) -> None:
    make_project(home, extra='admin_scope = "own:admin"')
    ended = agentctl("auth", "scopes", "-o", "table")
    assert ended.code == 0
    assert "own:admin" in ended.stdout
    assert "agent_os:admin" not in ended.stdout
    assert "(public)" in ended.stdout
    tsv = agentctl("auth", "scopes")
    assert tsv.lines[0] == "scope\talso_as\topens"
    assert "agents:run\tagents:*:run, agents:<id>:run\tcreate_agent_run" in tsv.stdout
    broken = agentctl("auth", "scopes", "--config", "none.toml")
    assert (broken.code, broken.stdout) == (2, "")


# What `token inspect` and `token verify` say of permissions


def test_inspect_marks_ignored_claims(agentctl: Agentctl, project: Path) -> None:
    from tests.kit.forged_tokens import fixed, token

    odd = token(
        {"alg": "ES256"},
        {
            "scope": "agents:read",
            "scopes": ["agent:rnu", "agents:run"],
            "realm_access": {"roles": ["x"]},
            "groups": [],
        },
        fixed(b"x" * 64),
    )
    seen = agentctl("token", "inspect", "-", input=odd).stdout
    line = 'not read: set scopes_claim = ["scopes", "scope"] in [authorization]'
    assert f"claims.scope\tagents:read\t{line}\n" in seen
    assert 'not read: set roles_claim = ["realm_access.roles"] in [authorization], and' in seen
    assert "claims.groups\t[]\t\n" in seen
    assert "scope\tagent:rnu\tgrants nothing: did you mean agents:run?" in seen
    text = token({"alg": "ES256"}, {"scopes": "agents:read"}, fixed(b"x" * 64))
    seen = agentctl("token", "inspect", "-", input=text).stdout
    assert "claims.scopes\tagents:read\tgrants nothing: it is not an array" in seen


def test_verify_reports_reason_and_fix(agentctl: Agentctl, project: Path) -> None:
    from tests.kit.forged_tokens import fixed, token

    odd = token({"alg": "RS256"}, {"sub": "me"}, fixed(b"x" * 64))
    ended = agentctl("token", "verify", "-", input=odd)
    assert (ended.code, ended.stdout) == (4, "")
    assert 'authorization.algorithm is ES256, the alg of the token is "RS256"' in ended.stderr
    assert 'set authorization.algorithm = "RS256"' in ended.stderr
