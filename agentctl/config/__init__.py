"""Settings from TOML and environment, with where each value came from (contract.md 7)."""

from agentctl.config.load import (
    SAMPLE_CONFIG,
    find_config_file,
    load_settings,
    require_verification_key,
)
from agentctl.config.settings import Settings
from agentctl.config.transfer import effective_settings

__all__ = [
    "SAMPLE_CONFIG",
    "Settings",
    "effective_settings",
    "find_config_file",
    "load_settings",
    "require_verification_key",
]
