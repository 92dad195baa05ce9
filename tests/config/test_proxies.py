"""The proxies that the environment names: which one is used, and how a wrong one is reported."""

from __future__ import annotations

import asyncio
import socket

import httpx2
import pytest

from agentctl.auth.keys.remote import FetchError, fetch_configuration
from agentctl.errors import InvalidConfiguration
from agentctl.records.proxies import check_proxy, find_proxy_variable
from agentctl.runtime.mcp.http import McpHttpClient
from agentctl.runtime.models.provider import build_http_client, build_stream_transport, http_client

ELSEWHERE = "https://model.example.org/v1"

WRONG = [
    ("ALL_PROXY", "socks5://name:secret@127.0.0.1:1089", "needs a package"),
    ("HTTPS_PROXY", "socks://127.0.0.1:1089", "the scheme socks"),
    ("https_proxy", "http://[::1", "not a URL"),
    ("HTTPS_PROXY", "http://name:secret@:3128", "not a URL"),
    ("HTTPS_PROXY", "proxy.example.org:99999", "not a URL"),
    ("ALL_PROXY", "http://", "not a URL"),
]
"""Variables, values that cannot be used, and words of the cause. socksio is no dependency."""


@pytest.fixture(autouse=True)
def proxies_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name)


@pytest.fixture
def closed_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTPS_PROXY names a port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("variables", "url", "name"),
    [
        ({}, ELSEWHERE, None),
        ({"HTTPS_PROXY": "p:1"}, ELSEWHERE, "HTTPS_PROXY"),
        ({"HTTPS_PROXY": "p:1"}, "", "HTTPS_PROXY"),
        ({"HTTP_PROXY": "p:1"}, ELSEWHERE, None),
        ({"HTTP_PROXY": "p:1"}, "http://model.example.org", "HTTP_PROXY"),
        ({"ALL_PROXY": "p:1"}, ELSEWHERE, "ALL_PROXY"),
        ({"ALL_PROXY": "p:1", "https_proxy": "q:1"}, ELSEWHERE, "https_proxy"),
        ({"HTTPS_PROXY": "p:1", "https_proxy": ""}, ELSEWHERE, None),
        ({"ALL_PROXY": "p:1", "NO_PROXY": "example.org"}, ELSEWHERE, None),
        ({"ALL_PROXY": "p:1", "NO_PROXY": "*"}, ELSEWHERE, None),
        ({"ALL_PROXY": "p:1", "NO_PROXY": "example.com"}, ELSEWHERE, "ALL_PROXY"),
        ({"ALL_PROXY": "p:1"}, "http://127.0.0.1:11434/v1", None),
        ({"ALL_PROXY": "p:1"}, "http://localhost:11434", None),
        ({"ALL_PROXY": "p:1"}, "http://[::1]:11434", None),
    ],
)
def test_variable_of_a_url(
    variables: dict[str, str], url: str, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert find_proxy_variable(url) == name
    uses_own_transport = url == "" or build_stream_transport(url) is not None
    assert uses_own_transport == (name is None or url == "")


@pytest.mark.parametrize(("name", "value", "words"), WRONG)
def test_wrong_proxy_is_named_without_its_value(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    for work in (
        lambda: check_proxy(ELSEWHERE),
        lambda: build_http_client(1, url=ELSEWHERE),
        http_client,
    ):
        with pytest.raises(InvalidConfiguration) as raised:
            work()
        failure = raised.value
        assert name in failure.detail
        assert words in (failure.cause or "")
        assert f"unset {name}" in (failure.hint or "")
        assert "secret" not in f"{failure.detail}{failure.cause}{failure.hint}"
    check_proxy("http://127.0.0.1:1")


@pytest.mark.usefixtures("closed_proxy")
def test_failed_fetch_of_keys_names_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FetchError, match="through the proxy of HTTPS_PROXY"):
        asyncio.run(fetch_configuration("https://issuer.example.org"))
    monkeypatch.setenv("HTTPS_PROXY", "nonsense://x")
    with pytest.raises(FetchError, match="HTTPS_PROXY cannot be used"):
        asyncio.run(fetch_configuration("https://issuer.example.org"))


@pytest.mark.usefixtures("closed_proxy")
def test_failed_request_to_a_model_names_the_proxy() -> None:
    async def request() -> None:
        async with build_http_client(1, url=ELSEWHERE) as client:
            await client.get(ELSEWHERE)

    with pytest.raises(httpx2.ProxyError, match="the proxy of HTTPS_PROXY"):
        asyncio.run(request())


@pytest.mark.usefixtures("closed_proxy")
def test_lost_mcp_server_names_the_proxy() -> None:
    reasons: list[str] = []

    async def request() -> None:
        async with McpHttpClient({}, 1_000, reasons.append, ELSEWHERE) as client:
            assert (await client.post(ELSEWHERE)).status_code == 503

    asyncio.run(request())
    assert reasons == ["the proxy of HTTPS_PROXY accepts no connection, or cannot reach it"]
