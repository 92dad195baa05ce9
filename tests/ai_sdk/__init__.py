"""The interface for the AI SDK (docs/ai-sdk.md)."""
