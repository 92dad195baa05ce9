"""A conversation that is larger than the context window of its model."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from tests.endpoint import ModelEndpoint, vendor_endpoint
from tests.server.agents_in_code import run_agent, serve_module

__all__ = ["vendor_endpoint"]

KINDS = ("langgraph", "pydantic_ai", "agno", "agno_team", "openai_agents", "model_in_code")

WINDOW = 6_000
"""Characters of all messages of a request, with the instructions that a library adds."""

MODEL = """
[[models]]
id = "window"
provider = "openai"
model = "window:{window}"
base_url = "{url}"

[[agents]]
id = "configured"
model = "window"

[[models]]
id = "anthropic"
provider = "anthropic"
model = "long"
base_url = "{vendor_url}"
api_key_env = "TEST_KEY"

[[models]]
id = "google"
provider = "google"
model = "long"
base_url = "{vendor_url}"
api_key_env = "TEST_KEY"

[[models]]
id = "bedrock"
provider = "bedrock"
model = "long"
base_url = "{vendor_url}"
region = "eu-central-1"
"""

VENDORS = ("anthropic", "google", "bedrock")

DETAIL = "The conversation is larger than the context window of the model"

LARGE_MESSAGE = "the largest part is the message with 6017 bytes: send a shorter message"

FITTED = ("configured", "model_in_code")
"""Agents whose model is one of the configuration."""


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory,
    model_endpoint: ModelEndpoint,
    vendor_endpoint: ModelEndpoint,
) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("window")
    extra = MODEL.format(
        url=model_endpoint.base_url, vendor_url=vendor_endpoint.root_url, window=WINDOW
    )
    extra += "".join(f'[[agents]]\nid = "of_{name}"\nmodel = "{name}"\n' for name in VENDORS)
    environment = {
        "MODEL": f"window:{WINDOW}",
        "TEST_KEY": "none",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
    }
    with serve_module(
        folder, model_endpoint, "windowed_agents", (*KINDS, "fitted"), extra, **environment
    ) as client:
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("name", ["configured", *KINDS])
def test_short_message_is_answered_after_one_that_does_not_fit(
    client: httpx2.Client, name: str
) -> None:
    session = {"session_id": f"{name}-one"}
    assert run_agent(client, name, "the first", **session)["status"] == "COMPLETED"
    failed = run_agent(client, name, "x" * (WINDOW + 1), **session)
    assert failed["error"]["code"] == "CONTEXT_EXCEEDED"
    assert (LARGE_MESSAGE if name in FITTED else DETAIL) in failed["error"]["detail"]
    answered = run_agent(client, name, "hi", **session)
    assert answered["status"] == "COMPLETED", answered["error"]
    # The history of a configured agent is fitted, that of others begins again.
    assert ("the first" in answered["content"]) == (name == "configured")
    # Later runs know what came after the failure.
    assert '"hi"' in run_agent(client, name, "again", **session)["content"]


def test_conversation_that_does_not_fit_is_answered(client: httpx2.Client) -> None:
    """The size of the window is not known: a refused request is repeated with less."""
    session = {"session_id": "configured-many"}
    for number in range(6):
        run = run_agent(client, "configured", f"{number}" * 900, **session)
        assert run["status"] == "COMPLETED", run["error"]
    omissions = run["messages"][-1]["compacted"]["omissions"]
    assert [each["kind"] for each in omissions] == ["runs"]


def test_short_message_is_answered_after_a_conversation_that_does_not_fit(
    client: httpx2.Client,
) -> None:
    session = {"session_id": "pydantic_ai-many"}
    runs = [run_agent(client, "pydantic_ai", f"{number}" * 900, **session) for number in range(6)]
    failed = [number for number, run in enumerate(runs) if run["status"] == "ERROR"]
    assert failed
    assert runs[failed[0]]["error"]["code"] == "CONTEXT_EXCEEDED"
    # The next run after a failed one starts without history.
    assert all(number + 1 not in failed for number in failed)


def test_agent_of_a_library_is_fitted_into_the_window_of_its_model(
    client: httpx2.Client, model_endpoint: ModelEndpoint
) -> None:
    model_endpoint.forget()
    for message in ("fitted work 9 3000", "later " + "x" * 3_000, "fitted again work 2 4000"):
        run = run_agent(client, "fitted", message, session_id="fitted")
        assert run["status"] == "COMPLETED", run["error"]
    requests = model_endpoint.requests("tokens:2000")
    assert not any("refused" in body for body in requests)
    assert all(body["messages"][0]["content"] == "Be brief." for body in requests)
    compacted = [each["compacted"] for each in run["messages"] if "compacted" in each]
    kinds = [[each["kind"] for each in one["omissions"]] for one in compacted]
    assert (kinds[0], kinds[-1]) == (["runs"], ["tool_result", "runs", "turns"])
    # The stored messages are whole.
    assert [len(tool["result"]) for tool in run["tools"]] == [4_000, 4_000]


def test_agent_of_a_library_is_estimated_from_the_last_count(
    client: httpx2.Client, model_endpoint: ModelEndpoint
) -> None:
    """The stub counts four bytes for a token: nothing has to be left out."""
    for message in ("y" * 3_200, "hi " * 150):
        run = run_agent(client, "fitted", message, session_id="counted")
    assert not any("compacted" in each for each in run["messages"])
    sent = model_endpoint.requests("tokens:2000")[-1]["messages"]
    assert "y" * 3_200 in [each["content"] for each in sent]


@pytest.mark.parametrize("name", VENDORS)
def test_vendors_say_that_the_conversation_does_not_fit(client: httpx2.Client, name: str) -> None:
    run = run_agent(client, f"of_{name}", "a long story")
    assert run["error"]["code"] == "CONTEXT_EXCEEDED"
    assert f"the context window of the model {name}; the largest part is" in run["error"]["detail"]


def test_failed_run_for_another_reason_stays_in_the_history(client: httpx2.Client) -> None:
    """A cancelled run or one that failed for another reason is part of the conversation."""
    session = {"session_id": "other"}
    run_agent(client, "http-500", "broken", **session)
    answered = run_agent(client, "history", "hi", **session)
    assert "broken" in answered["content"]
