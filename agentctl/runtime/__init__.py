"""The execution of work: components, runners, models, tools, MCP, transcripts. No database.

The environment that a component works in (`context`), its pauses and its journal are modules here.
Who starts, stores and ends a run is `runs`.
"""
