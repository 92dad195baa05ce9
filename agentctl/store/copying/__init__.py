"""Copies of a SQLite file to PostgreSQL while no server works with them (decision 122)."""
