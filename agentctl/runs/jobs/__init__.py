"""Work in the background that repeats: sweep, cleanup, retention, sums of usage.

The work that belongs to one run, such as the summary of its session, is in `runs/life`.
"""
