"""Delivery of webhooks: addresses (SSRF), signatures, attempts, and the task that makes them."""
