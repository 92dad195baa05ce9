"""`agentctl init`: a configuration and a key pair to begin with, with `--agent` a whole project."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from agentctl.cli.commands.console import find_url
from agentctl.cli.help import join_alternatives
from agentctl.cli.parameters import argument, flag, option
from agentctl.cli.show.terminal import note

EXAMPLE = "agentctl init my-server"

AgentKind = Literal["function", "pydantic-ai", "langgraph", "openai-agents", "agno", "adk", "mcp"]

_KINDS = join_alternatives(get_args(AgentKind))

_CONFIG = "agentctl.toml"
_TEMPLATES = Path(__file__).parents[1] / "templates"
_NEXT_STEPS = """
next, in one terminal:
{before}  agentctl serve
and in another:
{folder}  export AGENTCTL_TOKEN=$(agentctl token mint --sub me --scope user)
  agentctl runs start --agent {agent} --message "hello" --url {url}
  agentctl console --sub me --url {url}
"""
_PACKAGES = {
    "pydantic-ai": "pydantic_ai",
    "langgraph": "langgraph",
    "openai-agents": "agents",
    "agno": "agno",
    "adk": "google.adk",
    "mcp": "mcp",
}
"""The package that the agents of a kind import, which an extra of the name of the kind installs."""


def init(
    directory: Path = argument("DIR", "Directory to write to; created if missing", default=Path()),
    agent: AgentKind | None = option("--agent", "KIND", f"Write an agent in Python too: {_KINDS}"),
    full: bool = flag("--full", "Write every key of the configuration, with its default"),
) -> None:
    """Write a configuration and a key pair.

    The configuration has the keys to begin with, and one agent, which runs offline. With --agent
    the agent has its module, a test and a README. Existing files are never overwritten.
    """
    from agentctl.cli.files import (
        check_absent,
        create_directory,
        create_file,
        public_path,
        write_key_pair,
    )
    from agentctl.config import load_settings

    files = {directory / name: text for name, text in _read_files(agent, full).items()}
    private = directory / "keys" / "signing.pem"
    check_absent(*files, private, public_path(private))
    create_directory(directory)
    written = list[Path]()
    try:
        for path, text in files.items():
            create_file(path, text.encode())
            written.append(path)
        # The environment overrides the new file: a mistake there is reported before it is kept.
        settings = load_settings(directory / _CONFIG)
        pair = write_key_pair(private, "RS256")
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    for file in (*written, pair.private, pair.public):
        note(f"wrote {file}")
    _note_next_steps(directory, agent, find_url(settings))


def _read_files(agent: AgentKind | None, full: bool) -> dict[str, str]:
    from agentctl.config import SAMPLE_CONFIG

    folder = _TEMPLATES / (agent or "starter").replace("-", "_")
    paths = [*sorted(folder.iterdir()), *([_TEMPLATES / "README.md"] if agent else [])]
    files = {path.name.removesuffix(".txt"): path.read_text(encoding="utf-8") for path in paths}
    if not full:
        base = (_TEMPLATES / _CONFIG).read_text(encoding="utf-8")
        files[_CONFIG] = base.replace("@components@", files[_CONFIG])
    else:
        files[_CONFIG] = SAMPLE_CONFIG + (f"\n{files[_CONFIG]}" if agent else "")
    return {name: text.replace("@python@", sys.executable) for name, text in files.items()}


def _note_next_steps(directory: Path, agent: AgentKind | None, url: str) -> None:
    import shlex

    here = directory.resolve() == Path.cwd()
    # The variable of another project would select its configuration in the new folder, too.
    folder = "  unset AGENTCTL_CONFIG\n" if _is_other_configured(directory) else ""
    folder += "" if here else f"  cd {shlex.quote(str(directory))}\n"
    tests = [] if agent is None else [*_list_install_commands(agent), "python -m pytest"]
    before = folder + "".join(f"  {command}\n" for command in tests)
    name = "writer" if agent is None else "assistant"
    for line in _NEXT_STEPS.format(before=before, folder=folder, agent=name, url=url).splitlines():
        note(line)


def _is_other_configured(directory: Path) -> bool:
    """Return whether AGENTCTL_CONFIG names another file than the configuration of a folder."""
    named = os.environ.get("AGENTCTL_CONFIG", "")
    return named != "" and Path(named).resolve() != (directory / _CONFIG).resolve()


def _list_install_commands(agent: AgentKind) -> Iterator[str]:
    from agentctl.config.extras import build_extra_command, build_install_command

    if agent in _PACKAGES and _is_missing(_PACKAGES[agent]):
        yield build_extra_command(agent)
    if _is_missing("pytest"):
        yield build_install_command("pytest")


def _is_missing(package: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(package) is None
    except ModuleNotFoundError:  # The package above it is missing.
        return True
