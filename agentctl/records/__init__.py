"""The JSON records of the interface, one module for each noun, and small shared values.

A record is a typed dictionary: the JSON object itself, with nullable fields always present
(docs/contract.md "Records"). Modules are small so that a command imports only what it prints.
"""
