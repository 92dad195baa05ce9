"""Check budgets: prices that are not known, and budgets that no run can count for."""

from __future__ import annotations

from collections.abc import Iterator

from agentctl.admin.doctor.finding import Finding, note, ok, wrong
from agentctl.config.settings import Agent, Settings, Team
from agentctl.config.upkeep import Budget
from agentctl.runs.life.prices import Prices

_CHECK = "budgets"


async def check_budgets(settings: Settings) -> list[Finding]:
    """Check the budgets of the configuration."""
    prices, findings = Prices(settings), list[Finding]()
    for budget in settings.budgets:
        if budget.cost is None:
            continue
        for model in dict.fromkeys(_list_models(settings, budget)):
            if await prices.is_known(model):
                continue
            if budget.unknown == "refuse":
                text = f"{budget.id} refuses runs of the model {model}, whose price is not known"
                findings.append(wrong(_CHECK, text, f"set price of the model {model}"))
            else:
                text = f"{budget.id} does not count the model {model}, whose price is not known"
                findings.append(note(_CHECK, text, f"set price of the model {model}"))
    count = len(settings.budgets)
    return findings or [ok(_CHECK, "1 budget" if count == 1 else f"{count} budgets")]


def _list_models(settings: Settings, budget: Budget) -> Iterator[str]:
    """Yield the models of the components that count for a budget."""
    fallbacks = {model.id: model.fallbacks for model in settings.models}
    components: tuple[Agent | Team, ...] = (*settings.agents, *settings.teams)
    for component in components:
        if component.model and budget.component in ("", component.id):
            yield component.model
            yield from fallbacks[component.model]
