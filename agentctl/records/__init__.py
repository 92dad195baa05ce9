"""The JSON records of the interface, one module for each noun, and small shared values.

Records are typed dictionaries: a record is the JSON object itself with names for its fields.
Nullable fields are always present, and null when empty (docs/contract.md "Records"). The package
has many small modules so that a command imports only the records that it prints.
"""
