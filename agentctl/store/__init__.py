"""Databases: units of work, lists, searches, migrations, and what both engines share.

SQL is in `repositories`, the drivers are `sqlite` and `postgres`. Rules of runs and of callers are
in `runs` and `service`; `outbox` is here because each database has one.
"""
