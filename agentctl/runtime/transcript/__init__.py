"""The transcript of a run in memory: its conversation, answers, events, spans and session state.

The form of events for clients and their storage are in `runs/log`, the texts of a run for people in
`transcripts`.
"""
