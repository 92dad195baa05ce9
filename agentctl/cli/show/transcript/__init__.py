"""Transcripts of sessions and runs for people; rich is imported only by commands that draw one.

The items of a transcript, and the timeline of a run, are in `transcripts`, which needs no terminal.
"""
