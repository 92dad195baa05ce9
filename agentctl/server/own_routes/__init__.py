"""Routes of a user next to those of agentctl, in one FastAPI application (docs/own-routes.md)."""
