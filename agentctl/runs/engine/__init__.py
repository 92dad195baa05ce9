"""The engine: all runs that this process executes, and what other processes ask of them.

It starts runs, claims legs that wait, and hears of the cancels and messages that others write. The
life of one run is in `runs/life`.
"""
