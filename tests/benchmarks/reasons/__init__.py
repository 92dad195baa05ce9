"""Programs that repeat the figures of decisions 30 to 34.

Each is started with `python -m tests.benchmarks.reasons.NAME` and prints a Markdown table.
"""
