"""The entry of a model in the package `genai-prices`: its prices and its context window.

The package takes 0.3 s and 29 MB to load. It is loaded once, in a thread, for the first model whose
price or window is needed, is not configured, and is called at its provider.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentctl.config.settings import Model

_log = logging.getLogger("agentctl.runtime")

_PROVIDERS = {"bedrock": "aws"}
"""The names of providers in the package, where they differ."""


def is_listed(model: Model) -> bool:
    """Return True if the package may know a model of the configuration."""
    # Another address is that of another service, which has other prices and bounds.
    return model.provider not in ("demo", "ollama", "azure") and not model.base_url


async def find_listed(model: Model | str) -> Any:
    """Return what the package knows of a model: `model` and `model_price`; None for nothing.

    Args:
        model: a model of the configuration, or the name that a library gives to one.
    """
    if isinstance(model, str):
        return await asyncio.to_thread(_find, model, None)
    if not is_listed(model):
        return None
    provider = _PROVIDERS.get(model.provider, model.provider)
    return await asyncio.to_thread(_find, model.model, provider)


async def find_window(model: Model) -> int | None:
    """Return the tokens of the context window of a model; None if it is not known."""
    found = None if model.context_tokens else await find_listed(model)
    return model.context_tokens or (None if found is None else found.model.context_window)


def _find(model: str, provider: str | None) -> Any:
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return None
    try:
        return calc_price(Usage(input_tokens=1), model, provider_id=provider)
    except LookupError:
        return None
    except Exception:
        # The sums of usage and the runs must not wait for the repair of a library.
        _log.exception("the model %s could not be looked up", model)
        return None
