"""Chats of a page that talk to a server over HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.agui.pages import CONFIG as AGUI_CONFIG
from tests.agui.pages import SCOPES
from tests.ai_sdk.protocol import Chunk, Message, apply, calls_of, is_complete, parse_stream
from tests.kit.threaded_server import ThreadedServer

CONFIG = AGUI_CONFIG.replace("[agui]", "[ai_sdk]")


@dataclass
class Chat:
    """A chat of `useChat`, which keeps its messages as that does."""

    host: ThreadedServer
    component: str
    chat_id: str
    user: str = "ada"
    scopes: tuple[str, ...] = SCOPES
    messages: list[Message] = field(default_factory=list)

    @property
    def newest(self) -> Message:
        return self.messages[-1]

    def call(self, method: str, suffix: str = "", **options: Any) -> httpx2.Response:
        headers = {**self.host.bearer(self.user, *self.scopes), **options.pop("headers", {})}
        path = f"/ai/{self.component}{suffix}"
        return self.host.client.request(method, path, headers=headers, **options)

    def post(self, **fields: Any) -> httpx2.Response:
        body = {"id": self.chat_id, "messages": self.messages, "trigger": "submit-message"}
        headers = fields.pop("headers", {})
        return self.call("POST", json={**body, **fields}, headers=headers)

    def submit(self, **fields: Any) -> list[Chunk]:
        """Send the messages unchanged, and read the answer into the newest one."""
        goes_on = self.newest["role"] == "assistant"
        chunks, message = self.read(self.post(**fields), self.newest if goes_on else None)
        if goes_on:
            self.messages.pop()
        self.messages.append(message)
        # `useChat` would send the message again and again.
        assert not is_complete(self.newest)
        return chunks

    def read(
        self, response: httpx2.Response, before: Message | None = None
    ) -> tuple[list[Chunk], Message]:
        """Return the chunks of a stream, and the message that they make of the one before."""
        assert response.status_code == 200, response.text
        assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
        assert response.headers["content-type"].startswith("text/event-stream")
        chunks = parse_stream(response.text)
        return chunks, apply(chunks, before)

    def resume(self) -> Message:
        return self.read(self.call("GET", f"/{self.chat_id}/stream"))[1]

    def say(self, text: str, **fields: Any) -> list[Chunk]:
        self.messages.append(
            {
                "id": f"m{len(self.messages)}",
                "role": "user",
                "parts": [{"type": "text", "text": text}],
            }
        )
        return self.submit(**fields)

    def decide(self, approved: bool, index: int = -1, **fields: Any) -> None:
        """Answer an approval as `addToolApprovalResponse` does."""
        call = calls_of(self.newest)[index]
        assert call["state"] == "approval-requested"
        call["state"] = "approval-responded"
        call["approval"] = {**call["approval"], "approved": approved, **fields}

    def answer(self, index: int = -1, **fields: Any) -> None:
        """Give the result of a call of the page as `addToolOutput` does."""
        call = calls_of(self.newest)[index]
        state = "output-error" if "errorText" in fields else "output-available"
        call |= {"state": state, **fields}

    def refuse(self, status: int, **fields: Any) -> str:
        response = self.post(**fields)
        assert response.status_code == status, response.text
        return str(response.json()["detail"])
