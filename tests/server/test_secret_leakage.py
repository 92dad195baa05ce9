"""No secret of a deployment leaks: each one is a canary that is searched for afterwards.

L01 to L07: valid and invalid credentials, in the Authorization field and everywhere else, the
verification key, the key of a model, and error texts of tools and providers. Data of users
(messages, ids in paths) is stored on purpose and is not a canary.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from typer.testing import CliRunner

from agentctl.auth.tokens.account_tokens import generate_account_token
from agentctl.cli.root import app
from tests.kit.conditions import PATIENCE
from tests.kit.forged_tokens import b64, ec_pair, fixed, hs, token
from tests.kit.model import ModelEndpoint
from tests.kit.process import AGENTCTL, ServerProcess, base_environment, start_server
from tests.server.raw_http import open_raw_connection

MARK = "kestrel"
"""Text in each canary whose format allows it."""

SECRET = f"{MARK}-hmac-secret-that-is-long-enough-for-sha256"
API_KEY = f"sk-{MARK}-api-key-of-the-provider"
EXPIRED = 1_000_000_000
GIVEN = ("agentctl.toml", "signing.key", "leak_tools.py")

TOOLS = f'''
def explode() -> str:
    """Fail."""
    raise RuntimeError("{MARK}-tool-text\\n1999-01-01 00:00:00,000 ERROR forged\\x1b[2J\\x9b2J")
'''

CONFIG = """
[server]
id = "leaks"
port = 0
workers = 2
drain_seconds = 1

[authorization]
algorithm = "HS256"
verification_keys = ["{secret}"]

[signing]
key_file = "signing.key"

[audit]
reads = true

[log]
format = "json"
level = "debug"

[metrics]
listen = "127.0.0.1:0"

[[databases]]
id = "main"
url = "sqlite:///main.db"

[[databases]]
id = "second"
url = "sqlite:///second.db"
"""

MODEL = """
[[models]]
id = "{id}"
provider = "openai"
model = "{model}"
base_url = "{url}"
api_key_env = "LEAK_KEY"

