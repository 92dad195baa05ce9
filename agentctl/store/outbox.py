"""The outbox of a database: what its transactions add for deliveries and for the search.

A transaction that changes a fact asks the outbox which webhooks want it, and whether texts are
indexed. `webhooks.facts` builds the rows, `webhooks.deliveries` sends them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentctl.config.settings import Settings
    from agentctl.config.webhooks import Webhook
    from agentctl.store.search import Tokenizer


class Outbox:
    """The webhooks and the search index of a configuration, for transactions that record facts.

    Args:
        settings: the configuration; None without webhooks.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._webhooks: Sequence[Webhook] = ()
        if settings is not None:
            self._webhooks = settings.webhooks

        self.tokenizer: Tokenizer | None = None
        """The index of the texts of ended runs; None if search is not enabled."""

        if settings is not None and settings.search.enabled:
            self.tokenizer = settings.search.tokenizer

        self.is_used = bool(self._webhooks) or self.tokenizer is not None
        """True if there is a webhook or an index, so that facts are stored."""

        self.console = ""
        """The address of the console; empty without one."""

        if settings is not None and settings.console.enabled:
            self.console = f"{settings.server.address}/console"

        self.wake: Callable[[], None] = lambda: None
        """Called after a commit that may have stored a fact. The task that delivers sets it."""

    def select(self, event: str, *component_ids: str, concerns_all: bool = False) -> list[Webhook]:
        """Return the endpoints that want an event of one of some components.

        Args:
            concerns_all: True if the event concerns every component.
        """
        selected_webhooks: list[Webhook] = []
        for webhook in self._webhooks:
            # A webhook without components gets the events of all of them.
            wants_component = concerns_all or not webhook.agents
            if not wants_component:
                wants_component = not set(webhook.agents).isdisjoint(component_ids)
            if event in webhook.events and wants_component:
                selected_webhooks.append(webhook)
        return selected_webhooks
