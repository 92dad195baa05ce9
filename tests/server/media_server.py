"""A server of the library of MCP whose tools return pictures, sound and documents.

python tests/server/media_server.py PICTURE PAPER [LEDGER]

LEDGER is a file that gets a line for each call of `draw`.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp.types import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    TextContent,
)

PICTURE, PAPER = (base64.b64decode(each) for each in sys.argv[1:3])

server = MCPServer("media")


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def embed(uri: str, data: bytes) -> EmbeddedResource:
    blob = BlobResourceContents(uri=uri, mime_type="application/pdf", blob=encode(data))
    return EmbeddedResource(type="resource", resource=blob)


@server.tool(structured_output=False)
def draw() -> list[TextContent | ImageContent | EmbeddedResource]:
    for ledger in sys.argv[3:]:
        with Path(ledger).open("a") as lines:
            lines.write("draw\n")
    return [
        TextContent(type="text", text="drawn"),
        ImageContent(type="image", data=encode(PICTURE), mime_type="image/png"),
        embed("file:///etc/../passwd/..%2Fpaper.pdf", PAPER),
    ]


@server.tool(structured_output=False)
def deceive() -> list[ImageContent | AudioContent | EmbeddedResource]:
    return [
        ImageContent(
            type="image", data=encode(b"<svg onload=alert(1)></svg>"), mime_type="image/png"
        ),
        AudioContent(type="audio", data="!", mime_type="audio/wav"),
        embed("file:///..", b"PK\x03\x04" + bytes(40)),
        *[ImageContent(type="image", data=encode(PICTURE), mime_type="image/png")] * 17,
    ]


server.run()
