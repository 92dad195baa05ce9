"""The local backend: the operations on databases, with policy, audit log and data scoping.

Its rooms are `documents`, `reads`, `runs` and `operations`; `service.py` opens them as one service.
Programs for administrators that are no operations are in `admin`, and the execution of runs in
`agentctl.runs`.
"""
