"""Settings from TOML and environment, with where each value came from (contract.md 7)."""

from agentctl.config.effective import effective
from agentctl.config.keys import require_keys
from agentctl.config.load import find, load
from agentctl.config.settings import Settings
from agentctl.config.texts import SAMPLE

__all__ = ["SAMPLE", "Settings", "effective", "find", "load", "require_keys"]
