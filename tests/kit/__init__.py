"""Models, servers, commands, databases, clocks and conditions for the tests of all folders.

docs/internals/testing.md, "Find a helper", has a line for each need. What runs the suite is beside
this folder: `tests/run.py`, `tests/layers.py` and `tests/accounting.py`.
"""
