"""The face for clients of OpenAI's API (docs/openai.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agentctl.interop.routes import build_extension

if TYPE_CHECKING:
    from agentctl.config.places import Place
    from agentctl.config.settings import Settings


def _check_settings(settings: Settings, places: Mapping[str, Place]) -> None:
    from agentctl.interop.openai.settings import DEFAULT_IGNORED, OpenAI

    table = settings.get_table(OpenAI)
    # The sample configuration has the default.
    if table.ignored_parameters not in ((), DEFAULT_IGNORED) and not table.enabled:
        places["openai.ignored_parameters"].refuse(
            "has no effect while openai.enabled is false",
            hint="set enabled = true in [openai], or remove ignored_parameters",
        )


EXTENSION = build_extension("openai", "OpenAI", check_settings=_check_settings)
