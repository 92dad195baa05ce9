"""The folder of `agentctl serve --demo`, and the lines to paste once it listens."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

__all__ = ["lines_to_paste", "prepare_demo"]

_ALGORITHM = "RS256"


def prepare_demo(directory: Path) -> Path:
    """Make the demo's folder with configuration and key pair; what is there already stays.

    The configuration comes last, so that a start that was broken off is completed by the next one.

    Args:
        directory: the folder; it is made with mode 0700.

    Returns:
        The absolute path of the configuration.

    Raises:
        AgentctlError: a file cannot be written.
    """
    from agentctl.cli.files import make_folder, write_new
    from agentctl.config.demo import DEMO_CONFIG

    make_folder(directory, 0o700)
    _prepare_keys(directory / "keys" / "signing.pem")
    settings = directory.absolute() / "agentctl.toml"
    if not settings.exists():
        write_new(settings, DEMO_CONFIG.encode())
    return settings


def lines_to_paste(settings: Path, url: str) -> list[str]:
    """What to type in another terminal: an `export` line, then three commands (contract.md 8).

    Args:
        settings: the demo's configuration.
        url: where the server listens.
    """
    commands = shlex.quote(str(_folder_of_commands()))
    return [
        f'export PATH={commands}:"$PATH" AGENTCTL_CONFIG={shlex.quote(str(settings))}',
        "export AGENTCTL_TOKEN=$(agentctl token mint --sub me"
        " --scope agents:run --scope sessions:read --scope teams:read --expires-in 1h)",
        f"agentctl teams list --url {url}",
        f'agentctl runs start --agent echo --message "hello" --session s1 --url {url}',
    ]


def _prepare_keys(private: Path) -> None:
    from agentctl.auth import keys
    from agentctl.cli.files import write_new
    from agentctl.cli.keypair import public_path, write_key_pair

    public = public_path(private)
    if not private.exists():
        write_key_pair(private, _ALGORITHM)
    elif not public.exists():
        write_new(public, keys.public_pem(keys.read_private_key(private), _ALGORITHM))


def _folder_of_commands() -> Path:
    """Where `agentctl` itself is: beside the script that runs, or beside its interpreter."""
    script = Path(sys.argv[0]).absolute()
    return (script if script.name == "agentctl" else Path(sys.executable)).parent
