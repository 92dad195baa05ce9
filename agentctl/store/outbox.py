"""Rows that are written with the end of a run: facts for webhooks, and texts for a search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentctl.config.settings import Settings
    from agentctl.config.webhooks import Webhook
    from agentctl.store.search import Tokenizer


class Outbox:
    """The webhooks and the search of a configuration, as transactions of facts see them.

    Args:
        settings: the configuration; None for no webhooks.

    Attributes:
        tokenizer: the index of the texts of ended runs; None if search is not enabled.
        console: the address of the console; empty without one.
        wake: called after a commit that may have stored a fact. The task that delivers sets it.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.tokenizer: Tokenizer | None = None
        if settings is not None and settings.search.enabled:
            self.tokenizer = settings.search.tokenizer
        self._webhooks: Sequence[Webhook] = () if settings is None else settings.webhooks
        self.console = ""
        if settings is not None and settings.console.enabled:
            self.console = f"{settings.server.address}/console"
        self.wake: Callable[[], None] = lambda: None

    def __bool__(self) -> bool:
        return bool(self._webhooks) or self.tokenizer is not None

    def select(self, event: str, component_id: str) -> list[Webhook]:
        """Return the endpoints that want an event of a component."""
        return [
            webhook
            for webhook in self._webhooks
            if event in webhook.events and (not webhook.agents or component_id in webhook.agents)
        ]
