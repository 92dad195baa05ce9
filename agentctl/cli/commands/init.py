"""`agentctl init`: a configuration and a key pair to begin with, with `--agent` a whole project."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from agentctl.cli.commands.console import find_url
from agentctl.cli.help import join_alternatives
from agentctl.cli.parameters import argument, option
from agentctl.cli.show.terminal import note

EXAMPLE = "agentctl init my-server"

AgentKind = Literal["function", "pydantic-ai", "langgraph", "openai-agents", "agno", "mcp"]

_KINDS = join_alternatives(get_args(AgentKind))

_TEMPLATES = Path(__file__).parents[1] / "templates"
_NEXT_STEPS = """
next, in one terminal:
{folder}  agentctl serve
and in another:
{folder}  export AGENTCTL_TOKEN=$(agentctl token mint --sub me --scope user)
  agentctl teams list --url {url}
  agentctl console --sub me --url {url}
"""
_NEXT_STEPS_OF_AGENT = """
next, in one terminal:
{folder}{install}  python -m pytest
  agentctl serve
and in another:
{folder}  export AGENTCTL_TOKEN=$(agentctl token mint --sub me --scope user)
  agentctl runs start --agent assistant --message "hello" --url {url}
  agentctl console --sub me --url {url}
"""
_PACKAGES = {
    "pydantic-ai": "pydantic_ai",
    "langgraph": "langgraph",
    "openai-agents": "agents",
    "agno": "agno",
    "mcp": "mcp",
}
"""The package that the agents of a kind import, which an extra of the name of the kind installs."""


def init(
    directory: Path = argument("DIR", "Directory to write to; created if missing", default=Path()),
    agent: AgentKind | None = option("--agent", "KIND", f"Write an agent in Python too: {_KINDS}"),
) -> None:
    """Write a sample configuration and a key pair.

    With --agent the configuration is that of one agent, which runs offline, with its module, a test
    and a README. Existing files are never overwritten.
    """
    from agentctl.cli.files import (
        check_absent,
        create_directory,
        create_file,
        public_path,
        write_key_pair,
    )
    from agentctl.config import load_settings

    files = {directory / name: text for name, text in _read_files(agent).items()}
    private = directory / "keys" / "signing.pem"
    check_absent(*files, private, public_path(private))
    create_directory(directory)
    written = list[Path]()
    try:
        for path, text in files.items():
            create_file(path, text.encode())
            written.append(path)
        # The environment overrides the new file: a mistake there is reported before it is kept.
        settings = load_settings(directory / "agentctl.toml")
        pair = write_key_pair(private, "RS256")
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    for file in (*written, pair.private, pair.public):
        note(f"wrote {file}")
    _note_next_steps(directory, agent, find_url(settings))


def _read_files(agent: AgentKind | None) -> dict[str, str]:
    if agent is None:
        from agentctl.config import SAMPLE_CONFIG

        return {"agentctl.toml": SAMPLE_CONFIG}
    folder = _TEMPLATES / agent.replace("-", "_")
    return {
        path.name.removesuffix(".txt"): path.read_text(encoding="utf-8").replace(
            "@python@", sys.executable
        )
        for path in (*sorted(folder.iterdir()), _TEMPLATES / "README.md")
    }


def _note_next_steps(directory: Path, agent: AgentKind | None, url: str) -> None:
    import shlex

    steps = _NEXT_STEPS if agent is None else _NEXT_STEPS_OF_AGENT
    here = directory.resolve() == Path.cwd()
    # The variable of another project would select its configuration in the new folder, too.
    folder = "  unset AGENTCTL_CONFIG\n" if _is_other_configured(directory) else ""
    folder += "" if here else f"  cd {shlex.quote(str(directory))}\n"
    install = "".join(f"  {command}\n" for command in _list_install_commands(agent))
    for line in steps.format(folder=folder, install=install, url=url).splitlines():
        note(line)


def _is_other_configured(directory: Path) -> bool:
    """Return whether AGENTCTL_CONFIG names another file than the configuration of a folder."""
    named = os.environ.get("AGENTCTL_CONFIG", "")
    return named != "" and Path(named).resolve() != (directory / "agentctl.toml").resolve()


def _list_install_commands(agent: AgentKind | None) -> Iterator[str]:
    from importlib.util import find_spec

    from agentctl.config.extras import build_extra_command, build_install_command

    if agent in _PACKAGES and find_spec(_PACKAGES[agent]) is None:
        yield build_extra_command(agent)
    if find_spec("pytest") is None:
        yield build_install_command("pytest")
