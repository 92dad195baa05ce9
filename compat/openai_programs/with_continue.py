"""The program cn of Continue."""

from __future__ import annotations

import json
from pathlib import Path

from operations import KEY, URL, report
from programs import NODE, add_operations


def build(folder: Path, model: str, message: str) -> list[str]:
    entry = {"name": model, "provider": "openai", "model": model, "apiBase": URL, "apiKey": KEY}
    config = {
        "name": "x",
        "version": "1.0.0",
        "schema": "v1",
        "models": [{**entry, "roles": ["chat"]}],
    }
    # JSON is YAML.
    (folder / "config.yaml").write_text(json.dumps(config))
    return [str(NODE / "cn"), "-p", message, "--auto", "--config", str(folder / "config.yaml")]


if __name__ == "__main__":
    add_operations(build, "Bash", {})
    report()
