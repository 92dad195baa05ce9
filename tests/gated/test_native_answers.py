"""Answers of a provider that need their own form back, such as signed thinking."""

from __future__ import annotations

import pytest

from tests.kit.model import ModelEndpoint
from tests.kit.site import Site

_CONFIG = """
[[models]]
id = "vendor"
provider = "anthropic"
model = "thinks:refund"
base_url = "{url}"
api_key_env = "TEST_VENDOR_KEY"

[[agents]]
id = "thinker"
model = "vendor"
tools = ["ledger_tools:refund"]
"""


@pytest.fixture
def thinking(
    own_site: Site, vendor_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> Site:
    monkeypatch.setenv("TEST_VENDOR_KEY", "key")
    config = own_site.deployment.path
    config.write_text(config.read_text() + _CONFIG.format(url=vendor_endpoint.root_url))
    return own_site


async def test_signed_thinking_is_sent_back_after_a_pause(
    thinking: Site, vendor_endpoint: ModelEndpoint
) -> None:
    with thinking.serve_in_thread() as server:
        run = await thinking.run(server, "thinker", '{"amount": 1, "to": "bob"}')
        assert run["status"] == "PAUSED"
    with thinking.serve_in_thread() as server:
        await thinking.decide(server, run["run_id"], "approve")
        record = await thinking.wait_for_end(server, run["run_id"])
    assert record["status"] == "COMPLETED"
    *_, second = vendor_endpoint.requests()
    (block, *_) = second["messages"][1]["content"]
    assert (block["type"], block["signature"]) == ("thinking", "c2lnbmVk")
