"""Times, trace contexts, server-sent events, entity tags and signatures, against libraries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import httpx2
import pydantic
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from standardwebhooks import Webhook, WebhookVerificationError
from werkzeug.http import parse_etags

from agentctl.records.logs import parse_traceparent
from agentctl.records.times import format_rfc3339, parse_rfc3339
from agentctl.remote.events import EventParser
from agentctl.server.answers import KnownTags
from agentctl.webhooks.signing import Signer, generate_secret
from tests.differential.comparison import Comparison, Outcome, attempt


def changed(chance: Random, text: str, put: str) -> str:
    """Return a text with up to two characters replaced, added or removed."""
    for _ in range(chance.choice([0, 0, 1, 1, 2])):
        place = chance.randrange(len(text) + 1)
        text = text[:place] + chance.choice(["", *put]) + text[place + chance.choice([0, 1, 1]) :]
    return text


def test_every_accepted_time_is_that_of_pydantic() -> None:
    adapter = pydantic.TypeAdapter(pydantic.AwareDatetime)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    rules = {"not an RFC 3339 date-time": "RFC 3339 5.6: the form of a date-time"}
    with Comparison("times", stricter=rules) as comparison:
        chance = comparison.chance
        for _ in comparison.rounds(10_000):
            moment = chance.randrange(-(10**16), 10**17)
            text = format_rfc3339(moment)
            assert parse_rfc3339(text) == moment
            if chance.random() < 0.5:
                zone = f"{chance.choice('+-')}{chance.randrange(26):02}:{chance.randrange(62):02}"
                text = text.rstrip("Z")[: chance.choice([19, 21, 26])] + chance.choice(["z", zone])
            text = changed(chance, text, "0159:-.+ Zzt٣")

            def library(text: str = text) -> int:
                return (adapter.validate_strings(text) - epoch) // timedelta(microseconds=1)

            own = attempt(lambda text=text: parse_rfc3339(text), ValueError)  # type: ignore[misc]
            comparison.compare(text, own, attempt(library, ValueError, OverflowError))
        assert comparison.accepted > 3_000


def test_every_accepted_trace_context_is_that_of_opentelemetry() -> None:
    propagator = TraceContextTextMapPropagator()
    with Comparison("trace contexts") as comparison:
        chance = comparison.chance
        for _ in comparison.rounds(10_000):
            first = chance.randbytes(16).hex()
            second = chance.randbytes(8).hex()
            version = chance.choice(["00", "01", "cc", "ff"])
            flags = chance.randbytes(1).hex()
            text = f"{version}-{first}-{second}-{flags}" + chance.choice(["", "", "-x", "-"])
            text = changed(chance, text, "0fFg- \t")
            if chance.random() < 0.1:
                text = text.replace(chance.choice([first, second]), "0" * chance.choice([16, 32]))
            found = parse_traceparent(text)
            span = get_current_span(propagator.extract({"traceparent": text}))
            place = span.get_span_context()
            other = (f"{place.trace_id:032x}", f"{place.span_id:016x}", place.trace_flags.sampled)
            comparison.compare(
                text,
                Outcome(refusal="refused") if found is None else Outcome(tuple(found)),
                Outcome(other) if place.is_valid else Outcome(refusal="refused"),
            )
        assert comparison.accepted > 2_000


def random_events(chance: Random) -> bytes:
    """Return lines of a stream with any line ends, names, values and bytes."""
    names = [b"data", b"data", b"data", b"event", b"id", b"retry", b"", b"dat", b"datax"]
    lines = []
    for _ in range(chance.randrange(1, 14)):
        value = chance.choice([b"", b"a", b" b", b"  c", b"1", b"\xc3\xa9", b"\xff", b"x:y", b"\0"])
        line = chance.choice(names) + chance.choice([b":", b": ", b""]) + value
        lines.append(chance.choice([line, line, b""]))
    return b"".join(line + chance.choice([b"\n", b"\n", b"\r\n", b"\r"]) for line in lines)


def test_events_of_streams_are_those_of_httpx2() -> None:
    """Chunks are cut at any byte. An event without data is dropped (WHATWG HTML 9.2.6).

    No stream ends with a CR alone: httpx2 then dispatches the unfinished event.
    """
    with Comparison("server-sent events") as comparison:
        chance = comparison.chance
        for _ in comparison.rounds(4_000):
            data = random_events(chance) + b": end\n"
            cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(6)))
            places = zip([0, *cuts], [*cuts, len(data)], strict=True)
            chunks = [data[start:end] for start, end in places]
            parser = EventParser()
            own = [
                (event.name, event.data.decode("utf-8", "replace"), event.id or "")
                for chunk in chunks
                for event in parser.feed(chunk)
            ]
            response = httpx2.Response(
                200,
                headers={"content-type": "text/event-stream; charset=utf-8"},
                content=iter(chunks),
                request=httpx2.Request("GET", "http://here/"),
            )
            library = [
                (event.event, event.data, event.id) for event in httpx2.EventSource(response)
            ]
            kept: list[Any] = [[event for event in side if event[1]] for side in (own, library)]
            comparison.compare(chunks, Outcome(kept[0]), Outcome(kept[1]))


def test_entity_tags_are_those_of_werkzeug() -> None:
    """Werkzeug accepts a tag without quotation marks, which RFC 9110 8.8.3 does not have."""
    rules = {"refused": "RFC 9110 8.8.3: an entity tag has quotation marks"}
    with Comparison("entity tags", stricter=rules) as comparison:
        chance = comparison.chance
        for _ in comparison.rounds(10_000):
            kinds = ['"a"', 'W/"b"', '"a,b"', '"c"', "a", ' "é"', '"b" ', 'W/"a"']
            tags = [chance.choice(kinds) for _ in range(chance.randrange(4))]
            text = chance.choice([",", ", ", " , "]).join(tags) if chance.random() < 0.9 else "*"
            for tag in ("a", "b", "a,b", "d"):
                known = KnownTags([(b"if-none-match", text.encode("latin-1"))])
                library = parse_etags(text)
                comparison.compare(
                    (text, tag),
                    Outcome(True) if tag in known else Outcome(refusal="refused"),
                    Outcome(True) if library.contains_weak(tag) else Outcome(refusal="refused"),
                )


def test_signatures_of_webhooks_are_those_of_standardwebhooks() -> None:
    now = datetime.now(tz=UTC)
    with Comparison("signatures of webhooks") as comparison:
        chance = comparison.chance
        for _ in comparison.rounds(1_000):
            secret = generate_secret()
            library = Webhook(secret)
            event = f"evt_{chance.randrange(10**9)}"
            body = chance.randbytes(20).hex()
            signer = Signer([library._whsecret, b"another secret"])
            headers = signer.build_headers(event, int(now.timestamp()), body.encode())
            first, _ = headers["webhook-signature"].split()
            comparison.compare(event, Outcome(first), Outcome(library.sign(event, now, body)))
            name = chance.choice(list(headers))
            headers[name] = changed(chance, headers[name], "019aA=, v")
            is_same = headers == signer.build_headers(event, int(now.timestamp()), body.encode())
            verified = attempt(
                lambda: library.verify(body, headers, json_parse=False) is not None,  # noqa: B023
                WebhookVerificationError,
                ValueError,
            )
            assert not is_same or verified.refusal is None
