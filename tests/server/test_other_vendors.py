"""Runs whose models are of other vendors than OpenAI: what is sent, and how refusals are named.

They are in one file because the libraries of the vendors take seconds to import.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import httpx2
import pytest

from tests.kit.model import ModelEndpoint
from tests.server.agents_in_code import run_agent, serve_module
from tests.server.files_of_runs import PDF, upload

VENDORS = ("anthropic", "google", "bedrock")

NAMES = ("refused_google", "refused_bedrock", "options_anthropic", "options_google")

PLACES = {
    "anthropic": 'api_key_env = "TEST_KEY"',
    "google": 'api_key_env = "TEST_KEY"',
    "bedrock": 'region = "eu-central-1"',
}

MODELS = """
[[models]]
id = "{vendor}"
provider = "{vendor}"
model = "echo"
base_url = "{url}"
takes = ["image", "pdf"]
{place}

[[models]]
id = "long_{vendor}"
provider = "{vendor}"
model = "long"
base_url = "{url}"
{place}

[[agents]]
id = "{vendor}"
model = "{vendor}"

[[agents]]
id = "long_{vendor}"
model = "long_{vendor}"
"""


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory,
    model_endpoint: ModelEndpoint,
    vendor_endpoint: ModelEndpoint,
) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("vendors")
    url = vendor_endpoint.root_url
    extra = "".join(
        MODELS.format(vendor=vendor, url=url, place=PLACES[vendor]) for vendor in VENDORS
    )
    environment = {
        "VENDOR_URL": url,
        "TEST_KEY": "none",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
    }
    with serve_module(
        folder, model_endpoint, "vendor_agents", NAMES, extra, **environment
    ) as client:
        yield client


@pytest.fixture
def endpoint(vendor_endpoint: ModelEndpoint) -> ModelEndpoint:
    """The endpoint of the vendors, without earlier requests."""
    vendor_endpoint.forget()
    return vendor_endpoint


@pytest.mark.parametrize("vendor", VENDORS)
def test_vendor_says_that_the_conversation_does_not_fit(client: httpx2.Client, vendor: str) -> None:
    run = run_agent(client, f"long_{vendor}", "a long story")
    assert run["error"]["code"] == "CONTEXT_EXCEEDED"
    start = f"the context window of the model long_{vendor}; the largest part is"
    assert start in run["error"]["detail"]


@pytest.mark.parametrize("vendor", ["google", "bedrock"])
def test_refusal_of_a_vendor_is_no_outage(client: httpx2.Client, vendor: str) -> None:
    run = run_agent(client, f"refused_{vendor}", "hello")
    assert run["error"]["code"] == "MODEL_REJECTED", run["error"]


@pytest.mark.parametrize("vendor", ["anthropic", "google"])
def test_vendor_gets_the_bytes_of_a_document(
    client: httpx2.Client, endpoint: ModelEndpoint, vendor: str
) -> None:
    files = [upload(client, "paper.pdf", PDF)]
    assert run_agent(client, vendor, "look", files=files)["status"] == "COMPLETED"

    # Google's client writes base64 for URLs.
    sent = json.dumps(endpoint.requests()[-1]).replace("-", "+").replace("_", "/")
    assert base64.b64encode(PDF).decode() in sent
    assert "application/pdf" in sent


@pytest.mark.parametrize("vendor", ["anthropic", "google"])
def test_document_is_sent_without_an_empty_text(
    client: httpx2.Client, endpoint: ModelEndpoint, vendor: str
) -> None:
    form = {"stream": False, "files": [upload(client, "paper.pdf", PDF)]}
    # The endpoint answers with the text of the message, and Google's client refuses none.
    assert client.post(f"/agents/{vendor}/runs", json=form).status_code == 200
    sent = json.dumps(endpoint.requests()[-1])
    assert "application/pdf" in sent
    assert '"text": ""' not in sent


def test_vendors_get_the_options_that_they_have(
    client: httpx2.Client, endpoint: ModelEndpoint
) -> None:
    """A warning of an ignored option would fail the run: warnings are errors in tests."""
    for vendor in ("anthropic", "google"):
        run = run_agent(client, f"options_{vendor}", "hello")
        assert (run["status"], run["content"]) == ("COMPLETED", "hello"), run

    anthropic, google = endpoint.requests()
    assert anthropic["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert "frequency_penalty" not in anthropic
    assert google["generationConfig"]["frequencyPenalty"] == 0.5
