"""Durations of token verification, as ratios to bare PyJWT with the same token and key.

`python -m bench.verification`. Batches take turns, so that a slow or busy machine
affects all of them; medians are compared. A slow result is no failure: the figures are to be read.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import jwt

from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Authorization, Settings
from agentctl.errors import InvalidToken
from bench.measure import Row, at_most, build_ratio_row, run_rounds
from tests.kit.forged_tokens import ec_pair, ed, ed_pair, es, rs, rsa_pair, token

ROUNDS = 61
"""Rounds of `python -m`; the table of all benchmarks has fewer."""

ROWS = 21

BATCH = 50

Call = Callable[[], object]


def build_claims() -> dict[str, Any]:
    """Build the claims of a typical access token of an identity provider."""
    now = int(time.time())
    return {
        "iss": "https://issuer.example/",
        "sub": "user-4711",
        "aud": "agentctl",
        "iat": now,
        "exp": now + 3_600,
        "jti": "0123456789abcdef0123456789abcdef",
        "scopes": ["agents:read", "agents:run", "teams:read", "sessions:read", "sessions:write"],
    }


def build_verifier(algorithm: Any, pem: str) -> Verifier:
    """Build a verifier that checks issuer and audience, as the call of PyJWT below does."""
    given = Authorization(
        algorithm=algorithm,
        verification_keys=(pem,),
        verify_audience=True,
        issuer="https://issuer.example/",
    )
    return Verifier(Settings(authorization=given))


def call_pyjwt(text: str, key: Any, algorithm: str) -> Call:
    """Return a call of PyJWT as in its documentation, with a parsed key."""

    def decode() -> object:
        return jwt.decode(
            text, key, [algorithm], audience="agentctl", issuer="https://issuer.example/"
        )

    return decode


def call_fresh_verifiers(text: str, algorithm: str, pem: str, count: int) -> Call:
    """Return a call of a new verifier each time, which has not seen the token."""
    fresh = iter([build_verifier(algorithm, pem) for _ in range(count)])
    header = f"Bearer {text}"
    return lambda: next(fresh).identify_jwt(header)


def call_with_invalid_token(one: Verifier, header: str) -> Call:
    """Return a call with an invalid header."""

    def ask() -> None:
        with suppress(InvalidToken):
            one.identify_jwt(header)

    return ask


def measure_microseconds(act: Call, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the microseconds of one call, from a batch without garbage collection."""
    gc.collect()
    gc.disable()
    try:
        started = clock()
        for _ in range(BATCH):
            act()
        return (clock() - started) / BATCH * 1e6
    finally:
        gc.enable()


def measure_calls(acts: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Measure all calls in turns, in microseconds; the first batch of each is not counted."""
    found = run_rounds(
        {name: partial(measure_microseconds, act) for name, act in acts.items()}, rounds
    )
    return {name: times[1:] for name, times in found.items()}


def build_cases(rounds: int = ROUNDS) -> Iterator[tuple[str, dict[str, Call]]]:
    """Yield the calls by algorithm, bare PyJWT first."""
    signers = {
        "RS256": (rsa_pair(), rs(rsa_pair())),
        "ES256": (ec_pair(), es(ec_pair())),
        "EdDSA": (ed_pair(), ed(ed_pair())),
    }
    for algorithm, (pair, sign) in signers.items():
        text = token({"alg": algorithm, "typ": "JWT", "kid": "a"}, build_claims(), sign)
        known = build_verifier(algorithm, pair.pem)
        known.identify_jwt(f"Bearer {text}")
        yield (
            algorithm,
            {
                "bare PyJWT": call_pyjwt(text, pair.public, algorithm),
                "first time": call_fresh_verifiers(text, algorithm, pair.pem, rounds * BATCH),
                "again": lambda known=known, header=f"Bearer {text}": known.identify_jwt(header),
                "1 MB of junk": call_with_invalid_token(known, "Bearer " + "a" * 1_000_000),
                "8 KB of junk": call_with_invalid_token(
                    known, "Bearer " + "a" * 4_000 + "." + "b" * 4_000 + ".c"
                ),
            },
        )


def compare_with_pyjwt() -> Iterator[Row]:
    """Compare the verification of an RS256 token, for the first time and again, with PyJWT."""
    _, acts = next(build_cases(ROWS))
    found = measure_calls(acts, ROWS)
    for name, goal in (("first time", 1.3), ("again", 0.1)):
        work = f"verification of a token, {name}"
        floor = "bare PyJWT"
        yield build_ratio_row(work, found[name], floor, found[floor], " µs", at_most(goal))


def build_measurements(name: str) -> dict[str, Callable[[], float]]:
    """Build measurements of a verification with RS256 and of PyJWT, in CPU microseconds."""
    _, acts = next(build_cases(ROWS))
    floor = "bare PyJWT"
    return {
        side: partial(measure_microseconds, act, time.thread_time)
        for side, act in (("ours", acts[name]), (floor, acts[floor]))
    }


def measure_lines() -> Iterator[str]:
    """Run all cases; yield the lines of the table."""
    yield f"{'algorithm':<10}{'what':<16}{'us':>8}{'ratio':>8}"
    for algorithm, acts in build_cases():
        found = measure_calls(acts, ROUNDS)
        bare_took = statistics.median(found["bare PyJWT"])
        for name, took in ((name, statistics.median(each)) for name, each in found.items()):
            yield f"{algorithm:<10}{name:<16}{took:>8.1f}{took / bare_took:>8.3f}"


if __name__ == "__main__":
    for line in measure_lines():
        print(line, flush=True)
