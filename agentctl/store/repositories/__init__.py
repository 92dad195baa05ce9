"""Repositories: the SQL statements of each table family, shared by both drivers."""
