"""The wire records: what crosses the port, the HTTP door and `-o json`, one module a noun.

A package and not a module, so that a command loads only what it renders. Records are typed
dictionaries: a record is the JSON document itself, with names for its fields. Fields that spec.md
"Resources" calls nullable are always present in what we send, null when empty (contract.md 3).
"""
