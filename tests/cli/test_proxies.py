"""A proxy variable that cannot be used is named before a server starts, and by a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Agentctl

ELSEWHERE = "https://model.example.org/v1"

CONFIG = """
[authorization]
enabled = false

[[models]]
id = "far"
provider = "openai"
model = "any"
base_url = "{url}"
api_key_env = "MODEL_KEY"

[[agents]]
id = "writer"
model = "far"
"""


def write_config(folder: Path, url: str) -> tuple[str, str]:
    file = folder / "agentctl.toml"
    file.write_text(CONFIG.format(url=url))
    return "--config", str(file)


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("config", "check")])
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ALL_PROXY", "socks5://name:secret@127.0.0.1:1089", "needs a package"),
        ("HTTPS_PROXY", "socks://127.0.0.1:1089", "the scheme socks"),
        ("https_proxy", "http://[::1", "not a URL"),
    ],
)
def test_wrong_proxy_of_a_model_prevents_a_start(
    agentctl: Agentctl, tmp_path: Path, command: tuple[str, ...], name: str, value: str, words: str
) -> None:
    options = write_config(tmp_path, ELSEWHERE)
    if command[0] == "serve":
        options = (*options, "--insecure-no-auth")
    finished = agentctl(*command, *options, env={name: value, "MODEL_KEY": "k"})
    assert (finished.code, finished.stdout) == (2, "")
    assert f"error: the proxy of the environment variable {name} cannot be used" in finished.stderr
    assert words in finished.stderr
    assert "the model far needs it" in finished.stderr
    assert "bug" not in finished.stderr


def test_wrong_proxy_is_a_finding_of_the_doctor(agentctl: Agentctl, tmp_path: Path) -> None:
    options = write_config(tmp_path, ELSEWHERE)
    finished = agentctl("doctor", *options, env={"HTTPS_PROXY": "socks://x:1", "MODEL_KEY": "k"})
    assert "The proxy of the environment variable HTTPS_PROXY cannot be used" in finished.stdout


def test_wrong_proxy_ends_a_local_run_with_its_name(agentctl: Agentctl, tmp_path: Path) -> None:
    options = write_config(tmp_path, ELSEWHERE)
    start = ("runs", "start", "--agent", "writer", "--message", "hello")
    variables = {"HTTPS_PROXY": "socks://x:1", "MODEL_KEY": "k"}
    finished = agentctl(*start, *options, env=variables)
    assert finished.code != 0
    assert "The proxy of the environment variable HTTPS_PROXY cannot be used" in finished.stderr
    assert "bug" not in finished.stderr


def test_model_on_this_machine_needs_no_proxy(agentctl: Agentctl, tmp_path: Path) -> None:
    options = write_config(tmp_path, "http://127.0.0.1:11434/v1")
    variables = {"ALL_PROXY": "socks5://127.0.0.1:1089", "MODEL_KEY": "k"}
    assert agentctl("config", "check", *options, env=variables).code == 0
