"""Random requests over every route of a server process: `python -m tests.server.fuzz`.

Requests are built from the routes of the interface with hostile values in paths, queries, header
fields and bodies, are sent over several connections, and are repeatable by their
seed. The program ends with exit code 1 if a response has status 500 or above, has no error body of
the contract, or does not arrive.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from urllib.parse import quote

from agentctl.interface.operations import ROUTES
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.model import start_endpoint
from tests.kit.process import serve_config

TEXTS = [
    "", "s1", "mine", "echo", "..", ".", "%00", "%2e%2e", "a" * 200, "é", "%ff", "'", '"', "0",
    "-1", "1e9", "99999999999999999999", "null", "true", "[]", "{}", "*", "s1;--", "\u202e", "\\",
    "agents:*:run", "2026-01-01T00:00:00Z", "desc", "COMPLETED", "agent", "main", "second",
]  # fmt: skip
NAMES = [
    "limit", "page", "cursor", "sort_by", "sort_order", "type", "user_id", "session_id", "db_id",
    "table", "status", "live", "created_after", "wait", "reason", "after", "since", "x",
]  # fmt: skip
KEYS = [
    "message", "stream", "background", "session_id", "user_id", "session_ids", "session_name",
    "session_state", "metadata", "name", "scopes", "files", "x",
]  # fmt: skip
FIELDS = ["Idempotency-Key", "Last-Event-ID", "Accept", "Origin", "X-Forwarded-For", "Cookie"]
TYPES = ["application/json", "application/x-www-form-urlencoded", "text/plain", ""]
BATCH = 16


def build_value(chance: random.Random, depth: int = 0) -> object:
    kind = chance.randrange(8)
    if kind < 4 or depth > 3:
        return chance.choice([*TEXTS, 0, -1, 2**63, 1.5, None, True, False])
    if kind < 6:
        return [build_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(KEYS): build_value(chance, depth + 1) for _ in range(chance.randrange(4))}


def build_body(chance: random.Random, content_type: str) -> bytes:
    if chance.random() < 0.1:
        return chance.randbytes(chance.randrange(200))
    pairs = {chance.choice(KEYS): build_value(chance) for _ in range(chance.randrange(5))}
    if content_type.endswith("urlencoded"):
        return "&".join(f"{name}={quote(str(value))}" for name, value in pairs.items()).encode()
    return json.dumps({**pairs, "stream": False}).encode()


def build_request(chance: random.Random, tokens: list[str]) -> bytes:
    method, template = ROUTES[chance.choice(list(ROUTES))]
    path = "/".join(
        quote(chance.choice(TEXTS), safe="%") if part.startswith("{") else part
        for part in template.split("/")
    )
    if chance.random() < 0.5:
        names = [chance.choice(NAMES) for _ in range(chance.randrange(1, 4))]
        path += "?" + "&".join(f"{name}={quote(chance.choice(TEXTS), safe='%')}" for name in names)
    if chance.random() < 0.05:
        method = chance.choice(["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    if token := chance.choice(tokens):
        lines.append(f"Authorization: Bearer {token}")
    if chance.random() < 0.2:
        value = chance.choice(TEXTS).encode("ascii", "ignore").decode()
        lines.append(f"{chance.choice(FIELDS)}: {value}")
    body = b""
    if method in ("POST", "PATCH", "PUT") or chance.random() < 0.02:
        content_type = chance.choice(TYPES)
        body = build_body(chance, content_type)
        lines += [f"Content-Type: {content_type}"] if content_type else []
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class Findings:
    """Counts of the responses by status, and the requests with a wrong response."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.wrong: list[tuple[bytes, bytes]] = []

    def add(self, request: bytes, status: int, body: bytes) -> None:
        self.statuses[status] += 1
        bodiless = request.startswith(b"HEAD ")
        is_error = status >= 400 and not bodiless
        if status >= 500 or (is_error and not {"detail", "error_code"} <= set(json.loads(body))):
            self.wrong.append((request, body[:300]))


async def read_response(reader: asyncio.StreamReader, request: bytes) -> tuple[int, bytes, bool]:
    """Return status, body, and True if the connection stays open."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head.split(b" ", 2)[1])
    open_after = b"connection: close" not in head
    if request.startswith(b"HEAD ") or status == 204:
        return status, b"", open_after
    if b"transfer-encoding: chunked" in head:
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
        return status, body, open_after
    length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
    return status, await reader.readexactly(length), open_after


async def send_requests(
    port: int, seed: int, tokens: list[str], until: float, findings: Findings
) -> None:
    chance = random.Random(seed)
    while time.monotonic() < until:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        is_open = True
        while is_open and time.monotonic() < until:
            request = build_request(chance, tokens)
            writer.write(request)
            try:
                found = await asyncio.wait_for(read_response(reader, request), PATIENCE)
            except (TimeoutError, ConnectionError, asyncio.IncompleteReadError) as error:
                findings.wrong.append((request, repr(error).encode()))
                break
            findings.add(request, *found[:2])
            is_open = found[2]
        writer.close()


async def fuzz(deployment: Deployment, port: int, seconds: float, seed: int) -> Findings:
    tokens = ["", "x.y.z", deployment.token("me"), deployment.token("me", "sessions:read")]
    tokens += [deployment.token(name, ADMIN, seconds=86_400) for name in ("me", "you")] * 2
    findings = Findings()
    until = time.monotonic() + seconds
    await asyncio.gather(
        *(send_requests(port, seed + one, tokens, until, findings) for one in range(BATCH))
    )
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    given = parser.parse_args()
    endpoint = start_endpoint()
    try:
        with tempfile.TemporaryDirectory() as folder:
            deployment = create_deployment(Path(folder), endpoint.base_url)
            with serve_config(deployment.path) as server:
                port = server.port
                findings = asyncio.run(fuzz(deployment, port, given.seconds, given.seed))
                log = server.log_text
    finally:
        endpoint.stop()
    total = findings.statuses.total()
    print(f"seed {given.seed}: {total} responses, {len(findings.wrong)} wrong")
    print(dict(sorted(findings.statuses.items())))
    for request, body in findings.wrong[:10]:
        print(request[:500], body)
    if "Traceback" in log:
        print("the log has a traceback")
    return int(bool(findings.wrong) or "Traceback" in log)


if __name__ == "__main__":
    sys.exit(main())
