"""Settings from a TOML file and the environment, with the source of each value.

The rules are in docs/contract.md "Configuration".
"""

from agentctl.config.load import (
    SAMPLE_CONFIG,
    find_config_file,
    load_settings,
    require_verification_key,
)
from agentctl.config.settings import Settings
from agentctl.config.tables import effective_settings

__all__ = [
    "SAMPLE_CONFIG",
    "Settings",
    "effective_settings",
    "find_config_file",
    "load_settings",
    "require_verification_key",
]
