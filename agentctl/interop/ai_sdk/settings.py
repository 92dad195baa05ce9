"""The table `[ai_sdk]`, and the routes of the face, which are those that `useChat` calls."""

from __future__ import annotations

from dataclasses import dataclass

from agentctl.interop.routes import list_routes

PREFIX = "/ai"

ROUTES = list_routes(
    "ai",
    PREFIX,
    {
        "run": ("POST", "", "create_run"),
        "resume": ("GET", "/{chat_id}/stream", "resume_run"),
        "stop": ("POST", "/{chat_id}/stop", "cancel_run"),
    },
)


@dataclass(frozen=True, slots=True)
class AiSdk:
    """The table `[ai_sdk]`: agents, teams and workflows for the AI SDK (docs/ai-sdk.md)."""

    enabled: bool = False
