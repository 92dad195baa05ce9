"""`agentctl init`: a configuration and a key pair to begin with, with `--agent` a whole project."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from agentctl.cli.commands.console import find_url
from agentctl.cli.help import join_alternatives
from agentctl.cli.parameters import argument, flag, option
from agentctl.cli.show.terminal import note
from agentctl.errors import UsageError

EXAMPLE = "agentctl init my-server"

AgentKind = Literal["function", "pydantic-ai", "langgraph", "openai-agents", "agno", "adk", "mcp"]

_KINDS = join_alternatives(get_args(AgentKind))

_CONFIG = "agentctl.toml"
_SCHEMA = "agentctl.schema.json"
_OBJECT = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
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
    agent: AgentKind | None = option("--agent", "KIND", f"Also write a Python agent: {_KINDS}"),
    own_object: str | None = option(
        "--object", "MODULE:NAME", "Host an existing agent, such as weather:agent"
    ),
    full: bool = flag("--full", "Write every configuration key with its default"),
) -> None:
    """Write a configuration and a key pair.

    The configuration has the keys to begin with, and one agent, which runs offline. With --agent
    the agent has its module, a test and a README; with --object the agent is an object of your own
    code, and AGENTS.md tells coding agents about the project. agentctl.schema.json lets editors
    complete and check the configuration. Existing files are never overwritten.
    """
    from agentctl.cli.files import (
        check_absent,
        create_directory,
        create_file,
        public_path,
        write_key_pair,
    )
    from agentctl.config import load_settings

    component = None if own_object is None else _build_own_component(own_object, agent)
    files = {directory / name: text for name, text in _read_files(agent, full, component).items()}
    private = directory / "keys" / "signing.pem"
    check_absent(*files, private, public_path(private))
    create_directory(directory)

    written_files = list[Path]()
    try:
        for path, text in files.items():
            create_file(path, text.encode())
            written_files.append(path)
        # The environment overrides the new file: a mistake there is reported before it is kept.
        settings = load_settings(directory / _CONFIG)
        pair = write_key_pair(private, "RS256")
    except BaseException:
        for path in written_files:
            path.unlink(missing_ok=True)
        raise

    for file in (*written_files, pair.private, pair.public):
        note(f"wrote {file}")
    if component is not None:
        _note_missing_module(directory, component)
    name = component.id if component is not None else settings.agents[0].id
    _note_next_steps(directory, agent, name, find_url(settings))


@dataclass(frozen=True, slots=True)
class _OwnComponent:
    """An agent in the code of the user."""

    id: str
    object: str

    @property
    def module(self) -> str:
        """The module, or the package that contains it."""
        return self.object.partition(":")[0].partition(".")[0]

    def format(self) -> str:
        """Return the entry of the configuration."""
        return f'[[agents]]\nid = "{self.id}"\nobject = "{self.object}"\n'


def _build_own_component(own_object: str, agent: AgentKind | None) -> _OwnComponent:
    if agent is not None:
        raise UsageError("--object and --agent cannot be used together")
    module, _, name = own_object.partition(":")
    if module.endswith(".py") or _OBJECT.fullmatch(own_object) is None:
        # A file is what people name first: weather.py:agent, or agents/weather.py:agent.
        guess = f"{module.removesuffix('.py').replace('/', '.')}:{name or 'agent'}"
        example = guess if _OBJECT.fullmatch(guess) else "weather:agent"
        raise UsageError(
            f"--object {own_object!r} is not MODULE:NAME",
            hint=f"write the module without .py and the name in it: --object {example}",
        )
    module = module.rpartition(".")[2]
    return _OwnComponent(module.strip("_") or "agent", own_object)


def _note_missing_module(directory: Path, component: _OwnComponent) -> None:
    """Note that the module of an agent is neither in the folder nor installed."""
    name = component.module
    is_beside = (directory / f"{name}.py").is_file() or (directory / name).is_dir()
    if not is_beside and _is_missing(name):
        note(f"note: {name} is neither in {directory} nor installed: put {name}.py there")


def _read_files(
    agent: AgentKind | None, full: bool, component: _OwnComponent | None
) -> dict[str, str]:
    from agentctl.config import SAMPLE_CONFIG
    from agentctl.config.json_schema import build_json_schema

    folder = _TEMPLATES / (agent or "starter").replace("-", "_")
    paths = sorted(folder.iterdir())
    if agent is not None:
        paths.append(_TEMPLATES / "README.md")
    if agent is not None or component is not None:
        paths.append(_TEMPLATES / "AGENTS.md")
    files = {path.name.removesuffix(".txt"): path.read_text(encoding="utf-8") for path in paths}
    components = files[_CONFIG] if component is None else component.format()
    if not full:
        base = (_TEMPLATES / _CONFIG).read_text(encoding="utf-8")
        files[_CONFIG] = base.replace("@components@", components)
    else:
        has_more = agent is not None or component is not None
        files[_CONFIG] = SAMPLE_CONFIG + (f"\n{components}" if has_more else "")

    files[_CONFIG] = f"#:schema ./{_SCHEMA}\n{files[_CONFIG]}"
    files[_SCHEMA] = json.dumps(build_json_schema(), indent=1) + "\n"
    return {name: text.replace("@python@", sys.executable) for name, text in files.items()}


def _note_next_steps(directory: Path, agent: AgentKind | None, name: str, url: str) -> None:
    import shlex

    here = directory.resolve() == Path.cwd()
    # The variable of another project would select its configuration in the new folder, too.
    folder = "  unset AGENTCTL_CONFIG\n" if _is_other_configured(directory) else ""
    folder = _build_path_command() + folder
    folder += "" if here else f"  cd {shlex.quote(str(directory))}\n"
    tests = [] if agent is None else [*_list_install_commands(agent), "python -m pytest"]
    before = folder + "".join(f"  {command}\n" for command in tests)
    for line in _NEXT_STEPS.format(before=before, folder=folder, agent=name, url=url).splitlines():
        note(line)


def _build_path_command() -> str:
    """Return the command that puts this program on the PATH; nothing if the shell finds it."""
    import shlex
    import shutil

    from agentctl.cli.files import find_program_folder

    program_folder = find_program_folder()
    found = shutil.which("agentctl")
    if found is not None and Path(found).parent.resolve() == program_folder.resolve():
        return ""
    return f'  export PATH={shlex.quote(str(program_folder))}:"$PATH"\n'


def _is_other_configured(directory: Path) -> bool:
    """Return True if AGENTCTL_CONFIG names another file than the configuration of a folder."""
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
