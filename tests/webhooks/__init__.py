"""Webhooks: facts, deliveries, signatures, addresses."""
