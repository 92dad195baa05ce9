"""Request bodies as types, for the checks of their fields and for the OpenAPI document.

The bounds in the fields are the constants that `agentctl.service` enforces.
"""
