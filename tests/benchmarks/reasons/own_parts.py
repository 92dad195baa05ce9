"""Small parts of the package and the libraries that they replace: times and lax inputs.

`python -m tests.benchmarks.reasons.own_parts` prints the microseconds of one call of each, as the
least of several rounds, and how many of some broken inputs each accepts. Importing a library takes
the milliseconds of the last table, in a fresh interpreter.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any

import httpx2
import jwt
import orjson
import pydantic
from jwt.algorithms import HMACAlgorithm
from mcp.shared.auth import OAuthMetadata
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from standardwebhooks import Webhook
from starlette.responses import Response
from werkzeug.http import parse_etags

from agentctl import light_dataclass
from agentctl.auth.keys.remote import fetch_key_set, is_allowed_url
from agentctl.auth.keys.shared_secret import check_secret
from agentctl.auth.keys.signing import SigningKey, build_jws
from agentctl.auth.tokens.algorithms import ALGORITHMS
from agentctl.auth.tokens.jwk import public_jwk
from agentctl.auth.tokens.jws import KeySet
from agentctl.records.logs import parse_traceparent
from agentctl.records.strict import parse_json
from agentctl.records.times import parse_rfc3339
from agentctl.records.value_types import compile_type
from agentctl.remote.events import EventParser
from agentctl.server.answers import BytesResponse, KnownTags
from agentctl.webhooks.signing import Signer
from tests.auth.forge import SECRET, ec_pair, ed_pair, rsa_pair
from tests.auth.key_server import serve_keys

ROUNDS = 7
CALLS = 300
TIME = "2026-11-20T08:18:10.000123Z"
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
TEXT = json.dumps(
    [{"id": "s1", "tags": ["a", "b"], "tokens": 12, "cost": 0.5, "text": "x" * 40}] * 20
)
EVENTS = b"".join(b"event: RunContent\ndata: {}\nid: %d\n\n" % number for number in range(50))
BODY = b"x" * 9_000
GRANTS: Any = list[dict[str, str | None]]
VALUE = [{"scope": "agents:read", "effect": None}] * 10
JWK = {"keys": [public_jwk(ec_pair().public)]}
ADAPTER = pydantic.TypeAdapter(GRANTS)
TIMES = pydantic.TypeAdapter(pydantic.AwareDatetime)
TYPE = compile_type(GRANTS)
PROPAGATOR = TraceContextTextMapPropagator()
HOOK = Webhook("whsec_" + "A" * 44)
SIGNER = Signer([HOOK._whsecret])
MOMENT = datetime.now().astimezone()
KEY = SigningKey(ALGORITHMS["HS256"], SECRET)


def create_class(decorator: Any) -> object:
    """Create a frozen class of six fields."""
    return decorator(frozen=True, slots=True)(
        type("C", (), {"__annotations__": dict.fromkeys("abcdef", int), "__doc__": "A class."})
    )


def read_events() -> list[Any]:
    headers = {"content-type": "text/event-stream"}
    request = httpx2.Request("GET", "http://here/")
    response = httpx2.Response(200, headers=headers, content=iter([EVENTS]), request=request)
    return list(httpx2.EventSource(response))


Call = Callable[[], object]
CALL_PAIRS: dict[str, tuple[str, Call, str, Call]] = {
    "JSON of 2 KB": ("strict", lambda: parse_json(TEXT), "json", lambda: json.loads(TEXT)),
    "JSON of 2 KB, by orjson": (
        "strict",
        lambda: parse_json(TEXT),
        "orjson",
        lambda: orjson.loads(TEXT),
    ),
    "types of ten records": (
        "value_types",
        lambda: TYPE.check(VALUE),
        "pydantic",
        lambda: ADAPTER.validate_python(VALUE, strict=True),
    ),
    "a time": (
        "times",
        lambda: parse_rfc3339(TIME),
        "pydantic",
        lambda: TIMES.validate_strings(TIME),
    ),
    "a trace context": (
        "trace_context",
        lambda: parse_traceparent(TRACE),
        "opentelemetry",
        lambda: get_current_span(PROPAGATOR.extract({"traceparent": TRACE})),
    ),
    "50 events": ("remote.events", lambda: EventParser().feed(EVENTS), "httpx2", read_events),
    "entity tags": (
        "answers",
        lambda: "a" in KnownTags([(b"if-none-match", b'"b", "a"')]),
        "werkzeug",
        lambda: parse_etags('"b", "a"').contains_weak("a"),
    ),
    "a response": (
        "answers",
        lambda: BytesResponse(BODY, 200, "application/json"),
        "starlette",
        lambda: Response(BODY, 200, media_type="application/json"),
    ),
    "a signature of a webhook": (
        "signing",
        lambda: SIGNER.build_headers("e", 1_800_000_000, b"{}"),
        "standardwebhooks",
        lambda: HOOK.sign("e", MOMENT, "{}"),
    ),
    "a minted token, HS256": (
        "signing",
        lambda: build_jws(b"{}", KEY, "JWT", "k"),
        "PyJWT",
        lambda: jwt.encode({}, SECRET, "HS256", {"kid": "k"}),
    ),
    "a key set of one key": (
        "jwk",
        lambda: KeySet.from_jwks(JWK),
        "PyJWT",
        lambda: jwt.PyJWKSet.from_dict(JWK),
    ),
    "a frozen class": (
        "light_dataclass",
        lambda: create_class(light_dataclass.dataclass),
        "dataclasses",
        lambda: create_class(dataclasses.dataclass),
    ),
}


def accepts(call: Callable[[Any], object], values: Iterable[Any]) -> int:
    """Return how many of the values a call accepts."""
    count = 0
    for value in values:
        try:
            call(value)
        except Exception:
            continue
        count += 1
    return count


def lax_inputs() -> Iterable[tuple[str, str, int, str, int, int]]:
    """Yield inputs, and how many of them the part and the library accept, of how many."""
    documents = ['{"a":1,"a":2}', '{"a":1,"\\u0061":2}', "NaN", "[-Infinity]", "1e999"]
    for name, load in (("json", json.loads), ("orjson", orjson.loads)):
        yield (
            "JSON with two members of a name, NaN, 1e999",
            "strict",
            accepts(parse_json, documents),
            name,
            accepts(load, documents),
            len(documents),
        )
    keys = [public_jwk(pair.public) for pair in (rsa_pair(bits=1024), rsa_pair(1))]
    right = keys.pop()
    keys += [
        {**right, "n": right["n"] + "="},
        {**right, "e": "AAEAAQ"},
        {**right, "e": "Aw"},
        {**right, "use": "enc"},
        {**right, "key_ops": ["sign"]},
        {
            **public_jwk(ed_pair().public),
            "d": base64.urlsafe_b64encode(ed_pair().private.private_bytes_raw())
            .decode()
            .rstrip("="),
        },
    ]
    yield (
        "a JWK: weak, padded, for another use, or private",
        "jwk",
        accepts(lambda entry: KeySet.from_jwks({"keys": [entry]}), keys),
        "PyJWT",
        accepts(jwt.PyJWK, keys),
        len(keys),
    )
    der = rsa_pair(1).pem.encode()
    secrets = [
        der,
        base64.b64encode(der),
        der.hex().encode(),
        b"\n" + der.replace(b"\n", b" "),
        base64.b64decode(b"".join(der.splitlines()[1:-1])),
        b"a" * 64,
        b"ab" * 40,
        base64.b64encode(base64.b64decode(b"".join(der.splitlines()[1:-1]))),
    ]
    library = HMACAlgorithm(HMACAlgorithm.SHA256)
    yield (
        "a shared secret: a public key in some encoding, or easy to guess",
        "shared_secret",
        accepts(lambda value: check_secret(value, ALGORITHMS["HS256"], ""), secrets),
        "PyJWT",
        accepts(library.prepare_key, secrets),
        len(secrets),
    )

    with serve_keys() as server:
        client = jwt.PyJWKClient(server.jwks_url, cache_jwk_set=False)
        bodies = [b'{"keys":[]}' + b" " * 32_000_000, b'{"keys":[],"keys":[]}']

        def fetch(get: Callable[[], object], body: bytes) -> None:
            server.body = body
            get()

        yield (
            "a key set of 32 MB, or with a member that occurs twice",
            "fetch",
            accepts(partial(fetch, lambda: asyncio.run(fetch_key_set(server.jwks_url))), bodies),
            "PyJWT",
            accepts(partial(fetch, client.fetch_data), bodies),
            len(bodies),
        )
    urls = ["http://id.example/token", "https://u:p@id.example/token", "https://127.0.0.1/token"]
    issuer = "https://id.example"
    yield (
        "an endpoint over HTTP, with a password, or on this machine",
        "oidc",
        sum(is_allowed_url(url, issuer) for url in urls),
        "mcp",
        accepts(
            lambda url: OAuthMetadata(
                issuer=issuer, authorization_endpoint=url, token_endpoint=url
            ),
            urls,
        ),
        len(urls),
    )


def measure(call: Call) -> float:
    """Return the CPU microseconds of a call, in the best of the rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(CALLS):
            call()
        best = min(best, time.process_time() - began)
    return best / CALLS * 1e6


def measure_import(module: str) -> float:
    """Return the CPU milliseconds to import a module, in a fresh interpreter."""
    code = f"import time; t = time.process_time(); import {module}; print(time.process_time() - t)"
    runs = [subprocess.check_output([sys.executable, "-c", code]) for _ in range(3)]
    return min(map(float, runs)) * 1_000


def main() -> None:
    """Print the three tables."""
    print("| call | own | us | library | us |\n| --- | --- | ---: | --- | ---: |")
    for name, (own, ours, library, theirs) in CALL_PAIRS.items():
        print(f"| {name} | {own} | {measure(ours):.1f} | {library} | {measure(theirs):.1f} |")
    print("\n| broken input | own | accepted | library | accepted | of |\n|" + " --- |" * 6)
    for row in lax_inputs():
        print("|", " | ".join(map(str, row)), "|")
    print("\n| import | ms |\n| --- | ---: |")
    for module in (
        "jwt",
        "pydantic",
        "opentelemetry.trace",
        "cryptography.hazmat.primitives.hashes",
    ):
        print(f"| {module} | {measure_import(module):.0f} |")


if __name__ == "__main__":
    main()
