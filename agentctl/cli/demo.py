"""The demo of `agentctl serve --demo`: its directory, and a real model for its agents."""

from __future__ import annotations

import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentctl.cli.help import join_alternatives
from agentctl.cli.show.terminal import note
from agentctl.errors import InvalidConfiguration, UsageError
from agentctl.records.text import quote_text, suggest_name

if TYPE_CHECKING:
    from agentctl.config.settings import Model, Settings

DEMO_DIRECTORY = Path(".agentctl-demo")

_ALGORITHM = "RS256"
_OFFLINE = "slow"
"""The model of the demo that always stays offline: it streams so that a cancel can be tried."""

_BASE_URL = "OPENAI_BASE_URL"
"""The variable with the address of an endpoint that is used in place of OpenAI's, as its own
clients read it. A configured model ignores it."""

_TEMPLATES = Path(__file__).parent / "templates" / "demo"


def create_demo(directory: Path) -> Path:
    """Create the directory of the demo: keys, modules, configuration; existing files stay.

    The configuration is written last, so that the next start completes an interrupted one.

    Args:
        directory: created with mode 0700.

    Returns:
        The absolute path of the configuration.
    """
    from importlib.util import find_spec

    from agentctl.auth.keys import signing
    from agentctl.auth.keys.files import read_private_key
    from agentctl.cli.files import create_directory, create_file, public_path, write_key_pair
    from agentctl.config.extras import build_extra_command
    from agentctl.config.load import DEMO_CONFIG, DEMO_MCP_CONFIG

    create_directory(directory, 0o700)
    private = directory / "keys" / "signing.pem"
    public = public_path(private)
    if not private.exists():
        write_key_pair(private, _ALGORITHM)
    elif not public.exists():
        create_file(public, signing.build_public_pem(read_private_key(private), _ALGORITHM))

    for name in ("demo_agents.py", "notes_server.py"):
        if not (directory / name).exists():
            create_file(directory / name, (_TEMPLATES / f"{name}.txt").read_bytes())

    config_file = directory.absolute() / "agentctl.toml"
    if not config_file.exists():
        has_mcp = find_spec("mcp") is not None
        mcp_config = DEMO_MCP_CONFIG.replace("@python@", sys.executable) if has_mcp else ""
        create_file(config_file, (DEMO_CONFIG + mcp_config).encode())
        if not has_mcp:
            note(f"the demo has no agent with an MCP server: {build_extra_command('mcp')}")
    return config_file


def list_demo_steps(settings: Settings, path: Path, url: str) -> Iterator[str]:
    """Yield the lines that a server of the demo prints: its real model, and commands to try it."""
    from agentctl.cli.files import find_program_folder
    from agentctl.config.providers import list_used_models

    # Several entries may have one model.
    names = dict.fromkeys((model.model, model.provider) for model in list_used_models(settings))
    for name, provider in names:
        yield f"model: {name} of {provider}"

    directory = find_program_folder()
    variables = f"AGENTCTL_CONFIG={shlex.quote(str(path))}"
    yield from (
        "",
        "to try it, paste this into another terminal:",
        "",
        f'export PATH={shlex.quote(str(directory))}:"$PATH" {variables}',
        "export AGENTCTL_TOKEN=$(agentctl token mint --sub me --scope user)",
        f"agentctl agents list --url {url}",
        f'agentctl runs start --agent echo --message "hello" --session s1 --url {url}',
        f"agentctl console --sub me --url {url}",
        "",
    )


def find_model(name: str) -> Model:
    """Return the real model of a name, with the usual variable for the key of its provider.

    Args:
        name: the name of a model of OpenAI, or PROVIDER/MODEL.

    Raises:
        UsageError: the provider is unknown, or needs more than a name and a key.
        InvalidConfiguration: the key of the provider is not set, or its library not installed.
    """
    from agentctl.config.places import Place
    from agentctl.config.providers import PROVIDERS, check_models, require_extra, requires_key
    from agentctl.config.settings import Model, Settings
    from agentctl.config.validation import validate_value

    providers = [key for key, traits in PROVIDERS.items() if not traits.required and key != "demo"]
    provider, slash, model_name = name.partition("/")
    if not slash:
        provider = "openai"
        model_name = name

    if provider not in providers or not model_name:
        similar = suggest_name(provider, providers)
        hint = "write openai/gpt-5.2-mini"
        if similar and model_name:
            hint = f"did you mean {similar}/{model_name}?"
        raise UsageError(
            f"--model must be a model of OpenAI or PROVIDER/MODEL, not {quote_text(name)}",
            cause=f"the providers are {join_alternatives(tuple(providers))}",
            hint=hint,
        )

    variable = PROVIDERS[provider].variable
    url = os.environ.get(_BASE_URL, "") if provider == "openai" else ""
    base_url = validate_value(Model, "base_url", url, Place(_BASE_URL), Path())
    real = Model("real", provider, model_name, base_url=base_url, api_key_env=variable)
    try:
        check_models(Settings(models=(real,)), defaultdict(lambda: Place("--model")))
    except InvalidConfiguration as failure:
        failure.hint = f"write the name after its provider: --model {provider}/VENDOR/MODEL"
        raise

    if not os.environ.get(variable) and requires_key(real):
        cause = f"it has the API key of {provider}, which serves {model_name}"
        hint = f"export {variable}=KEY, or leave out --model: the demo then runs offline"
        if not slash:
            cause = f"{name} has no provider before it, so it is taken for a model of OpenAI"
            hint += f"; for another provider write PROVIDER/{name}"
        raise InvalidConfiguration(f"the variable {variable} is not set", cause=cause, hint=hint)

    require_extra(real)
    return real


def use_model(real: Model, read: Callable[[], Settings]) -> Settings:
    """Read the settings of the demo, with a real model in place of each offline model but `slow`.

    The file of the demo is unchanged.
    """
    settings = read()
    models = tuple(
        replace(real, id=model.id) if model.provider == "demo" and model.id != _OFFLINE else model
        for model in settings.models
    )
    return replace(settings, models=models)
