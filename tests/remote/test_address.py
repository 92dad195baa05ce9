"""URLs of servers: parsing, origins, and where a token may be sent."""

from __future__ import annotations

import pytest

from agentctl import errors
from agentctl.remote import RemoteOperations
from agentctl.remote.address import parse_address


@pytest.mark.parametrize(
    ("url", "origin", "prefix"),
    [
        ("http://127.0.0.1:7777", "http://127.0.0.1:7777", ""),
        ("http://127.0.0.1:7777/", "http://127.0.0.1:7777", ""),
        ("HTTP://LocalHost:80/a/b//", "http://localhost", "/a/b"),
        ("https://example.com:443/os%20x", "https://example.com", "/os%20x"),
        ("https://[::1]:8443", "https://[::1]:8443", ""),
    ],
)
def test_valid_urls_are_parsed(url: str, origin: str, prefix: str) -> None:
    address = parse_address(url)
    assert (address.origin, address.prefix) == (origin, prefix)


@pytest.mark.parametrize(
    "url",
    [
        "",
        " ",
        "localhost:7777",
        "127.0.0.1",
        "ftp://host",
        "http://",
        "http://:80",
        "http://host:0",
        "http://host:65536",
        "http://host:x",
        "http://[::1",
        "http://[nonsense]",
        "http://user@host",
        "http://user:secret@host",
        "http://host?a=b",
        "http://host#a",
        "http://host?",
        "http://host/a b",
        "http://host/%zz",
        "http://host/../up",
        "http://ho st",
        "http://host\r\nX: y",
        "http://host/\x00",
        "http://a..b",
        "http://host\\evil",
        "\udcff",
        "http://\udcff",
        "http://grüße.example",
    ],
)
def test_invalid_urls_are_rejected(url: str) -> None:
    with pytest.raises(errors.UsageError) as caught:
        RemoteOperations(url, None)
    assert "secret" not in f"{caught.value} {caught.value.cause} {caught.value.hint}"


@pytest.mark.parametrize(
    "url", ["http://localhost", "http://a.localhost", "http://127.3.2.1", "http://[::1]"]
)
def test_token_is_sent_over_http_to_this_machine(url: str) -> None:
    RemoteOperations(url, "a.b.c")


@pytest.mark.parametrize(
    "url",
    ["http://example.com", "http://10.0.0.1", "http://localhost.evil.example", "http://127.1"],
)
def test_token_over_http_to_others_needs_the_flag(url: str) -> None:
    with pytest.raises(errors.UsageError, match="plain http") as caught:
        RemoteOperations(url, "a.b.c")
    assert "--insecure-http" in (caught.value.hint or "")
    RemoteOperations(url, None)
    RemoteOperations(url, "a.b.c", allow_insecure=True)
    RemoteOperations(url.replace("http", "https"), "a.b.c")


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "a\r\nX: y", "grüße", "a\0", "\udcff"])
def test_token_with_invalid_characters_is_rejected(token: str) -> None:
    with pytest.raises(errors.UsageError) as caught:
        RemoteOperations("http://localhost", token)
    assert not token or token not in str(caught.value)


def test_repr_hides_the_token() -> None:
    operations = RemoteOperations("http://localhost:1/x", "s3cret")
    assert repr(operations) == "RemoteOperations('http://localhost:1/x')"
    assert "s3cret" not in repr(operations.connection)
