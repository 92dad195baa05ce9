"""Settings from TOML and environment, with where each value came from (contract.md 7)."""

from agentctl.config.load import SAMPLE, find, load, require_keys
from agentctl.config.settings import Settings
from agentctl.config.transfer import effective

__all__ = ["SAMPLE", "Settings", "effective", "find", "load", "require_keys"]
