"""Copies of a SQLite file to PostgreSQL while servers work with it (docs/decisions/0122)."""
