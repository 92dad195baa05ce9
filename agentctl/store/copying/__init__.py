"""Copies of a database to another one while servers work with it (docs/decisions/0122)."""
