"""A command loads what it needs and no more; that is most of what a start costs."""

from __future__ import annotations

import gc
import shlex
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Agentctl
from tests.cli.demo import Demo
from tests.cli.local_project import write_config
from tests.kit.conditions import PATIENCE
from tests.kit.process import AGENTCTL, without_coverage

HEAVY = {
    *("fastapi", "pydantic_ai", "httpx2", "httpcore2", "asyncpg", "apsw"),
    *("jwt", "cryptography", "rich"),
}
FOR_WORK = {"asyncio", "orjson", "pydantic", "platformdirs"}

PROBE = """
import gc, sys
from agentctl.cli.app import main
for line in sys.argv[1:]:
    sys.argv = ["agentctl", *line.split()]
    try:
        main()
    finally:
        spared = gc.get_freeze_count() > len(gc.get_objects())
        print("spared" if spared else "searched", *sys.modules, file=sys.stderr)
"""
"""Run commands in turn. After each, write whether the end of the process searches its imports for
garbage, and its modules."""


def _load(environment: dict[str, str], *lines: str) -> list[set[str]]:
    """Return the modules that a process has loaded after each of some commands.

    Each set has the first word of the probe, too. A command that loads more comes later, so one
    process shows what each of them loads.
    """
    ended = subprocess.run(
        [sys.executable, "-c", PROBE, *lines],
        env=without_coverage(environment),
        capture_output=True,
        check=False,
    )
    written = [line.split() for line in ended.stderr.decode().splitlines()]
    return [{*words} for words in written if words and words[0] in ("spared", "searched")]


def find_commands(loaded: set[str]) -> list[str]:
    """Return the commands among loaded modules."""
    prefix = "agentctl.cli.commands."
    return [name.removeprefix(prefix) for name in loaded if name.startswith(prefix)]


def test_help_and_version_import_nothing_heavy(environment: dict[str, str]) -> None:
    lines = ("--version", "--help", "nonsense", "context --help")
    version, root_help, unknown, context_help = _load(environment, *lines)
    assert not version & {"typer", "asyncio", "dataclasses"}
    assert not root_help & (HEAVY | FOR_WORK)
    assert find_commands(root_help) == []
    assert not unknown & HEAVY
    assert not context_help & HEAVY
    assert find_commands(context_help) == ["context"]


def test_local_command_imports_no_unused_library_and_ends_at_once(
    environment: dict[str, str], home: Path
) -> None:
    place = f"--config {write_config(home)}"
    teams, session = _load(environment, f"teams list {place}", f"sessions get absent {place}")
    assert "asyncio" in teams
    assert not teams & HEAVY
    assert "agentctl.interface.operations" not in teams
    assert "spared" in teams
    # A command of a group imports no other one.
    package = "agentctl.cli.commands.sessions"
    assert {name for name in session if name.startswith(f"{package}.")} == {f"{package}.show"}


def test_command_in_another_program_leaves_its_collections_alone(
    agentctl: Agentctl, home: Path
) -> None:
    write_config(home)
    threshold = gc.get_threshold()
    spared = gc.get_freeze_count()
    assert agentctl("teams", "list").code == 0
    assert gc.get_threshold() == threshold
    assert gc.get_freeze_count() <= spared


def test_remote_list_imports_no_unused_library(environment: dict[str, str], demo: Demo) -> None:
    remote = environment | {"AGENTCTL_TOKEN": demo.token}
    (loaded,) = _load(remote, f"sessions list --url {demo.url}")
    assert "httpx2" in loaded
    assert not loaded & (HEAVY - {"httpx2", "httpcore2"})
    assert not [name for name in loaded if name.startswith("agentctl.config")]


def test_interrupt_of_the_imports_is_exit_code_130(
    environment: dict[str, str], tmp_path: Path
) -> None:
    # `typing` is among the first modules that a command needs, and not yet loaded by Python.
    (tmp_path / "typing.py").write_text("raise KeyboardInterrupt\n")
    started = subprocess.run(
        [*AGENTCTL, "agents", "list"],
        env=without_coverage(environment) | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (started.returncode, started.stdout, started.stderr) == (130, "", "")


def test_completion_offers_commands_options_and_values(agentctl: Agentctl) -> None:
    def offered(*words: str) -> set[str]:
        asked = {"_AGENTCTL_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words)}
        return set(agentctl(env=asked | {"COMP_CWORD": str(len(words) - 1)}).lines)

    assert offered("agentctl", "se") == {"serve", "sessions"}
    assert offered("agentctl", "sessions", "list", "--sort-o") == {"--sort-order"}
    assert offered("agentctl", "sessions", "list", "--type", "") == {"agent", "team", "workflow"}
    assert offered("agentctl", "help", "exi") == {"exit-codes"}
    assert offered("agentctl", "help", "sess") == {"sessions"}
    assert offered("agentctl", "help", "runs", "li") == {"list"}
    assert offered("agentctl", "help", "nothing", "li") == set()


def test_completion_can_be_installed(environment: dict[str, str]) -> None:
    # The command finds the shell among its parents. The second command keeps bash running.
    typed = f"{shlex.join(AGENTCTL)} --install-completion && echo $?"
    ended = subprocess.run(["bash", "-c", typed], env=environment, capture_output=True, check=False)
    assert ended.returncode == 0
    assert "bash completion installed" in ended.stdout.decode()


SERVER_CONFIGURATION = """
[authorization]
enabled = false

[[models]]
id = "default"
provider = "openai"
model = "m"
base_url = "http://127.0.0.1:9/v1"

[[agents]]
id = "a"
name = "A"
model = "default"
"""

UNUSED_BY_SERVER = {
    "agno", "anthropic", "asyncpg", "google", "httpx", "langgraph", "mcp", "openai",
    "pydantic_ai", "rich",
}  # fmt: skip
"""Libraries that an idle server with SQLite and an OpenAI-compatible endpoint does not load."""


COLLECTOR_PROBE = """
        print("frozen" if gc.get_freeze_count() > 10_000 else "", gc.get_threshold()[0])
"""
"""The state of garbage collection: the objects of the start are exempt from it."""


def test_idle_server_imports_no_unused_library(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "agentctl.toml").write_text(SERVER_CONFIGURATION)
    probe = PROBE.rstrip() + COLLECTOR_PROBE
    command = [sys.executable, "-c", probe, "serve --port 0"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=without_coverage(environment),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as server:
        assert server.stderr is not None
        assert server.stdout is not None
        # At the end of the file a server that did not start has ended.
        started = next((line for line in server.stderr if "listens on" in line), None)
        server.terminate()
        *_, modules = server.stderr
        *_, collector = server.stdout
    assert started is not None
    loaded = set(modules.split())
    assert {"apsw", "starlette", "uvicorn"} <= loaded
    assert not loaded & UNUSED_BY_SERVER
    # They build the document of the interface, when somebody reads it.
    assert "agentctl.server.openapi.document" not in loaded
    assert "agentctl.server.openapi.descriptions" not in loaded
    assert collector.split() == ["frozen", "10000"]
