"""`agentctl serve`: the demo, its messages, and wrong options."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
from pathlib import Path

from agentctl.cli.demo import create_demo
from tests.cli.conftest import Agentctl
from tests.cli.demo import Demo, serving
from tests.cli.local_project import wait_for_line
from tests.kit.conditions import PATIENCE
from tests.kit.model import ModelEndpoint
from tests.kit.tables import every_row


def test_demo_prints_commands_that_work_in_a_new_shell(tmp_path: Path, home: Path) -> None:
    with serving(tmp_path / "data") as demo:
        first, second, *pages = demo.said.splitlines()
        assert first.endswith(f" listens on {demo.url}, configured by {demo.config}")
        assert second == "authorization: jwt, RS256"
        assert pages[:2] == [f"{name}: {demo.url}/{name}" for name in ("console", "chat")]

        lines = demo.said.partition("paste this into another terminal:")[2].strip().splitlines()
        assert lines[0].startswith("export PATH=")
        assert "AGENTCTL_CONFIG=" in lines[0]
        assert len(lines) == 5
        ended = subprocess.run(
            ["bash", "-e"],
            input="\n".join(lines).encode(),
            # A browser that opens nothing.
            env={"PATH": os.defpath, "HOME": str(home), "BROWSER": "true", "USER": "you"},
            capture_output=True,
            cwd=home,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    out = ended.stdout.decode().splitlines()
    assert out[0].startswith("agent_id\t")
    assert {"echo", "greet", "count", "slow"} <= {line.partition("\t")[0] for line in out}
    assert out[-1] == "hello"
    assert f"console: {demo.url}/console" in ended.stderr.decode()


def test_the_demo_has_an_agent_of_each_kind(agentctl: Agentctl, demo: Demo) -> None:
    start = ("runs", "start", "--session", "kinds", "--url", demo.url)
    token = {"AGENTCTL_TOKEN": demo.token}
    ended = agentctl(*start, "--agent", "greet", "-m", "hi", env=token)
    assert (ended.code, ended.stdout) == (0, "Hello ada, this is message 1: hi\n")
    again = agentctl(*start, "--agent", "greet", "-m", "hi", env=token)
    assert again.stdout == "Hello ada, this is message 2: hi\n"
    events = agentctl(*start, "--agent", "count", "-m", "one two", "-o", "jsonl", env=token)
    names = [json.loads(line)["event"] for line in events.lines]
    assert {"ToolCallStarted", "ToolCallCompleted", "RunProgress", "RunContent"} <= {*names}
    counted = agentctl(*start, "--agent", "count", "-m", "one two", env=token)
    assert counted.stdout == "1 one\n2 two\n"
    noted = agentctl(*start, "--agent", "notes", "-m", "buy milk", env=token)
    assert noted.stdout == "note 1: buy milk\n"


def test_the_demo_directory_is_private_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    files = [folder / "agentctl.toml", folder / "keys/signing.pem", folder / "keys/signing.pub.pem"]
    create_demo(folder)
    first = [path.read_bytes() for path in files]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(files[1].stat().st_mode) == 0o600

    files[2].unlink()
    create_demo(folder)
    assert [path.read_bytes() for path in files] == first


def test_demo_has_workers_and_a_real_model_until_ctrl_c(
    tmp_path: Path, agentctl: Agentctl, model_endpoint: ModelEndpoint
) -> None:
    options = ("--workers", "2", "--insecure-no-auth", "--model", "exact")
    variables = {"OPENAI_BASE_URL": model_endpoint.base_url, "OPENAI_API_KEY": "the key"}
    with serving(tmp_path / "several", *options, environment=variables) as demo:
        lines = demo.said.splitlines()
        assert "authorization: none, every caller is an administrator" in lines
        assert "workers: 2 processes" in lines
        assert "model: exact of openai" in demo.said

        message = json.dumps({"content": "really"})
        start = ("runs", "start", "--agent", "echo", "-m", message, "--url", demo.url)
        assert agentctl(*start).stdout == "really\n"
        assert model_endpoint.headers("exact")["authorization"] == "Bearer the key"
        assert 'provider = "openai"' not in demo.config.read_text()

        # This model of the demo stays offline.
        demo.run("s1", "hello", agent="slow", leave=True)
        demo.process.send_signal(signal.SIGINT)
        log = tmp_path / "several.log"
        wait_for_line(log, "stopping: waiting up to 5 s for 1 run; press Ctrl-C again ")
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait(PATIENCE) == 0
        assert log.read_text().splitlines()[-1] == "stopped"


def test_a_port_in_use_is_one_error(agentctl: Agentctl, demo: Demo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = agentctl("serve", "--config", str(demo.config), "--port", port)
    assert (ended.code, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"error: port {port} on 127.0.0.1 is in use\n")
    assert "or with AGENTCTL_SERVER__PORT=" in ended.stderr


def test_make_passes_a_port_to_the_demo() -> None:
    root = Path(__file__).parents[2]
    line = ["make", "--dry-run", "demo", "VENV=/nowhere", "-o", "/nowhere/.installed", "PORT=8001"]
    shown = subprocess.run(
        line, capture_output=True, text=True, cwd=root, timeout=PATIENCE, check=True
    )
    assert "/nowhere/bin/agentctl serve --demo --port 8001" in shown.stdout.splitlines()


@every_row(
    "args, named",
    [
        (["--demo", "--config", "agentctl.toml"], "--demo"),
        (["--demo-dir", "here"], "--demo"),
        (["--port", "65536"], "--port"),
        (["--workers", "0"], "--workers"),
        (["--workers", "65"], "--workers"),
        (["--config", "missing.toml"], "missing.toml"),
        (["--demo", "--demo-dir", "/dev/null/demo"], "/dev/null/demo"),
    ],
)
def test_wrong_options_are_usage_errors(agentctl: Agentctl, args: list[str], named: str) -> None:
    ended = agentctl("serve", *args)
    assert (ended.code, ended.stdout) == (2, "")
    assert named in ended.stderr


@every_row(
    "args, error, hint",
    [
        (("--model", "x"), "--model needs --demo", "are its [[models]]"),
        (
            ("--demo", "--model", "gpt-5.2-mini"),
            "OPENAI_API_KEY is not set",
            "export OPENAI_API_KEY",
        ),
        (("--demo", "--model", "grok/llama"), 'not "grok/llama"', "did you mean groq/llama?"),
        (("--demo", "--model", "azure/x"), 'not "azure/x"', "write openai/"),
        (("--demo", "--model", ""), "--model must be a model of OpenAI", "write openai/"),
        (
            ("--demo", "--model", "openrouter/x"),
            '"VENDOR/MODEL"',
            "--model openrouter/VENDOR/MODEL",
        ),
        (("--demo", "--model", "claude-x"), "OPENAI_API_KEY", "write PROVIDER/claude-x"),
    ],
)
def test_wrong_model_of_the_demo_changes_nothing(
    agentctl: Agentctl, home: Path, args: tuple[str, ...], error: str, hint: str
) -> None:
    ended = agentctl("serve", *args, env={"OPENAI_API_KEY": ""})
    assert (ended.code, ended.stdout) == (2, "")
    assert error in ended.stderr.splitlines()[0]
    assert hint in ended.stderr.splitlines()[-1]
    assert [*home.iterdir()] == []


def test_an_exposed_server_without_authorization_is_rejected(
    agentctl: Agentctl, demo: Demo
) -> None:
    ended = agentctl(
        *("serve", "--config", str(demo.config), "--host", "0.0.0.0", "--port", "0"),
        env={"AGENTCTL_AUTHORIZATION__ENABLED": "false"},
    )
    assert ended.code == 2
    assert "--insecure-no-auth" in ended.stderr
