"""Delivery of webhooks: addresses, signatures, attempts, and the task that makes them."""
