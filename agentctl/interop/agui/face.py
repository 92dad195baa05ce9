"""The requests below `/agui` (docs/agui.md)."""

from __future__ import annotations

from agentctl.interop.agui.events import AguiStream
from agentctl.interop.agui.input import AguiRequest, read_input
from agentctl.interop.agui.settings import PREFIX, ROUTES
from agentctl.interop.pages.decisions import ResumedRun
from agentctl.interop.pages.exchange import PageExchange, PageFace


class AguiExchange(PageExchange[AguiRequest]):
    """One request of AG-UI."""

    def read_request(self, body: object) -> AguiRequest:
        return read_input(body)

    def build_stream(
        self, given: AguiRequest, resumed: ResumedRun | None, after: set[str]
    ) -> AguiStream:
        return AguiStream(given.thread_id, given.run_id, attributes=given.has_version, after=after)


def build_face() -> PageFace:
    return PageFace(PREFIX, ROUTES, AguiExchange)
