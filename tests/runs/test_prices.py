"""Prices of models: of the configuration, of the package, and unknown ones."""

from __future__ import annotations

import pytest

from agentctl.config.budgets import ModelPrice
from agentctl.config.settings import Model, Settings
from agentctl.records.sessions import TOKEN_COUNTERS
from agentctl.runs.gate.budgets import Prices

MODELS = (
    Model("own", "openai", "gpt-4o", price=ModelPrice(1, 2, 0.5)),
    Model("plain", "openai", "gpt-4o", price=ModelPrice(1, 2)),
    Model("listed", "openai", "gpt-4o"),
    Model("proxy", "openai", "gpt-4o", base_url="http://127.0.0.1:1/v1"),
    Model("new", "openai", "a-model-of-next-year"),
    Model("local", "ollama", "llama3"),
    Model("demo", "demo", "echo"),
    Model("aws", "bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", region="us-east-1"),
)

USED = dict.fromkeys(TOKEN_COUNTERS, 0) | {
    "input_tokens": 1_000,
    "output_tokens": 100,
    "total_tokens": 1_100,
    "cache_read_tokens": 400,
}


async def find(name: str, used: dict[str, int] = USED) -> float | None:
    """Return the cost of some tokens in millionths of a dollar."""
    cost = await Prices(Settings(models=MODELS)).find_cost(name, used)
    return None if cost is None else cost / 1_000


async def test_price_of_the_configuration_comes_first() -> None:
    assert await find("own") == 600 + 0.5 * 400 + 2 * 100
    assert await find("plain") == 1_000 + 2 * 100, "cached tokens cost as much as others"
    assert await find("demo") == 0


@pytest.mark.parametrize("name", ["proxy", "local", "new", "a model that no one knows", ""])
async def test_unknown_price_is_none(name: str) -> None:
    assert await find(name) is None


async def test_listed_prices_are_those_of_the_package() -> None:
    assert await find("listed") == pytest.approx(2.5 * 600 + 1.25 * 400 + 10 * 100)
    assert await find("claude-sonnet-4-5") == pytest.approx(3 * 600 + 0.3 * 400 + 15 * 100)
    assert (await find("aws") or 0) > 0


async def test_name_of_a_library_has_the_price_of_its_entry() -> None:
    assert await find("gpt-4o") == await find("own"), "the first entry with a price"
