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

    Attributes:
        tokenizer: the index of the texts of ended runs; None if search is not enabled.
        is_used: True if there is a webhook or an index, so that facts are stored.
        console: the address of the console; empty without one.
        wake: called after a commit that may have stored a fact. The task that delivers sets it.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.tokenizer: Tokenizer | None = None
        if settings is not None and settings.search.enabled:
            self.tokenizer = settings.search.tokenizer
        self._webhooks: Sequence[Webhook] = () if settings is None else settings.webhooks
        self.is_used = bool(self._webhooks) or self.tokenizer is not None
        self.console = ""
        if settings is not None and settings.console.enabled:
            self.console = f"{settings.server.address}/console"
        self.wake: Callable[[], None] = lambda: None

    def select(self, event: str, *component_ids: str, concerns_all: bool = False) -> list[Webhook]:
        """Return the endpoints that want an event of one of some components.

        Args:
            concerns_all: True if the event concerns every component.
        """
        return [
            webhook
            for webhook in self._webhooks
            if event in webhook.events
            and (
                concerns_all
                or not webhook.agents
                or not {*webhook.agents}.isdisjoint(component_ids)
            )
        ]
