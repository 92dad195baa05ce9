"""The program pi, a coding agent."""

from __future__ import annotations

import json
from pathlib import Path

from operations import KEY, URL, report
from programs import NODE, add_operations


def build(folder: Path, model: str, message: str) -> list[str]:
    provider = {
        "baseUrl": URL,
        "api": "openai-completions",
        "apiKey": KEY,
        "models": [{"id": model}],
    }
    place = folder / ".pi" / "agent" / "models.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"providers": {"agentctl": provider}}))
    return [str(NODE / "pi"), "--provider", "agentctl", "--model", model, "-p", message]


if __name__ == "__main__":
    add_operations(build, "bash", {})
    report()
