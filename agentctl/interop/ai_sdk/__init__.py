"""The face for `useChat` of the AI SDK and for chat components that use it (docs/ai-sdk.md)."""

from agentctl.interop.routes import build_extension

EXTENSION = build_extension("ai_sdk", "AiSdk")
