"""The requests below `/ai` (docs/ai-sdk.md)."""

from __future__ import annotations

from typing import ClassVar

from starlette.responses import Response

from agentctl.errors import Conflict, NotFound, ValidationFailed
from agentctl.interface.requests import CancelRequest
from agentctl.interface.requests.repeats import RetryRequest
from agentctl.interop.ai_sdk.events import AiStream
from agentctl.interop.ai_sdk.input import AiRequest, read_input
from agentctl.interop.ai_sdk.settings import PREFIX, ROUTES
from agentctl.interop.pages.decisions import ResumedRun
from agentctl.interop.pages.exchange import PageExchange, PageFace, Portions
from agentctl.records.routes import operation_ids
from agentctl.records.runs import RunRow
from agentctl.runs.states import is_final
from agentctl.server.answers import document_response, no_content_response

STOP_REASON = "Stopped in the page"


class AiExchange(PageExchange[AiRequest]):
    """One request of the AI SDK."""

    headers: ClassVar = {"x-vercel-ai-ui-message-stream": "v1"}
    ending = b"data: [DONE]\n\n"

    def read_request(self, body: object) -> AiRequest:
        return read_input(body)

    def build_stream(
        self, given: AiRequest, resumed: ResumedRun | None, after: set[str]
    ) -> AiStream:
        return AiStream(
            given.thread_id,
            message_id=given.message_id,
            after=after,
            shown=given.shown,
            asked=() if resumed is None else resumed.named,
            answered=[result.call_id for result in given.results],
        )

    async def handle(self) -> Response:
        if self.verb == "run":
            return await super().handle()
        run = await self._find_newest(self.path["chat_id"])
        if run is None or is_final(run.status):
            return no_content_response()
        return await (self._resume(run) if self.verb == "resume" else self._stop(run))

    async def start(self, given: AiRequest, key: str | None) -> Portions:
        """Return the events of a new run, which is a retry of the newest one to regenerate it."""
        if not given.regenerates:
            return await super().start(given, key)
        self.operation = operation_ids(self.kind).retry_run
        run = await self._find_newest(given.thread_id)
        if run is None:
            raise NotFound("The chat has no answer that could be regenerated")
        if run.input != (given.message or "")[: len(run.input)]:
            raise Conflict("Only the newest answer of a chat can be regenerated")
        if given.tools:
            raise ValidationFailed("tools cannot be given to an answer that is regenerated")
        request = RetryRequest(dependencies=given.dependencies, idempotency_key=key)
        return self.operations.stream_retry_portions(
            self.kind, self.component_id, run.run_id, request
        )

    async def _find_newest(self, chat_id: str) -> RunRow | None:
        return await self.operations.find_newest_run(self.kind, self.component_id, chat_id)

    async def _resume(self, run: RunRow) -> Response:
        """Return the answer that is being written, from its beginning on.

        A page that closes it leaves the run to the request that started it.
        """
        stream = AiStream(run.session_id, replays=True)
        stream.root_id = run.run_id
        portions = await self.resume(run.run_id, run.session_id)
        return self.send(stream, None, self.translate(stream, portions))

    async def _stop(self, run: RunRow) -> Response:
        """Cancel the run of the chat, and return what became of it once it has stopped."""
        request = CancelRequest(run.session_id, reason=STOP_REASON)
        document = await self.operations.cancel_run(
            self.kind, self.component_id, run.run_id, request
        )
        return document_response(document)


def build_face() -> PageFace:
    return PageFace(PREFIX, ROUTES, AiExchange)
