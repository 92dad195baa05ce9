"""The requests below `/agui` (docs/agui.md)."""

from __future__ import annotations

from dataclasses import replace

from starlette.responses import Response

from agentctl.errors import AgentctlError
from agentctl.interop.agui.events import AguiStream
from agentctl.interop.agui.input import AguiRequest, read_input
from agentctl.interop.agui.settings import PREFIX, ROUTES
from agentctl.interop.pages.decisions import ResumedRun
from agentctl.interop.pages.exchange import PageExchange, PageFace, Portions

EVENTS = "text/event-stream"
"""The media type of event streams."""


class AguiExchange(PageExchange[AguiRequest]):
    """One request of AG-UI."""

    _is_read = False

    def read_request(self, body: object) -> AguiRequest:
        given = read_input(body)
        self._is_read = True
        return given

    async def respond(self) -> Response:
        """Respond as `PageExchange`; with `RUN_ERROR` for a refused run if only events are taken.

        Clients of AG-UI accept nothing else, and show the error of an event to their user.
        """
        try:
            return await super().respond()
        except AgentctlError as error:
            if not self._is_read or self.call.headers.getlist("Accept") != [EVENTS]:
                raise
            refusal = {"type": "RUN_ERROR", "message": error.detail, "code": error.error_code}
            headers = {**error.headers(), "Cache-Control": "no-store"}
            return Response(self._encode([refusal]), 200, headers, EVENTS)

    async def start(self, given: AguiRequest, key: str | None) -> Portions:
        """Start a run, and show the state of the page to a model without code, which reads it."""
        settings = self.call.caller.app_state.settings
        models = [("agent", agent.id) for agent in settings.agents if not agent.object]
        models += [("team", team.id) for team in settings.teams]
        if (self.kind, self.component_id) in models:
            given = replace(given, context=[*given.context, *given.describe_state()])
        return await super().start(given, key)

    def build_stream(
        self, given: AguiRequest, resumed: ResumedRun | None, after: set[str]
    ) -> AguiStream:
        return AguiStream(given.thread_id, given.run_id, attributes=given.has_version, after=after)


def build_face() -> PageFace:
    return PageFace(PREFIX, ROUTES, AguiExchange)
