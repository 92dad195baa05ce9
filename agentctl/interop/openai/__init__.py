"""The face for clients of OpenAI's API (docs/openai.md)."""
