"""Output: tables, documents, progress, and transcripts as rich draws them.

The parts of a transcript that need no terminal are in `transcripts`.
"""
