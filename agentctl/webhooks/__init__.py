"""Webhooks: the facts that runs store, and their delivery: addresses, signatures, attempts.

The operations on webhooks are in `service`, their settings in `config`.
"""