[[agents]]
id = "{id}"
name = "{id}"
model = "{id}"
tools = [{tools}]
database = "{database}"
"""


def config(url: str) -> str:
    models = (
        ("echo", "echo", "", "main"),
        ("refused", "http-key", "", "main"),
        ("refused-apart", "http-key", "", "second"),
        ("exploding", "tool:explode", '"leak_tools:explode"', "main"),
    )
    parts = [
        MODEL.format(id=name, model=model, url=url, tools=tools, database=database)
        for name, model, tools, database in models
    ]
    return CONFIG.format(secret=SECRET) + "".join(parts)


def jwt(name: str, *scopes: str, secret: str = SECRET, **claims: Any) -> str:
    """Return a token with a canary in a separate claim."""
    given = {"sub": "user", "scopes": scopes, "jti": f"{MARK}-{name}", **claims}
    return token({"alg": "HS256", "kid": f"{MARK}-kid-{name}"}, given, hs(secret.encode()))


USER = ("agents:read", "agents:run", "sessions:read", "sessions:write", "audit:read")


@dataclass
class Scene:
    """The requests of the test, and everywhere their traces could be.

    Attributes:
        folder: folder of the configuration.
        secrets: the texts to search for, by name; each has at least 16 characters.
        answers: all responses of the server, by request.
        places: the texts that are searched, by name.
    """

    folder: Path
    secrets: dict[str, str] = field(default_factory=dict)
    answers: dict[str, httpx2.Response] = field(default_factory=dict)
    places: dict[str, bytes] = field(default_factory=dict)

    def keep(self, name: str, credential: str) -> str:
        """Register a credential as a secret: the whole, and parts that identify it."""
        self.secrets[name] = credential
        for number, part in enumerate(re.split(r"[.\s]", credential)):
            if number and len(part) >= 16:
                self.secrets[f"{name}, part {number}"] = part
        return credential

    @property
    def log(self) -> str:
        return self.places["log"].decode()


def bearers(scene: Scene) -> dict[str, str]:
    """Return values of the Authorization field; the first two are valid."""
    good = scene.keep("good", jwt("good", *USER))
    admin = scene.keep("admin", jwt("admin", "agent_os:admin", sub="boss"))
    other = {
        "expired": jwt("expired", *USER, exp=EXPIRED),
        "wrong signature": jwt("signature", *USER, secret=SECRET[::-1]),
        "reserved": jwt("reserved", *USER, sub="sa:kestrel-reserved"),
        "wrong claim": jwt("claim", *USER, exp=f"{MARK}-exp"),
        "unsigned": token({"alg": "none"}, {"sub": MARK}, fixed(b"")),
        "other algorithm": token({"alg": "RS256"}, {"sub": MARK}, fixed(b"x" * 256)),
        "garbage": f"{MARK}.garbage.{MARK}-in-a-token",
        "no json": f"{b64(f'{MARK}-header-of-no-json'.encode())}.e30.AAAA",
        "long": f"{MARK}-long-" + "a" * 8_300,
        "account": generate_account_token(),
        "account, mistyped": generate_account_token()[:-1] + "_",
        "account elsewhere": generate_account_token("elsewhere_pat_"),
    }
    for name, credential in other.items():
        scene.keep(name, credential)
    scene.keep("basic", f"Basic {MARK}-basic-credential")
    return {
        "good": f"Bearer {good}",
        "admin": f"Bearer {admin}",
        **{name: f"Bearer {credential}" for name, credential in other.items()},
        "basic": scene.secrets["basic"],
        "two words": f"Bearer {scene.keep('two words', f'{MARK} two-words-in-a-token')}",
        "two": f"Bearer {good}, Bearer {scene.keep('two', f'{MARK}-second-of-two')}",
    }


def ask_everything(scene: Scene, client: httpx2.Client) -> None:
    """Send all valid HTTP requests."""
    fields = bearers(scene)
    for name, value in fields.items():
        headers = {"Authorization": value}
        for request in ("GET /agents", "GET /sessions/absent", "GET /nothing", "GET /health"):
            ask(scene, client, f"{name}: {request}", request, headers=headers)
    good = {"Authorization": fields["good"]}
    elsewhere(scene, client, good)
    bodies(scene, client, good)
    accounts(scene, client, {"Authorization": fields["admin"]})
    failures(scene, client, good)
    for path in ("info", "config", "ready", "openapi.json", "models", "auth/me", "audit", "docs"):
        for who in ("good", "admin"):
            headers = {"Authorization": fields[who]}
            ask(scene, client, f"{path} as {who}", f"GET /{path}", headers=headers)


def ask(
    scene: Scene, client: httpx2.Client, name: str, request: str, **more: Any
) -> httpx2.Response:
    method, _, path = request.partition(" ")
    scene.answers[name] = answer = client.request(method, path, **more)
    return answer


def elsewhere(scene: Scene, client: httpx2.Client, good: dict[str, str]) -> None:
    """Send credentials in wrong places, and odd paths."""
    other = scene.keep("elsewhere", jwt("elsewhere", *USER))
    for number, (headers, query) in enumerate(
        [
            ({}, f"?access_token={other}"),
            (good, f"?access_token={other}&token={other}&api_key={other}"),
            (good, f"?limit={other}"),
            (good, f"?type={other}&db_id={other}"),
            (good, f"?cursor={other}"),
            ({"Cookie": f"token={other}; session={other}"}, ""),
            (good | {"Cookie": f"token={other}", "X-Access-Token": other, "User-Agent": other}, ""),
            (good | {"X-Request-ID": other, "X-Api-Key": other, "Referer": other}, ""),
            (good | {"Idempotency-Key": other, "Last-Event-ID": other, "Origin": other}, ""),
        ]
    ):
        for path in ("GET /sessions", "GET /nothing", "POST /agents/echo/runs"):
            ask(scene, client, f"elsewhere {number}: {path}", f"{path}{query}", headers=headers)
    odd = ("%0aforged%20line", "%1b[2J%1b]0;x%07", "%e2%80%aeabc", "%00", "%c2%9b2J", "a" * 10_000)
    for number, segment in enumerate(odd):
        for request in ("GET /sessions/", "GET /agents/", "DELETE /sessions/", "GET /"):
            agent = {"User-Agent": f"a\x1b[2J{'b' * 1_000}"}
            ask(scene, client, f"odd {number}: {request}", request + segment, headers=good | agent)
            ask(scene, client, f"odd {number}, nobody: {request}", request + segment)


def bodies(scene: Scene, client: httpx2.Client, good: dict[str, str]) -> None:
    """Send invalid bodies with a secret in each."""
    canary = scene.keep("body", f"{MARK}-secret-in-a-body-that-is-refused")
    json_type = {"Content-Type": "application/json"}
    for number, (content, more) in enumerate(
        [
            (f'{{"message": "{canary}", '.encode(), json_type),
            (f'{{"message": ["{canary}"]}}'.encode(), json_type),
            (f'{{"message": "x", "session_id": "{canary} {canary}"}}'.encode(), json_type),
            (f'{{"message": "x", "session_id": "x", "stream": "{canary}"}}'.encode(), json_type),
            (f'{{"unknown": "{canary}"}}'.encode(), json_type),
            (f'{{"input": {{"{canary}": "{canary}"}}}}'.encode(), json_type),
            (f'{{"{canary} not plain": 1}}'.encode(), json_type),
            (f'["{canary}"]'.encode(), json_type),
            (f'"{canary}"'.encode(), json_type),
            (f'{{"message": "{canary}\xff"}}'.encode("latin-1"), json_type),
            (f'{{"message": "{canary}{"x" * 1_100_000}"}}'.encode(), json_type),
            (canary.encode(), {"Content-Type": f"text/{canary}"}),
            (canary.encode(), json_type | {"Content-Encoding": canary}),
        ]
    ):
        for path in ("/agents/echo/runs", "/sessions", "/sessions/absent/rename", "/auth/explain"):
            headers = good | more
            ask(
                scene,
                client,
                f"body {number}: {path}",
                f"POST {path}",
                content=content,
                headers=headers,
            )


def accounts(scene: Scene, client: httpx2.Client, admin: dict[str, str]) -> None:
    """Create accounts, one in use and one revoked; send credentials in the body of explain."""
    for name in ("kept", "revoked"):
        body = {"name": name, "scopes": [{"scope": "agents:read"}]}
        made = client.post("/service-accounts", json=body, headers=admin)
        assert made.status_code == 201, made.text
        secret = scene.keep(f"account {name}", made.json()["token"])
        scene.secrets[f"account {name}, bare"] = secret.partition("_pat_")[2]
        bearer = {"Authorization": f"Bearer {secret}"}
        ask(scene, client, f"account {name} in use", "GET /agents", headers=bearer)
        ask(scene, client, f"account {name} denied", "GET /config", headers=bearer)
        if name == "revoked":
            path = f"DELETE /service-accounts/{made.json()['id']}"
            ask(scene, client, "revocation", path, headers=admin)
            ask(scene, client, "revoked account", "GET /agents", headers=bearer)
        ask(scene, client, f"account {name} in a path", f"GET /agents?token={secret}")
    for name, credential in list(scene.secrets.items()):
        if "part" not in name:
            body = {"method": "GET", "path": "/agents", "token": credential}
            ask(scene, client, f"explain {name}", "POST /auth/explain", json=body, headers=admin)
    body = {"method": "GET", "path": f"/agents?access_token={scene.secrets['good']}"}
    ask(scene, client, "explain a query", "POST /auth/explain", json=body, headers=admin)


def failures(scene: Scene, client: httpx2.Client, good: dict[str, str]) -> None:
    """Start runs that succeed, and runs whose tool or provider fails with a secret in its error."""
    for agent in ("echo", "refused", "refused-apart", "exploding"):
        for stream in (False, True):
            body = {
                "message": f"words of a user for {agent}",
                "session_id": agent,
                "stream": stream,
            }
            path = f"POST /agents/{agent}/runs"
            ask(scene, client, f"run {agent} {stream}", path, json=body, headers=good)
        ask(scene, client, f"session {agent}", f"GET /sessions/{agent}?db_id=main", headers=good)
    ask(scene, client, "runs", "GET /runs?limit=100", headers=good)


def ask_badly(scene: Scene, port: int) -> None:
    """Send invalid HTTP and rejected requests; the responses are searched."""
    canary = scene.keep("wire", f"{MARK}-secret-on-the-wire")
    line = "GET /agents HTTP/1.1\r\nHost: x\r\n"
    for number, sent in enumerate(
        [
            f"{line}Authorization : Bearer {canary}\r\n\r\n",
            f"{line}Authorization: Bearer a\r\n {canary}\r\n\r\n",
            f"{line}Authorization: Bearer {canary}\r\nAuthorization: Bearer {canary}\r\n\r\n",
            f"{line}Host: {canary}\r\n\r\n",
            f"{line}{canary}\r\n\r\n",
            f"{line}Authorization: Bearer {canary}{'a' * 20_000}\r\n\r\n",
            f"{line}Authorization: Bearer {canary}\x01\x7f\r\n\r\n",
            f"{line}Content-Length: {canary}\r\n\r\n",
            f"GET /{canary}\x1b HTTP/1.1\r\nHost: x\r\n\r\n",
            f"GET http://user:{canary}@x/agents HTTP/1.1\r\nHost: x\r\n\r\n",
            f"{canary}\r\n\r\n",
        ]
    ):
        with open_raw_connection(port) as connection, contextlib.suppress(AssertionError):
            connection.send(sent.encode("latin-1"))
            answer = connection.answer()
            said = repr((answer.status, answer.fields)).encode() + answer.body
            scene.places[f"wire {number}"] = said


def command_lines(server: ServerProcess) -> bytes:
    """Return the arguments of a process and its children."""
    parents = dict[int, int]()
    found = b""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
    family = {server.process.pid}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    assert len(family) >= 3
    for pid in family:
        found += Path(f"/proc/{pid}/cmdline").read_bytes() + b"\n"
    return found


def left_behind(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Return every created file; databases also row by row."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in GIVEN and path.suffix != ".pyc":
            yield path.name, path.read_bytes()
    for path in sorted(folder.glob("*.db")):
        with contextlib.closing(sqlite3.connect(path)) as database:
            yield f"rows of {path.name}", "\n".join(database.iterdump()).encode()


def agentctl(folder: Path, *args: str, **env: str) -> bytes:
    """Return the output of a command, stdout and stderr."""
    ended = CliRunner().invoke(app, args, env={"HOME": str(folder), **env}, prog_name="agentctl")
    assert ended.exception is None or isinstance(ended.exception, SystemExit)
    return ended.stdout_bytes + b"\n" + ended.stderr.encode() + b"\nexit %d" % ended.exit_code


COMMANDS = (
    "config show", "config show --sources -o json", "config check", "doctor", "doctor -o json",
    "keys list", "keys list -o json", "accounts list", "accounts list -o json", "audit export",
    "audit list -o json", "sessions list -o json", "runs list -o json", "auth scopes",
    "auth explain GET /agents", "agents list -o json",
)  # fmt: skip


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Scene:
    """A deployment after use and shutdown."""
    folder = tmp_path_factory.mktemp("leaks")
    path = folder / "agentctl.toml"
    path.write_text(config(model_endpoint.base_url))
    path.chmod(0o600)
    (folder / "leak_tools.py").write_text(TOOLS)
    with os.fdopen(os.open(folder / "signing.key", os.O_CREAT | os.O_WRONLY, 0o600), "w") as key:
        key.write(SECRET)
    scene = Scene(folder, {"hmac secret": SECRET, "api key": API_KEY})
    environment = base_environment() | {"LEAK_KEY": API_KEY, "AGENTCTL_TOKEN": jwt("unused")}
    log = folder / "log"
    options = ("--config", str(path))
    with start_server(*options, log=log, environment=environment, program=AGENTCTL) as server:
        with httpx2.Client(base_url=server.url, timeout=PATIENCE) as client:
            ask_everything(scene, client)
        ask_badly(scene, server.port)
        scene.places["arguments"] = command_lines(server)
        (metrics,) = re.findall(r"^metrics: (.*)$", server.wait_for("metrics: "), re.MULTILINE)
        scene.places["metrics"] = httpx2.get(metrics).content
        assert server.stop() == 0
    for name, answer in scene.answers.items():
        scene.places[name] = repr(answer.headers.multi_items()).encode() + answer.content
    scene.places |= dict(left_behind(folder))
    for command in COMMANDS:
        scene.places[f"agentctl {command}"] = agentctl(
            folder, *command.split(), "--config", str(path), LEAK_KEY=API_KEY
        )
    return scene


def found(secrets: dict[str, str], places: dict[str, bytes]) -> list[str]:
    """Return the places of secrets, in any case."""
    lowered = {place: content.lower() for place, content in places.items()}
    needles = {name: secret.lower().encode() for name, secret in secrets.items()}
    return [
        f"{name} in {place}"
        for place, content in lowered.items()
        for name, needle in needles.items()
        if needle in content
    ]


def test_no_secret_is_found_anywhere(scene: Scene) -> None:
    """The response that creates an account has its token: only this response is not searched."""
    assert found(scene.secrets, scene.places) == []


def test_canary_mark_is_not_found_either(scene: Scene) -> None:
    """Exceptions for the mark: the log and the causes of failures have errors of tools, and explain
    shows administrators the names and key ids of the tokens that they sent.
    """
    places = {place: said for place, said in scene.places.items() if "explain" not in place}
    assert {place.split()[-1] for place in found({"mark": MARK}, places)} == {"log", "main.db"}
    lines = [line for line in scene.log.splitlines() if MARK in line]
    assert all(f"{MARK}-tool-text" in line for line in lines)


def test_search_finds_permitted_texts(scene: Scene, model_endpoint: ModelEndpoint) -> None:
    """All requests were executed, and permitted texts are found in their places."""
    statuses = {name: answer.status_code for name, answer in scene.answers.items()}
    assert statuses["good: GET /agents"] == 200
    assert statuses["admin: GET /agents"] == 200
    assert statuses["account kept in use"] == 200
    assert (statuses["account kept denied"], statuses["revoked account"]) == (403, 401)
    assert model_endpoint.headers("http-key")["authorization"] == f"Bearer {API_KEY}"
    for agent, status in (("echo", "COMPLETED"), ("refused", "ERROR"), ("exploding", "COMPLETED")):
        assert scene.answers[f"run {agent} False"].json()["status"] == status, agent
    for place in ("main.db", "rows of main.db", "runs", "session echo"):
        assert b"words of a user for echo" in scene.places[place], place
    assert b"create_agent_run" in scene.places["agentctl audit export"]
    assert b"kept" in scene.places["agentctl accounts list"]
    assert b"********" in scene.places["agentctl config show"]
    assert b"serve" in scene.places["arguments"]
    assert b'operation="create_agent_run"' in scene.places["metrics"]
    assert '"operation":"create_agent_run"' in scene.log
    for name in ("signature", "account.known", "claims.exp", "length", "no credential"):
        assert name.encode() in scene.places["agentctl audit export"], name
    assert sum(place.startswith("wire") for place in scene.places) >= 8


def test_all_invalid_credentials_get_the_same_response(scene: Scene) -> None:
    """L07."""
    bad = [name for name in scene.answers if name.endswith(": GET /agents")]
    answers = {
        name: scene.answers[name]
        for name in bad
        if not name.startswith(("good", "admin", "two:", "elsewhere"))
    }
    assert len(answers) >= 14
    kept = {
        (answer.status_code, answer.content, answer.headers["www-authenticate"])
        for answer in answers.values()
    }
    assert len(kept) == 1
    assert kept.pop()[0] == 401


def test_no_caller_can_forge_log_lines(scene: Scene) -> None:
    """L05: no control characters, and each line is a complete object or output of the command.

    The readable format is tested in `test_observability`.
    """
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", scene.log)
    assert "forged" in scene.log
    noted = [line for line in scene.log.splitlines() if not line.startswith("{")]
    said = "agentctl authorization: console: chat: workers: metrics: stopping stopped"
    assert [line.split(" ")[0] for line in noted] == said.split()
    lines = [orjson.loads(line) for line in scene.log.splitlines() if line.startswith("{")]
    assert all([*line][:4] == ["time", "level", "logger", "message"] for line in lines)
    for place in ("agentctl audit export", "agentctl audit list -o json"):
        text = scene.places[place].decode()
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text), place


def spoilt(folder: Path) -> dict[str, bytes]:
    """Yield invalid token files with a secret in each."""
    canary = f"{MARK}-in-a-file".encode()
    return {
        "words": canary,
        "not ascii": canary + b"\xff",
        "two lines": canary + b"\n" + canary,
        "with the scheme": b"Bearer " + canary,
        "control": canary + b"\x1b[2J",
        "long": canary + b"a" * 100_000,
        "half": canary + b"." + canary + b".",
        "private key": ec_pair().private_pem.replace("\n", f"\n{MARK}", 1).encode(),
    }


ASKING = (
    "token verify --token-file FILE --config CONFIG", "token inspect --token-file FILE",
    "auth explain GET /agents --token-file FILE --config CONFIG",
    "auth whoami --token-file FILE --url http://127.0.0.1:9",
    "agents list --token-file FILE --url http://127.0.0.1:9", "agents list --config CONFIG",
    "auth can-i GET /agents --token-file FILE --config CONFIG",
)  # fmt: skip


def test_commands_do_not_repeat_invalid_token_files(tmp_path: Path) -> None:
    path = tmp_path / "agentctl.toml"
    path.write_text(config("http://127.0.0.1:9/v1"))
    said = dict[str, bytes]()
    for name, content in spoilt(tmp_path).items():
        file = tmp_path / "token"
        file.write_bytes(content)
        for line in ASKING:
            words = [{"FILE": str(file), "CONFIG": str(path)}.get(w, w) for w in line.split()]
            said[f"{name}: {line}"] = agentctl(tmp_path, *words)
            if content.isascii() and "agents list" in line:
                less = [word for word in words if word not in ("--token-file", str(file))]
                text = content.decode()
                said[f"{name}, set: {line}"] = agentctl(tmp_path, *less, AGENTCTL_TOKEN=text)
    assert found({"mark": MARK}, said) == []


def test_secrets_on_the_command_line_are_refused(tmp_path: Path) -> None:
    """L03: secrets as arguments are refused and not repeated."""
    canary = f"{MARK}-on-the-command-line"
    said = {
        words: agentctl(tmp_path, *words.split())
        for words in (
            f"agents list --token {canary}",
            f"agents list --token={canary}",
            f"agents list --url http://user:{canary}@127.0.0.1:9",
            f"context add x --url http://user:{canary}@127.0.0.1:9",
            f"token verify {canary}",
            f"token inspect {canary}.{canary}.{canary}",
        )
    }
    for words, ended in said.items():
        assert ended.endswith(b"exit 2"), words
    assert found({"mark": MARK}, dict(enumerate(said.values()))) == []


SPOILT_CONFIG = (
    ('verification_keys = ["SHORT"]', "{}", {}),
    ('verification_keys = "SHORT"', "{}", {}),
    ('verification_keys = ["SHORT"]\nalgorithm = "RS256"', "{}", {}),
    ('jwks_file = "jwks.json"', '{"keys": [{"kty": "oct", "k": "SHORT", "alg": "HS256"}]}', {}),
    ('jwks_file = "jwks.json"', '{"keys": [{"kty": "oct", "k": "SHORT"', {}),
    ('jwks_file = "jwks.json"', '"SHORT"', {}),
    ('verification_key_files = ["jwks.json"]', "SHORT", {}),
    ("", "", {"JWT_VERIFICATION_KEY": "SHORT"}),
    ("", "", {"AGENTCTL_AUTHORIZATION__VERIFICATION_KEYS": "SHORT"}),
    ("", "", {"AGENTCTL_AUTHORIZATION__LEEWAY_SECONDS": "1", "JWT_VERIFICATION_KEY": "SHORT"}),
    ('[[models]]\nid = "m"\nprovider = "openai"\nmodel = "m"\napi_key = "SHORT"', "", {}),
    (
        '[[models]]\nid = "m"\nprovider = "openai"\nmodel = "m"\nbase_url = "http://u:SHORT@h"',
        "",
        {},
    ),
    ('[[databases]]\nid = "m"\nurl = "postgresql://u:SHORT@h/x"', "", {}),
)


@pytest.mark.parametrize(("text", "jwks", "env"), SPOILT_CONFIG)
def test_configuration_errors_do_not_contain_secrets(
    tmp_path: Path, text: str, jwks: str, env: dict[str, str]
) -> None:
    def filled(words: str) -> str:
        return words.replace("SHORT", f"{MARK}-short")

    path = tmp_path / "agentctl.toml"
    head = (
        '[authorization]\nalgorithm = "HS256"\n' if "algorithm" not in text else "[authorization]\n"
    )
    path.write_text(filled(head + text))
    (tmp_path / "jwks.json").write_text(filled(jwks))
    given = {name: filled(value) for name, value in env.items()}
    said = {
        command: agentctl(tmp_path, *command.split(), "--config", str(path), **given)
        for command in (
            "config check",
            "config show --sources",
            "doctor",
            "keys list",
            "serve --port 0",
        )
    }
    assert found({"mark": MARK}, said) == []
    assert any(not ended.endswith(b"exit 0") for ended in said.values())
