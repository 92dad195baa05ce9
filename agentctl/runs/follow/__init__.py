"""Followers of runs: their events or items from any number on, in any process, up to the end.

The reader of runs of other processes, which all followers share, is `runs/log/hub.py`.
"""
