"""Output: tables, documents, transcripts, progress."""
