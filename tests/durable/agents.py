"""The durable agents of the tests."""

from __future__ import annotations

DURABLE = """
[[agents]]
id = "lasting"
durable = true
model = "plan"
tools = ["ledger_tools:refund", "ledger_tools:note", "ledger_tools:linger", "ledger_tools:visit"]
"""
