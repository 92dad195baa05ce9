"""Settings round-trip through the text for other processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentctl.config import SAMPLE_CONFIG, load_settings
from agentctl.config.load import DEMO_CONFIG, DEMO_MCP_CONFIG
from agentctl.config.tables import settings_from_text, settings_to_text


@pytest.mark.parametrize("config", [SAMPLE_CONFIG, DEMO_CONFIG + DEMO_MCP_CONFIG, ""])
def test_loaded_settings_round_trip_with_secrets(config: str, tmp_path: Path) -> None:
    file = tmp_path / "agentctl.toml"
    file.write_text(config, encoding="utf-8")
    loaded = load_settings(file, {"JWT_VERIFICATION_KEY": "a secret", "JWT_JWKS_FILE": "keys.json"})
    text = settings_to_text(loaded)
    back = settings_from_text(text)
    assert back == loaded
    assert repr(back) == repr(loaded)  # 1 is 1.0 for `==`
    assert text.isascii()
    assert text.isprintable()
    assert back.authorization.verification_keys[-1] == "a secret"
    assert back.sources["authorization.jwks_file"].endswith("env JWT_JWKS_FILE")
